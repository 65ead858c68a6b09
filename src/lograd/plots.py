"""Figures of results by matplotlib, and pages of them as self-contained HTML files; both need the extra `plot`.

A figure is a `matplotlib.figure.Figure`, which a caller may change, save for a paper, or put on a page (`write_page`);
no function touches pyplot's global state.  Values that are not finite are left out of the drawing.  The template
page.html is the only one; it needs no script and no network.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import LogradError
from .files import check_folder, replace_file
from .laws import Empirical, Law
from .text import TextTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a4a1e", "#6b7682")
"""The hues of Okabe and Ito, which stay apart under colour blindness; the last is a grey for references."""
GREY = COLORS[-1]
SIZE = (6.4, 4.0)
"""Inches."""
MOST_NAMES = 40
"""The most names below an axis; of more layers only some are named."""


class MissingExtra(LogradError, ImportError):
    """An optional package is needed and is not installed."""


@contextmanager
def plotting(what: str) -> Iterator[None]:
    """Raise MissingExtra where an import inside fails; `what` begins the sentence."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{what} needs {error.name}; install it with: pip install 'lograd[plot]'") from error


def axes(title: str, x_label: str, y_label: str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, in the style of all figures here."""
    with plotting("A figure"):
        from cycler import cycler
        from matplotlib.figure import Figure
    figure = Figure(figsize=size, layout="constrained")
    ax = figure.add_subplot()
    ax.set_prop_cycle(cycler(color=COLORS))
    ax.set_title(_plain(title), fontsize="medium", fontweight="bold", loc="left")
    ax.set_xlabel(_plain(x_label))
    ax.set_ylabel(_plain(y_label))
    ax.grid(True, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def lines(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log: str = "",
    style: str | Mapping[str, str] = "-",
    bands: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    percent: bool = False,
) -> Figure:
    """Draw lines or points over steps, seconds or anything else.

    Args:
        series: x and y of each line, by its label; an empty label is not in the legend.
        log: the axes with a logarithmic scale: "", "x", "y" or "xy".
        style: matplotlib's format of all lines, such as "o-", or of each by its label; "--" is drawn in grey.
        bands: lowest and highest y around some lines, by label.
        percent: y is a share and is labelled in percent.
    """
    figure, ax = axes(title, x_label, y_label)
    colors = iter(COLORS * (1 + len(series) // len(COLORS)))
    for label, (x, y) in series.items():
        form = style if isinstance(style, str) else style.get(label, "-")
        color = GREY if form == "--" else next(colors)
        ax.plot(np.asarray(x), _finite(y), form, color=color, label=_plain(label), markersize=4)
        if bands and label in bands:
            low, high = map(_finite, bands[label])
            ax.fill_between(np.asarray(x), low, high, color=color, alpha=0.18, linewidth=0)
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")
    if not log and all(np.asarray(x).dtype.kind in "iu" for x, _ in series.values()):
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(ax, list(series), percent)
    return figure


def bars(
    names: Sequence[str],
    series: Mapping[str, ArrayLike],
    title: str,
    y_label: str,
    *,
    x_label: str = "",
    rule: float | None = None,
    log: bool = False,
    percent: bool = False,
) -> Figure:
    """Draw values of layers or other named things: bars, or points where there are many names.

    Args:
        names: of the places, in order.
        series: one value for each name, by the label of the series.
        rule: a value to compare with, drawn as a dashed line.
        log: a logarithmic axis of values.
        percent: values are shares and are labelled in percent.
    """
    long = 0.075 * max((len(name) for name in names), default=0)
    figure, ax = axes(title, x_label, y_label, (SIZE[0], SIZE[1] + min(long, 2.0)))
    places = np.arange(len(names))
    width = 0.8 / max(len(series), 1)
    for index, (label, values) in enumerate(series.items()):
        heights = _finite(values)
        if len(names) > MOST_NAMES:
            ax.plot(places, heights, "o-", label=_plain(label), markersize=3, linewidth=1)
        else:
            shift = (index - (len(series) - 1) / 2) * width
            ax.bar(places + shift, heights, width, label=_plain(label), color=COLORS[index % len(COLORS)])
    if rule is not None:
        ax.axhline(rule, color=GREY, linestyle="--", linewidth=1)
    if log:
        ax.set_yscale("log")
    _name_ticks(ax, "x", names)
    _finish(ax, list(series), percent)
    return figure


def histogram(
    data: Empirical | ArrayLike,
    laws: Mapping[str, Law],
    title: str = "Magnitudes of a gradient",
    label: str = "gradient",
) -> Figure:
    """Draw the histogram of log2|g| with fitted laws, in shares of the nonzero elements per octave.

    Args:
        data: the empirical law of |g|, or values, of which zeros are left out.
        laws: the laws to compare with, by name.
    """
    law = data if isinstance(data, Empirical) else Empirical.fit(data)
    low, high = np.log2(law.quantile([0.0005, 0.9999]))  # the far tails would leave little room for the rest
    edges = np.arange(np.floor(low), np.ceil(high) + 0.25, 0.25)
    figure, ax = axes(title, "log2 |g|", "share of elements per octave")
    ax.stairs(np.diff(law.cdf(2.0**edges)) * 4, edges, fill=True, alpha=0.35, color=COLORS[0], label=_plain(label))
    for color, (name, fitted) in zip(COLORS[1:], laws.items(), strict=False):
        ax.plot((edges[1:] + edges[:-1]) / 2, np.diff(fitted.cdf(2.0**edges)) * 4, color=color, label=_plain(name))
    _finish(ax, [label, *laws], percent=True)
    return figure


def heat_map(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    *,
    x_label: str = "",
    y_label: str = "",
    unit: str = "",
    log: bool = True,
) -> Figure:
    """Draw a matrix by shade.

    Args:
        values: one for each row and column; zero and what is not finite are left blank on a logarithmic scale.
        unit: label of the colour bar.
        log: a logarithmic scale of shades.
    """
    matrix = np.asarray(values, dtype=np.float64)
    size = (
        max(SIZE[0], 2.5 + 0.22 * min(len(columns), MOST_NAMES)),
        max(SIZE[1], 2 + 0.2 * min(len(rows), MOST_NAMES)),
    )
    figure, ax = axes(title, x_label, y_label, size)
    ax.grid(False)
    shown = np.where(np.isfinite(matrix) & ((matrix > 0) | (not log)), matrix, np.nan)
    scale = "log" if log and np.isfinite(shown).any() else "linear"
    image = ax.imshow(shown, aspect="auto", cmap="Blues", norm=scale, interpolation="nearest")
    figure.colorbar(image, ax=ax, label=_plain(unit))
    _name_ticks(ax, "x", columns)
    _name_ticks(ax, "y", rows)
    return figure


def _finish(ax: Axes, labels: Sequence[str], percent: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    if percent:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    if any(labels):
        ax.legend(frameon=False, fontsize="small")


def _name_ticks(ax: Axes, axis: str, names: Sequence[str]) -> None:
    stride = 1 + (len(names) - 1) // MOST_NAMES if names else 1
    places = list(range(0, len(names), stride))
    shown = [_plain(_short(names[place])) for place in places]
    if axis == "x":
        tilted: dict[str, Any] = (
            {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, shown)) > 60 else {}
        )
        ax.set_xticks(places, shown, fontsize="small", **tilted)
    else:
        ax.set_yticks(places, shown, fontsize="small")


def _short(name: str, longest: int = 32) -> str:
    """Return a name that loses its beginning where it is long: the end tells layers apart."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def _plain(text: str) -> str:
    """Return a text that matplotlib shows as it is: a dollar would begin a formula, an underscore hides a label."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


# -- pages --


@final
@dataclass(frozen=True)
class Section:
    """One part of a page; what it has is shown in the order of the arguments.

    Args:
        heading: empty for a section without one.
        text: paragraphs, separated by an empty line; words between backticks are set as code.
        numbers: large numbers to begin with, by their label.
        figures: drawn side by side where the screen has room.
        tables: as `text_table` returns them.
    """

    heading: str = ""
    text: str = ""
    numbers: Mapping[str, str] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    tables: Sequence[TextTable] = ()


def render(title: str, sections: Sequence[Section], footer: str = "") -> str:
    """Return the HTML text of a page; all text is escaped."""
    with plotting("An HTML page"):
        import jinja2
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"code": _code, "svg": _inline}
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.render(title=title, sections=sections, footer=footer)


def write_page(
    path: str | os.PathLike[str], title: str, sections: Sequence[Section], footer: str = "Made by lograd."
) -> Path:
    """Write a page and return its resolved path; a failure leaves an existing file as it was."""
    check_folder(path)  # before the figures are drawn
    return replace_file(path, render(title, sections, footer).encode())


def svg(figure: Figure) -> str:
    """Return a figure as an SVG text, equal for equal figures."""
    with plotting("A figure"):
        import matplotlib
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lograd"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    return re.sub("<metadata>.*</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _inline(figure: Figure) -> str:
    from markupsafe import Markup

    # Ids of groups, such as figure_1, would stand twice on a page; those that are referred to are hashes of content.
    return Markup(re.sub(r' id="[\w.]+_\d+"', "", svg(figure)))


def _code(text: str) -> str:
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
