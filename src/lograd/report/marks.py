"""Marks, the kinds of things that a chart draws: lines, points, bands, histograms, bars and rules.

A mark is a frozen value that says which ranges the axes must cover and draws itself in the pixels of a `Plot`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidValue, sentence
from .axis import Axis
from .svg import escape, number, path, text_at, text_width

_MOST_TOOLTIPS = 200
"""Points that have a tooltip each; a longer series is drawn as one path, which keeps the page small."""


@dataclass(frozen=True)
class Plot:
    """The surroundings of a mark while it is drawn: both axes in pixels, and all marks of the chart.

    Bars need to know the other marks, since they stand side by side.  `names` are those of the places on the x axis.
    """

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    names: Sequence[str] = ()

    def x_text(self, value: float) -> str:
        """How a tooltip calls a place on the x axis: by its name, or by its number."""
        place = round(value) if self.names else -1
        return escape(self.names[place]) if 0 <= place < len(self.names) else number(value, self.x.percent)


class Mark(ABC):
    """Base class of everything that a chart draws; later marks cover earlier ones.

    `label` is its name in the legend.  `color` is a slot of the palette, by default the next free one.
    """

    label: str
    color: int | None

    @abstractmethod
    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        """Return the x and the y values that the axes must cover."""

    @abstractmethod
    def draw(self, plot: Plot) -> str:
        """Return the SVG of the part that is clipped to the plot."""

    def draw_over(self, plot: Plot) -> str:
        """Return the SVG of the part that may reach over the edge: markers, which would be cut in half otherwise."""
        return ""

    def swatch(self, x: float, y: float) -> str:
        """Return the SVG of the mark's sign in the legend, 20 pixels wide."""
        at = f"M{x:.1f} {y - 5:.1f}h20"
        return f'<path class="area" d="{at}v10h-20z"/><path class="edge" d="{at}"/>'

    def _freeze(self, *names: str) -> None:
        """Replace the named columns by tuples of floats, so that later writes to an array do not change the mark."""
        columns = {name: np.asarray(getattr(self, name), dtype=np.float64) for name in names}
        shapes = {name: column.shape for name, column in columns.items()}
        if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise InvalidValue(sentence(f"columns of {type(self).__name__}", shapes, "flat and of one length"))
        for name, column in columns.items():
            object.__setattr__(self, name, tuple(column.tolist()))


@dataclass(frozen=True)
class _Series(Mark):
    """Pairs (x, y), the base class of `Line` and `Points`."""

    x: ArrayLike
    y: ArrayLike
    label: str = ""
    color: int | None = None

    def __post_init__(self) -> None:
        self._freeze("x", "y")

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return self.x, self.y

    def dots(self, plot: Plot) -> str:
        """Return a dot for each visible point, with tooltips where there are not too many."""
        px, py = plot.x.pixels(self.x), plot.y.pixels(self.y)
        keep = plot.x.inside(px) & plot.y.inside(py)
        if keep.sum() > _MOST_TOOLTIPS:
            dots = (f"M{a:.1f} {b:.1f}h0" for a, b in zip(px[keep], py[keep], strict=True))
            return f'<path class="dots" d="{"".join(dots)}"/>'
        rows = zip(px[keep], py[keep], np.asarray(self.x)[keep], np.asarray(self.y)[keep], strict=True)
        name = f"{escape(self.label)}: " if self.label else ""
        return "".join(
            f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="3.2">'
            f"<title>{name}{plot.x_text(u)}, {number(v, plot.y.percent)}</title></circle>"
            for a, b, u, v in rows
        )


@dataclass(frozen=True)
class Line(_Series):
    """A line through the points in the order given; with `steps` each y holds until the next x."""

    dashed: bool = False
    markers: bool = False
    steps: bool = False

    def draw(self, plot: Plot) -> str:
        px, py = plot.x.pixels(self.x), plot.y.pixels(self.y)
        if self.steps:
            px, py = np.repeat(px, 2)[1:], np.repeat(py, 2)[:-1]
        return f'<path class="line{" dashed" * self.dashed}" d="{path(px, py)}"/>'

    def draw_over(self, plot: Plot) -> str:
        return self.dots(plot) if self.markers else ""

    def swatch(self, x: float, y: float) -> str:
        dot = f'<circle class="dot" cx="{x + 10:.1f}" cy="{y:.1f}" r="3.2"/>' if self.markers else ""
        return f'<path class="line{" dashed" * self.dashed}" d="M{x:.1f} {y:.1f}h20"/>{dot}'


@dataclass(frozen=True)
class Points(_Series):
    """Dots at the points; more than 200 visible ones become one path without tooltips."""

    def draw(self, plot: Plot) -> str:
        return ""

    def draw_over(self, plot: Plot) -> str:
        return self.dots(plot)

    def swatch(self, x: float, y: float) -> str:
        return f'<circle class="dot" cx="{x + 10:.1f}" cy="{y:.1f}" r="4"/>'


