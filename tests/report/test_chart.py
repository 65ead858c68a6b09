"""Charts: well-formed images in which data stands where the axes say."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lograd.errors import LogradError
from lograd.report import Band, Bars, Chart, Histogram, Line, Mark, Points, Rule

SCALES = ("linear", "log2", "log10")


SVG = "{http://www.w3.org/2000/svg}"


# Whatever a measurement can hand over, and then some.
special = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e300, 1.7e308, -1.7e308, 1.0])


values = st.one_of(st.floats(), special, st.floats(-10, 10))


scales = st.sampled_from(SCALES)


texts = st.text(max_size=60)


@st.composite
def marks(draw: st.DrawFn) -> Mark:
    n = draw(st.integers(0, 8))
    column = st.one_of(st.lists(values, min_size=n, max_size=n), values.map(lambda v: [v] * n))
    a, b, c, label = draw(column), draw(column), draw(column), draw(texts)
    color = draw(st.none() | st.integers(0, 20))
    return draw(
        st.sampled_from(
            [
                Line(a, b, label, color, markers=True),
                Line(a, b, label, color, dashed=True, steps=True),
                Points(a, b, label, color),
                Band(a, b, c, label, color),
                Histogram([*a, 1.0], b, label, color),
                Rule(draw(values), label, draw(st.sampled_from(["x", "y"])), color),
            ]
        )
    )


def parse(chart: Chart) -> ET.Element:
    """The drawing as a tree; every coordinate in it is a finite number."""
    svg = chart.svg()
    assert not re.search(r'[="\s,LMHV](nan|-?inf)\b', re.sub(r">[^<]*<", "><", svg))
    return ET.fromstring(svg)


def curve(root: ET.Element, kind: str = "line") -> list[tuple[float, float]]:
    """The corners of the first path of this class."""
    path = next(e for e in root.iter(f"{SVG}path") if kind in e.get("class", "").split())
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.get("d", ""))]


def inner(root: ET.Element) -> ET.Element:
    """The nested svg that clips the data to the plot."""
    clip = root.find(f"{SVG}svg")
    assert clip is not None
    return clip


def words(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{SVG}text")]


def one_chart_of_each_kind() -> list[Chart]:
    x = np.linspace(0.5, 8, 30)
    return [
        Chart("line", "x", "y", [Line(x, np.sqrt(x), "root", markers=True), Rule(1, "one"), Rule(2, "two", axis="x")]),
        Chart("steps", "x", "y", [Line(x, np.floor(x), "floor", steps=True)], end_labels=True),
        Chart("points", "x", "y", [Points(np.arange(500), np.arange(500) % 7, "many")], note="a note " * 30),
        Chart("bars", "", "y", [Bars(["a", "b" * 60], [1, -2], "one"), Bars(["a", "b" * 60], [3, 4], "two")]),
        Chart("histogram", "x", "y", [Histogram(2.0 ** np.arange(5), [1, 2, 3, 4], "h")], x_scale="log2"),
        Chart("band", "x", "y", [Band(x, -x, x, "spread")], width=260, height=160),
    ]


@pytest.mark.parametrize("chart", one_chart_of_each_kind(), ids=lambda chart: chart.title)
def test_a_chart_is_an_accessible_well_formed_image(chart: Chart) -> None:
    root = parse(chart)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == chart.title
    assert chart.y_label in (root.findtext(f"{SVG}desc") or "")
    assert chart.svg() == replace(chart).svg(), "the same chart is the same text"


@given(st.lists(marks(), max_size=5), scales, scales, texts, texts, st.booleans(), st.booleans())
def test_no_data_breaks_a_chart(
    drawn: list[Mark], x_scale: str, y_scale: str, title: str, label: str, percent: bool, ends: bool
) -> None:
    chart = Chart(
        title, label, label, drawn, x_scale, y_scale, x_percent=percent, y_percent=percent, end_labels=ends, note=title
    )
    parse(chart)


@given(st.lists(st.tuples(texts, values), max_size=40), st.integers(1, 4), scales)
def test_no_data_breaks_bars(bars: list[tuple[str, float]], lanes: int, scale: str) -> None:
    names, heights = [name for name, _ in bars], [height for _, height in bars]
    parse(Chart("t", "x", "y", [Bars(names, heights, f"{lane}") for lane in range(lanes)], y_scale=scale))


@pytest.mark.parametrize("scale", SCALES)
def test_a_known_point_lands_on_its_pixel(scale: str) -> None:
    # Corners of the frame are the corners of the range; between them every scale is a straight line in its own units.
    values = {"linear": [0, 25, 100], "log2": [2.0**-4, 1, 2.0**12], "log10": [1e-3, 1, 1e9]}[scale]
    span = (values[0], values[2])
    chart = Chart("t", "x", "y", [Line(values, values)], scale, scale, x_range=span, y_range=span)
    root = parse(chart)
    clip = inner(root)
    left, top, width, height = (float(clip.get(k, "")) for k in ("x", "y", "width", "height"))
    (x0, y0), (x1, y1), (x2, y2) = curve(root)
    assert (x0, x2) == pytest.approx((left + 1, left + width - 1), abs=0.5)
    assert (y0, y2) == pytest.approx((top + height - 1, top + 1), abs=0.5)
    assert x1 == pytest.approx(x0 + (x2 - x0) / 4, abs=0.5)
    assert y1 == pytest.approx(y0 + (y2 - y0) / 4, abs=0.5)


def test_a_tick_label_stands_where_its_value_is_drawn() -> None:
    root = parse(Chart("t", "x", "y", [Points([0, 1, 2, 3, 4], [0, 10, 20, 30, 40])]))
    labels = {e.text: e for e in root.iter(f"{SVG}text")}
    dots = list(root.iter(f"{SVG}circle"))
    assert float(labels["3.0"].get("x", "")) == pytest.approx(float(dots[3].get("cx", "")), abs=0.5)
    assert float(labels["20"].get("y", "")) - 4 == pytest.approx(float(dots[2].get("cy", "")), abs=0.5)
    assert dots[3].findtext(f"{SVG}title") == "3, 30"


def test_bars_have_the_height_of_their_values_and_stand_side_by_side() -> None:
    root = parse(Chart("t", "", "y", [Bars(["a", "b"], [1, 2], "one"), Bars(["a", "b"], [3, -4], "two")]))
    bars = [e for e in root.iter(f"{SVG}rect") if e.findtext(f"{SVG}title")]
    assert [e.findtext(f"{SVG}title") for e in bars] == ["one, a: 1", "one, b: 2", "two, a: 3", "two, b: −4"]
    height = [float(e.get("height", "")) for e in bars]
    assert height == pytest.approx([height[0] * k for k in (1, 2, 3, 4)], abs=0.5)
    left = [(float(e.get("x", "")), float(e.get("width", ""))) for e in bars]
    by_place = sorted(left)
    assert all(x + w <= after for (x, w), (after, _) in pairwise(by_place))
    assert float(bars[3].get("y", "")) == pytest.approx(float(bars[0].get("y", "")) + height[0], abs=0.2)


def test_a_histogram_stands_on_zero_and_has_a_flat_top_for_each_bin() -> None:
    corners = curve(parse(Chart("t", "x", "y", [Histogram([0, 1, 3], [2, 4])], y_range=(0, 4))), "edge")
    (x0, floor), (_, y1), (x1, _), (_, y2), (x2, _), (_, end) = corners
    assert x2 - x1 == pytest.approx(2 * (x1 - x0), abs=0.5)
    assert floor == end
    assert floor - y2 == pytest.approx(2 * (floor - y1), abs=0.5)


def test_a_step_holds_its_value_until_the_next_x() -> None:
    points = curve(parse(Chart("t", "x", "y", [Line([0, 1, 2], [0, 1, 2], steps=True)])))
    assert len(points) == 5
    assert [a[1] == b[1] for a, b in pairwise(points)] == [True, False, True, False]


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_a_point_that_is_not_finite_breaks_the_line(gap: float) -> None:
    svg = Chart("t", "x", "y", [Line(range(5), [1, 2, gap, 4, 5])]).svg()
    path = re.search(r'class="line" d="([^"]*)"', svg)
    assert path is not None
    assert (path[1].count("M"), path[1].count("L")) == (2, 2)


def test_a_log_axis_drops_what_it_cannot_show_and_keeps_the_rest() -> None:
    points = [(-1, 1), (0, 1), (1, 1), (10, 10), (10, 0)]
    root = parse(Chart("t", "x", "y", [Points(*zip(*points, strict=True))], "log10", "log10"))
    assert [e.findtext(f"{SVG}title") for e in root.iter(f"{SVG}circle")] == ["1, 1", "10, 10"]


def test_data_beyond_the_range_is_clipped_or_left_out() -> None:
    marks = [Line([0, 10], [0, 10]), Points([0.5, 5], [0.5, 5])]
    root = parse(Chart("t", "x", "y", marks, x_range=(0, 1), y_range=(0, 1)))
    clip = inner(root)
    assert clip.get("viewBox") == " ".join(clip.get(k, "") for k in ("x", "y", "width", "height"))
    assert any("line" in e.get("class", "") for e in clip.iter(f"{SVG}path")), "lines live inside the clip"
    assert len(list(root.iter(f"{SVG}circle"))) == 1


def test_an_empty_chart_says_so() -> None:
    assert "no data" in words(parse(Chart("t", "x", "y", [])))
    assert "no data" in words(parse(Chart("t", "x", "y", [Line([0], [math.nan]), Rule(1)])))
    assert "no data" not in words(parse(Chart("t", "x", "y", [Line([0], [1])])))


def test_the_legend_stands_above_the_plot_and_wraps() -> None:
    chart = Chart("t", "x", "y", [Line([0, 1], [i, i + 1], f"a rather long name {i}") for i in range(8)])
    root = parse(chart)
    top = float(inner(root).get("y", ""))
    spots = [
        (float(e.get("x", "")), float(e.get("y", ""))) for e in root.iter(f"{SVG}text") if "long" in (e.text or "")
    ]
    assert len(spots) == len(set(spots)) == 8
    assert len({y for _, y in spots}) > 1
    assert all(y < top and x < chart.width for x, y in spots)


@pytest.mark.parametrize("end", [-1, 0, 1])
def test_end_labels_replace_the_legend_and_never_overlap(end: int) -> None:
    lines = [Line([0, 1], [0, end + i * 1e-3], f"line {i}") for i in range(6)]
    root = parse(Chart("t", "x", "y", lines, end_labels=True, y_range=(-1, 1)))
    top, height = (float(inner(root).get(k, "")) for k in ("y", "height"))
    rows = sorted(float(e.get("y", "")) for e in root.iter(f"{SVG}text") if (e.text or "").startswith("line"))
    assert len(rows) == 6
    assert min(np.diff(rows)) >= 14.9
    assert top <= rows[0] - 4 <= rows[-1] - 4 <= top + height, "beside the plot, not above or below it"


def test_colors_are_shared_on_request_and_otherwise_distinct() -> None:
    svg = Chart(
        "t", "x", "y", [Line([0], [0], "a", color=0), Points([0], [0], "b", color=0), Line([0], [0], "c")]
    ).svg()
    body = svg[svg.index("</style>") :]
    assert set(re.findall(r"--c:var\(--lg-(\w+)\)", body)) == {"c0", "c1"}


def test_a_mark_is_a_value() -> None:
    x = np.array([1.0, 2.0])
    line = Line(x, [3, 4])
    x[0] = 99
    assert line == Line([1, 2], (3, 4))
    assert hash(line) == hash(Line([1, 2], [3, 4]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Line([1, 2], [1]), "one length"),
        (lambda: Points([[1]], [[1]]), "flat"),
        (lambda: Histogram([0, 1], [1, 2]), "one length"),
        (lambda: Bars(["a"], [1, 2]), "one for each bar"),
        (lambda: Chart("t", "x", "y", [Bars(["a"], [1]), Bars(["b"], [1])]), "same labels"),
        (lambda: Chart("t", "x", "y", [Bars(["a"], [1])], x_scale="log2"), "linear"),
        (lambda: Chart("t", "x", "y", [], x_scale="log"), "log2"),
        (lambda: Chart("t", "x", "y", [], x_range=(1, 1)), "low before high"),
        (lambda: Chart("t", "x", "y", [], y_scale="log10", y_range=(0, 1)), "low before high"),
        (lambda: Chart("t", "x", "y", [], width=10), "240"),
    ],
)
def test_bad_input_is_named_when_the_mark_or_chart_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert isinstance(caught.value, LogradError)


def test_charts_of_many_layers_show_their_names() -> None:
    names = [f"features.{number}.block.0.0" for number in range(53)]
    chart = Chart("t", "layer", "zeros", [Line(np.arange(53), np.linspace(0, 1, 53), "g", markers=True)], x_names=names)
    svg = chart.svg()
    ticks = re.findall(r'text-anchor="end" transform[^>]*>([^<]*)<', svg)
    assert len(ticks) >= 15
    assert set(ticks) <= set(names)
    titles = re.findall(r"<circle[^>]*><title>([^<]*)</title>", svg)
    assert len(titles) == 53
    assert all(f"g: {name}, " in title for name, title in zip(names, titles, strict=True))
