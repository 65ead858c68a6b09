"""Heat maps: well-formed, a cell for each number, and the darker the larger."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from lograd.errors import InvalidValue
from lograd.report import HeatMap, Page
from lograd.report.heatmap import DECADES, LONGEST_NAME
from lograd.report.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"


def drawn(values: list[list[float]], **options: int) -> tuple[ET.Element, dict[str, float]]:
    """The drawing, and the opacity of each cell by its tooltip without the number."""
    x, y = [f"x{i}" for i in range(len(values[0]))], [f"y{i}" for i in range(len(values))]
    root = ET.fromstring(HeatMap("Title", "to", "from", x, y, values, "A note.", **options).svg())
    cells = {}
    for rect in root.iter(f"{SVG}rect"):
        tip = rect.find(f"{SVG}title")
        if tip is not None:
            cells[(tip.text or "").split(":")[0]] = float(rect.get("fill-opacity") or 1)
    return root, cells


def test_a_cell_for_each_number_and_the_darker_the_larger() -> None:
    _, cells = drawn([[1.0, 0.1, 0.0], [0.01, 1e-9, 0.5]])
    assert len(cells) == 6
    assert cells["y0 → x0"] == 1
    assert cells["y0 → x2"] == 0
    order = ["y0 → x0", "y1 → x2", "y0 → x1", "y1 → x0", "y1 → x1"]
    assert sorted(order, key=lambda name: -cells[name]) == order
    assert cells["y1 → x1"] > 0, "small is not nothing"
    assert cells["y0 → x0"] - cells["y0 → x1"] == pytest.approx(cells["y0 → x1"] - cells["y1 → x0"], abs=0.01)
    assert math.isclose(cells["y0 → x0"] - cells["y0 → x1"], 1 / DECADES, abs_tol=0.05)


def test_rows_fit_the_height_and_many_make_it_higher() -> None:
    few, _ = drawn([[1.0] * 4] * 3)
    many, _ = drawn([[1.0] * 60] * 80)
    assert float(few.get("height") or 0) < 480 < float(many.get("height") or 0)
    for root in (few, many):
        right = max(float(one.get("x") or 0) + float(one.get("width") or 0) for one in root.findall(f"{SVG}rect")[1:])
        assert right <= 560
    names = [one for one in many.iter(f"{SVG}text") if re.fullmatch(r"y\d+", one.text or "")]
    assert len(names) == 40, "every second one, so that they do not touch"


def test_long_names_lose_their_beginning_and_are_escaped() -> None:
    name = "model.layers.<0>." + "very." * 30 + "end"
    text = HeatMap("A & B", "", "", [name], ["r"], [[1.0]]).svg()
    labels = [one.text or "" for one in ET.fromstring(text).iter(f"{SVG}text")]
    short = next(label for label in labels if label.endswith("end"))
    assert short.startswith("…")
    assert text_width(short) <= LONGEST_NAME


def test_zeros_alone_and_numbers_that_are_none() -> None:
    _, cells = drawn([[0.0, 0.0]])
    assert set(cells.values()) == {0.0}
    for values in ([[1.0]], [[1.0, 2.0, 3.0]], [[1.0, -1.0]], [[1.0, np.nan]], [[1.0, np.inf]]):
        with pytest.raises(InvalidValue, match="values of a heat map must be"):
            HeatMap("t", "", "", ["a", "b"], ["c"], values)
    with pytest.raises(InvalidValue):
        HeatMap("t", "", "", [], [], np.zeros((0, 0)))


def test_a_page_draws_it_for_screens_and_phones() -> None:
    chart = HeatMap("Title", "to", "from", ["a"], ["b"], [[1.0]])
    page = Page("p").charts(chart, phone=True).html()
    assert page.count("<title>Title</title>") == 2
    assert replace(chart, width=380, height=300).svg(styled=False) in page
    assert "<style>" not in chart.svg(styled=False)
    assert "<style>" in chart.svg()