@dataclass(frozen=True)
class Band(Mark):
    """The area between `low` and `high` over x, such as a confidence interval."""

    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    label: str = ""
    color: int | None = None

    def __post_init__(self) -> None:
        self._freeze("x", "low", "high")

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        x, low, high = (np.asarray(column) for column in (self.x, self.low, self.high))
        return np.append(x, x), np.append(low, high)

    def draw(self, plot: Plot) -> str:
        px, low, high = plot.x.pixels(self.x), plot.y.levels(self.low), plot.y.levels(self.high)
        known = np.isfinite(px) & np.isfinite(self.low) & np.isfinite(self.high)
        runs = np.split(np.arange(px.size), np.flatnonzero(np.diff(known)) + 1)
        there_and_back = ((run, run[::-1]) for run in runs if known[run].all())
        loops = (path(np.append(px[go], px[back]), np.append(low[go], high[back])) for go, back in there_and_back)
        return f'<path class="area" d="{"".join(loops)}"/>'


@dataclass(frozen=True)
class Histogram(Mark):
    """Heights between consecutive edges, drawn as one outlined area that stands on zero."""

    edges: ArrayLike
    heights: ArrayLike
    label: str = ""
    color: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "heights", np.append(np.asarray(self.heights, dtype=np.float64), 0.0))
        self._freeze("edges", "heights")  # as many heights as edges: the added zero closes the outline

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return self.edges, self.heights

    def draw(self, plot: Plot) -> str:
        px, py = np.repeat(plot.x.levels(self.edges), 2), np.repeat(plot.y.levels(self.heights), 2)
        outline = path(px, np.append(plot.y.levels([0.0]), py[:-1]))
        return f'<path class="area" d="{outline}"/><path class="edge" d="{outline}"/>'


@dataclass(frozen=True)
class Bars(Mark):
    """One bar for each named category. Several `Bars` of one chart, over the same names, stand side by side."""

    labels: Sequence[str]
    heights: ArrayLike
    label: str = ""
    color: int | None = None

    def __post_init__(self) -> None:
        self._freeze("heights")
        object.__setattr__(self, "labels", tuple(self.labels))
        if len(self.labels) != len(np.asarray(self.heights)):
            raise InvalidValue(
                sentence("labels of Bars", self.labels, f"{len(np.asarray(self.heights))}, one for each bar")
            )

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return [-0.5, len(self.labels) - 0.5], np.append(np.asarray(self.heights), 0.0)

    def draw(self, plot: Plot) -> str:
        lanes = [mark for mark in plot.marks if isinstance(mark, Bars)]
        width = 0.76 / len(lanes)
        left = np.arange(len(self.labels)) - 0.38 + width * next(i for i, mark in enumerate(lanes) if mark is self)
        x0, x1 = plot.x.pixels(left), plot.x.pixels(left + width * 0.94)
        zero, tops = float(plot.y.levels([0.0])[0]), plot.y.levels(self.heights)
        series = f"{escape(self.label)}, " if self.label else ""
        return "".join(
            f'<rect class="bar" x="{a:.1f}" width="{b - a:.1f}" y="{min(top, zero):.1f}" '
            f'height="{abs(zero - top):.1f}">'
            f"<title>{series}{escape(name)}: {number(value, plot.y.percent)}</title></rect>"
            for a, b, top, name, value in zip(x0, x1, tops, self.labels, np.asarray(self.heights), strict=True)
            if math.isfinite(value)
        )

    def swatch(self, x: float, y: float) -> str:
        return f'<rect class="bar" x="{x + 4:.1f}" y="{y - 6:.1f}" width="12" height="12"/>'


@dataclass(frozen=True)
class Rule(Mark):
    """A dashed reference line at one value of an axis; its label stands beside it and not in the legend."""

    value: float
    label: str = ""
    axis: Literal["x", "y"] = "y"
    color: int | None = None

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return ([self.value], []) if self.axis == "x" else ([], [self.value])

    def draw(self, plot: Plot) -> str:
        x, y = plot.x, plot.y
        axis = x if self.axis == "x" else y
        at = float(axis.pixels(self.value))
        if not axis.inside(at):
            return ""
        if self.axis == "y":
            text = text_at(x.end - 6, at - 6 if at - y.end > 20 else at + 16, self.label, "halo", "end")
            return f'<path class="rule" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>{text}'
        # Names of upright rules stand on rows of their own, so that close rules stay readable.
        row = [mark for mark in plot.marks if isinstance(mark, Rule) and mark.axis == "x"].index(self)
        side, anchor = (6, "start") if at + 6 + text_width(self.label) < x.end else (-6, "end")
        text = text_at(at + side, y.end + 14 + 16 * row, self.label, "halo", anchor)
        return f'<path class="rule" d="M{at:.1f} {y.start:.1f}V{y.end:.1f}"/>{text}'
