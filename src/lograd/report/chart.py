"""Charts as SVG text: values in, one string out, no plotting library.

The report draws with these; nothing here knows about gradients. Colours are CSS variables, so that one drawing serves
light, dark and print. What a scale cannot show (NaN, infinities, zeros on a log axis) is left out, never an error.
"""

from __future__ import annotations

import html
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidValue, sentence

Scale = Literal["linear", "log2", "log10"]
Array = NDArray[np.float64]

# The hues of Okabe and Ito, their lightness spread to keep them apart under simulated colour blindness (the first five
# most of all), each with a contrast of 3:1 or more to its background. The last slot is a grey for reference lines.
PALETTE = {
    "light": ("#0b54a6", "#bf3f0a", "#178a68", "#b955b6", "#c48510", "#4398d0", "#4d1414", "#6b7682"),
    "dark": ("#3a8cf0", "#ee6a1e", "#22b893", "#d070c8", "#f7d038", "#9fd6ff", "#f3ece4", "#8b97a5"),
}
TONES = {
    "light": {"ink": "#1b2430", "muted": "#5b6673", "grid": "#e6eaee", "axis": "#9aa5b1", "surface": "#ffffff"},
    "dark": {"ink": "#e8ecf1", "muted": "#9fabb8", "grid": "#2a333e", "axis": "#5d6977", "surface": "#171d25"},
}


def _variables(mode: str) -> str:
    slots = {f"c{slot}": color for slot, color in enumerate(PALETTE[mode])}
    return ":root{" + "".join(f"--lg-{name}:{color};" for name, color in (TONES[mode] | slots).items()) + "}"


# "screen" keeps dark colours off paper.
_THEME = f"{_variables('light')}\n@media screen and (prefers-color-scheme:dark){{{_variables('dark')}}}\n"
CHART_CSS = (
    _THEME
    + """:root{--lg-font:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.lg text{font:12px var(--lg-font);fill:var(--lg-ink);font-variant-numeric:tabular-nums}
.lg text.muted{fill:var(--lg-muted)} .lg text.title{font-size:15px;font-weight:600}
.lg text.halo{paint-order:stroke;stroke:var(--lg-surface);stroke-width:4px;stroke-linejoin:round}
.lg .surface{fill:var(--lg-surface)} .lg .grid{stroke:var(--lg-grid)} .lg .axis{stroke:var(--lg-axis)}
.lg .line{stroke:var(--c);fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.lg .dashed{stroke-dasharray:5 5} .lg .rule{stroke:var(--c);stroke-width:1.5;stroke-dasharray:3 3}
.lg .area{fill:var(--c);fill-opacity:.2} .lg .edge{stroke:var(--c);stroke-opacity:.7;fill:none}
.lg .bar{fill:var(--c)} .lg .dot{fill:var(--c);stroke:var(--lg-surface);stroke-width:.75}
.lg .dots{stroke:var(--c);stroke-width:5;stroke-linecap:round;stroke-opacity:.55}
"""
)

LONGEST_NAME = 165
"""Pixels of a name on the x axis; a longer one loses its beginning."""
NAME_ROW = 21
"""Pixels between two tilted names, so that they do not touch."""
_EDGE = 14.0  # pixels between the border and the text
_LIMIT = {"linear": 1e250, "log2": 900.0, "log10": 270.0}  # in scale units: with a margin, far from overflow
_STRIDES = {2: [2**k for k in range(11)], 10: [1, 2, 5, 10, 20, 50, 100, 200, 500]}  # between exponents with a label
_MOST_TOOLTIPS = 200  # a longer series is one path: a tooltip for every point would make a heavy page
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: object) -> str:
    """Text that is safe inside an element or an attribute; characters that XML forbids become U+FFFD."""
    return html.escape(_NOT_XML.sub("\ufffd", str(text)))


def power(base: int, exponent: int) -> str:
    return f"{base}{str(exponent).translate(_SUPERSCRIPT)}"


def number(value: float, percent: bool = False) -> str:
    """Four significant digits as a reader writes them: `1.5×10⁻⁷`, `−3`, `12.5%`."""
    mantissa, _, exponent = f"{value * 100 if percent else value:.4g}".partition("e")
    return mantissa.replace("-", "−") + (f"×{power(10, int(exponent))}" if exponent else "") + "%" * percent


def text_width(text: str, size: float = 12) -> float:
    """Pixels that text takes, guessed on the wide side: there are no font metrics to ask."""
    return size * sum(0.34 if c in " .,:;'|!()[]fijlt" else 0.9 if c in "mwMW%@" or c > "\u2e7f" else 0.6 for c in text)


def _cut(text: str, room: float, size: float = 12) -> str:
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _wrap(text: str, room: float, size: float = 12) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(_cut(word, room, size))
    return lines


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _path(x: Array, y: Array) -> str:
    """A pen that lifts over every point that is not finite; `h0` makes a lonely point visible as a dot."""
    out, down = [], False
    for px, py in zip(x.tolist(), y.tolist(), strict=True):
        if drawn := math.isfinite(px) and math.isfinite(py):
            out.append(f"L{px:.1f} {py:.1f}" if down else f"M{px:.1f} {py:.1f}h0")
        down = drawn
    return "".join(out)


def _units(values: ArrayLike, scale: Scale) -> Array:
    """Values in scale units, NaN where the scale cannot show them."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = array if scale == "linear" else np.log2(array) if scale == "log2" else np.log10(array)
    units = np.where(np.abs(units) < 1e-250, 0.0, units)
    return np.where(np.abs(units) <= _LIMIT[scale], units, np.nan)


def _linear_ticks(low: float, high: float, most: int, percent: bool, smallest: float = 0.0) -> list[tuple[float, str]]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten, labelled with just enough digits."""
    rough = (high - low) / (most - 1)
    decade = 10.0 ** math.floor(math.log10(rough))
    step = max(smallest, next(m * decade for m in (1, 2, 5, 10) if m * decade >= rough * (1 - 1e-9)))
    values = [k * step for k in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]
    factor = 100 if percent else 1
    top = max(abs(low), abs(high)) * factor
    shift = 0 if 1e-4 <= top < 1e6 else math.floor(math.log10(top))
    digits = max(0, shift - math.floor(math.log10(step * factor) + 1e-9))
    suffix = (f"×{power(10, shift)}" if shift else "") + "%" * percent
    labels = [f"{v * factor / 10.0**shift:,.{digits}f}{suffix}".replace("-", "−") if v else "0" for v in values]
    return [(min(max(v, low), high), label) for v, label in zip(values, labels, strict=True)]


@dataclass(frozen=True)
class Axis:
    """One direction of a chart: the range `low` to `high` in scale units, over the pixels `start` to `end`."""

    scale: Scale
    percent: bool
    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    whole: bool = False
    """On a linear axis, ticks at whole numbers only."""

    @classmethod
    def around(cls, data: Array, scale: Scale, percent: bool, wanted: tuple[float, float] | None, pad: float) -> Axis:
        """The axis that shows `wanted`, or else all the data with a margin of `pad` times its span."""
        if scale not in _LIMIT:
            raise InvalidValue(sentence("scale of an axis", scale, f"one of {', '.join(get_args(Scale))}"))
        units = _units(data if wanted is None else wanted, scale)
        if wanted is not None and not units[0] < units[1]:
            raise InvalidValue(sentence(f"range of a {scale} axis", wanted, "two values it can show, low before high"))
        shown = units[np.isfinite(units)]
        low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
        size = max(abs(low), abs(high)) if scale == "linear" else 2.0
        if high - low <= 1e-9 * size:  # a single value stands in the middle
            return cls(scale, percent, low - (size / 2 or 0.5), high + (size / 2 or 0.5))
        if wanted is None:
            # The margin crosses neither zero nor 100 %: a reader should not wonder about a share above one.
            whole = (1.0 if scale == "linear" else 0.0) if percent else math.inf
            stops = [whole] + [0.0] * (scale == "linear")
            margin = pad * (high - low)
            low = max([low - margin] + [stop for stop in stops if stop <= low])
            high = min([high + margin] + [stop for stop in stops if stop >= high])
        return cls(scale, percent, low, high)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """One to `most` (4 or more) ticks inside the range, ascending: position in scale units and label."""
        if self.scale == "linear":
            return _linear_ticks(self.low, self.high, most, self.percent, float(self.whole))
        base = 2 if self.scale == "log2" else 10
        first, last = math.ceil(self.low), math.floor(self.high)
        if last - first >= 2:
            stride = next(s for s in _STRIDES[base] if (last - first) // s < most)
            exponents = range(math.ceil(first / stride) * stride, last + 1, stride)
            return [(float(e), number(float(base) ** e, True) if self.percent else power(base, e)) for e in exponents]
        if base == 10:
            inner = [(e + math.log10(m), m * 10.0**e) for e in range(first - 1, last + 1) for m in (1, 2, 5)]
            inner = [(unit, value) for unit, value in inner if self.low <= unit <= self.high]
            if 3 <= len(inner) <= most:
                return [(unit, number(value, self.percent)) for unit, value in inner]
        ticks = _linear_ticks(float(base) ** self.low, float(base) ** self.high, most, self.percent)
        return [(min(max(math.log(v, base), self.low), self.high), label) for v, label in ticks]

    def place(self, units: ArrayLike) -> Array:
        share = (np.asarray(units, dtype=np.float64) - self.low) / (self.high - self.low)
        return np.clip(self.start + share * (self.end - self.start), -1e5, 1e5)  # renderers dislike huge numbers

    def pixels(self, values: ArrayLike) -> Array:
        """Where values land; NaN for those that the scale cannot show."""
        return self.place(_units(values, self.scale))

    def levels(self, values: ArrayLike) -> Array:
        """`pixels` for areas and bars: what cannot be shown counts as zero, and zero on a log scale is its start."""
        floor = self.start if self.scale != "linear" else float(self.place(0.0))
        return np.nan_to_num(self.pixels(values), nan=floor)

    def inside(self, pixels: ArrayLike) -> NDArray[np.bool_]:
        middle, half = (self.start + self.end) / 2, abs(self.end - self.start) / 2
        return np.abs(np.asarray(pixels) - middle) <= half + 0.01


@dataclass(frozen=True)
class Plot:
    """What a mark needs to draw itself: both axes in pixels, and its neighbours, since bars stand side by side."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    names: Sequence[str] = ()

    def x_text(self, value: float) -> str:
        """A place on the x axis for a tooltip: its name, or its number."""
        place = round(value) if self.names else -1
        return escape(self.names[place]) if 0 <= place < len(self.names) else number(value, self.x.percent)


class Mark(ABC):
    """Something drawn; later marks cover earlier ones. `color` is a slot of the palette, by default the next free."""

    label: str
    color: int | None

    @abstractmethod
    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        """The x and the y values that the axes must cover."""

    @abstractmethod
    def draw(self, plot: Plot) -> str:
        """The part that is clipped to the plot."""

    def draw_over(self, plot: Plot) -> str:
        """The part that may reach over the edge: markers, so that none is cut in half."""
        return ""

    def swatch(self, x: float, y: float) -> str:
        """The mark's sign in the legend, 20 pixels wide."""
        at = f"M{x:.1f} {y - 5:.1f}h20"
        return f'<path class="area" d="{at}v10h-20z"/><path class="edge" d="{at}"/>'

    def _freeze(self, *names: str) -> None:
        """Keep columns as tuples of floats: a mark is a value, and later writes to an array do not reach it."""
        columns = {name: np.asarray(getattr(self, name), dtype=np.float64) for name in names}
        shapes = {name: column.shape for name, column in columns.items()}
        if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise InvalidValue(sentence(f"columns of {type(self).__name__}", shapes, "flat and of one length"))
        for name, column in columns.items():
            object.__setattr__(self, name, tuple(column.tolist()))


@dataclass(frozen=True)
class _Series(Mark):
    """Pairs (x, y): what `Line` and `Points` share."""

    x: ArrayLike
    y: ArrayLike
    label: str = ""
    color: int | None = None

    def __post_init__(self) -> None:
        self._freeze("x", "y")

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return self.x, self.y

    def dots(self, plot: Plot) -> str:
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
        return f'<path class="line{" dashed" * self.dashed}" d="{_path(px, py)}"/>'

    def draw_over(self, plot: Plot) -> str:
        return self.dots(plot) if self.markers else ""

    def swatch(self, x: float, y: float) -> str:
        dot = f'<circle class="dot" cx="{x + 10:.1f}" cy="{y:.1f}" r="3.2"/>' if self.markers else ""
        return f'<path class="line{" dashed" * self.dashed}" d="M{x:.1f} {y:.1f}h20"/>{dot}'


@dataclass(frozen=True)
class Points(_Series):
    """A scatter. More than 200 visible points become one path without tooltips."""

    def draw(self, plot: Plot) -> str:
        return ""

    def draw_over(self, plot: Plot) -> str:
        return self.dots(plot)

    def swatch(self, x: float, y: float) -> str:
        return f'<circle class="dot" cx="{x + 10:.1f}" cy="{y:.1f}" r="4"/>'


@dataclass(frozen=True)
class Band(Mark):
    """The area between `low` and `high`: an interval, a spread."""

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
        loops = (_path(np.append(px[go], px[back]), np.append(low[go], high[back])) for go, back in there_and_back)
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
        path = _path(px, np.append(plot.y.levels([0.0]), py[:-1]))
        return f'<path class="area" d="{path}"/><path class="edge" d="{path}"/>'


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
    """A reference line at `value` of one axis, named beside the line, not in the legend; grey by default."""

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
            text = _text(x.end - 6, at - 6 if at - y.end > 20 else at + 16, self.label, "halo", "end")
            return f'<path class="rule" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>{text}'
        # Names of upright rules stand on rows of their own, so that close rules stay readable.
        row = [mark for mark in plot.marks if isinstance(mark, Rule) and mark.axis == "x"].index(self)
        side, anchor = (6, "start") if at + 6 + text_width(self.label) < x.end else (-6, "end")
        text = _text(at + side, y.end + 14 + 16 * row, self.label, "halo", anchor)
        return f'<path class="rule" d="M{at:.1f} {y.start:.1f}V{y.end:.1f}"/>{text}'


@dataclass(frozen=True)
class Chart:
    """Marks over two axes; `svg()` is the drawing.

    Ranges are in data values and cover the data by default. The legend stands between title and plot, where it cannot
    cover data; with `end_labels` lines are named at their right end instead. Categories of `Bars` are x = 0, 1, 2, and
    so are `x_names` for other marks. With `x_whole` x counts something, such as steps, and has ticks at whole numbers
    only.
    """

    title: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_percent: bool = False
    y_percent: bool = False
    x_whole: bool = False
    end_labels: bool = False
    width: int = 560
    height: int = 340
    note: str = ""
    x_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(self.marks))
        object.__setattr__(self, "x_names", tuple(self.x_names))
        if self.width < 240 or self.height < 160:
            raise InvalidValue(sentence("size of a chart", (self.width, self.height), "at least (240, 160) pixels"))
        if len({mark.labels for mark in self.marks if isinstance(mark, Bars)}) > 1:
            raise InvalidValue("All Bars of one chart must have the same labels; draw a chart for each set.")
        if self.x_names and any(isinstance(mark, Bars) for mark in self.marks):
            raise InvalidValue("Bars bring their own names; leave x_names out.")
        if self._names and self.x_scale != "linear":
            raise InvalidValue(sentence("x_scale of a chart with named places", self.x_scale, "linear"))
        self._axes()  # a bad scale or range fails here, beside the caller's mistake

    @property
    def _names(self) -> Sequence[str]:
        return next((mark.labels for mark in self.marks if isinstance(mark, Bars)), self.x_names)

    def _extents(self) -> list[tuple[Array, Array]]:
        pairs = (mark.extent() for mark in self.marks)
        return [(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)) for x, y in pairs]

    def _axes(self) -> tuple[Axis, Axis]:
        xs, ys = (np.concatenate([np.zeros(0), *(pair[i] for pair in self._extents())]) for i in (0, 1))
        dotted = any(isinstance(mark, Points) or (isinstance(mark, Line) and mark.markers) for mark in self.marks)
        wanted = (-0.5, len(self.x_names) - 0.5) if self.x_names else self.x_range
        x = Axis.around(xs, self.x_scale, self.x_percent, wanted, 0.02 * (dotted and not self._names))
        return replace(x, whole=self.x_whole), Axis.around(ys, self.y_scale, self.y_percent, self.y_range, 0.05)

    def svg(self, styled: bool = True) -> str:
        """The drawing; `styled=False` leaves `CHART_CSS` to a page that carries it once."""
        painted = list(zip(self.marks, self._colors(), strict=True))
        ended = [(mark, color) for mark, color in painted if self.end_labels and isinstance(mark, Line) and mark.label]
        named = [pair for pair in painted if pair[0].label and not isinstance(pair[0], Rule) and pair not in ended]
        head, top = self._head(named)

        x, y = self._axes()
        y_ticks = y.ticks(min(10, max(4, int((self.height - top - 50) / 26))))
        left = _EDGE + 8 + max(text_width(label) for _, label in y_ticks)
        right = self.width - max([16.0, *(min(24 + text_width(mark.label), self.width / 3) for mark, _ in ended)])
        x_ticks, tilted = self._x_ticks(x, right - left)
        longest = max(text_width(label) for _, label in x_ticks)
        right = right if tilted else min(right, self.width - 4 - text_width(x_ticks[-1][1]) / 2)
        notes = _wrap(self.note, self.width - 2 * _EDGE)
        below = (22 if self.x_label else 4) + (16 * len(notes) + 6 if notes else 0)
        foot = (16 + 0.6 * longest if tilted else 24) + below
        height = max(float(self.height), top + (160 if tilted else 120) + foot)
        x = replace(x, start=max(left, 0.8 * longest) if tilted else left, end=right)
        y = replace(y, start=height - foot, end=top)
        plot = Plot(x, y, self.marks, self._names)

        frame, labels = [], []
        for at, (_, label) in zip(y.place([unit for unit, _ in y_ticks]), y_ticks, strict=True):
            frame.append(f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>')
            labels.append(_text(x.start - 8, at + 4, label, "muted", "end"))
        for at, (_, label) in zip(x.place([unit for unit, _ in x_ticks]), x_ticks, strict=True):
            if tilted:
                turn = f' transform="rotate(-35 {at + 4:.1f} {y.start + 14:.1f})"'
                labels.append(_text(at + 4, y.start + 14, label, "muted", "end", turn))
            else:
                labels.append(_text(at, y.start + 18, label, "muted", "middle"))
            if not self._names:
                frame.append(f'<path class="grid" d="M{at:.1f} {y.start:.1f}V{y.end:.1f}"/>')
        middle = (x.start + x.end) / 2
        labels.append(_text(middle, height - below + 14, _cut(self.x_label, x.end - x.start), "muted", "middle"))
        labels += [_text(_EDGE, height - 9 - 16 * row, line, "muted") for row, line in enumerate(reversed(notes))]
        zero = float(y.levels(0.0))
        if y.inside(zero):
            frame.append(f'<path class="axis" d="M{x.start:.1f} {zero:.1f}H{x.end:.1f}"/>')
        if not any(np.isfinite(x.pixels(a)).any() and np.isfinite(y.pixels(b)).any() for a, b in self._extents()):
            labels.append(_text(middle, (y.start + y.end) / 2, "no data", "muted", "middle"))

        # A nested svg clips without an id, so any number of charts can share a page.
        a, b, w, h = (f"{v:.1f}" for v in (x.start - 1, y.end - 1, x.end - x.start + 2, y.start - y.end + 2))
        clip = f'<svg x="{a}" y="{b}" width="{w}" height="{h}" viewBox="{a} {b} {w} {h}">'
        series = ", ".join(mark.label for mark in self.marks if mark.label)
        about = f"{self.y_label} against {self.x_label}. {f'Shown: {series}. ' if series else ''}{self.note}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="lg" role="img" width="{self.width}" height="{height:.0f}" '
            f'viewBox="0 0 {self.width} {height:.0f}">'
            f"<title>{escape(self.title)}</title><desc>{escape(about)}</desc>"
            + (f"<style>{CHART_CSS}</style>" if styled else "")
            + f'<rect class="surface" width="100%" height="100%"/>{head}{"".join(frame)}{clip}'
            + "".join(f'<g style="--c:{color}">{mark.draw(plot)}</g>' for mark, color in painted)
            + "</svg>"
            + "".join(f'<g style="--c:{color}">{mark.draw_over(plot)}</g>' for mark, color in painted)
            + self._ends(plot, ended)
            + "".join(labels)
            + "</svg>"
        )

    def _colors(self) -> list[str]:
        taken = {mark.color for mark in self.marks}
        free = (slot for slot in count() if slot not in taken)
        colors = []
        for mark in self.marks:
            grey = isinstance(mark, Rule) and mark.color is None
            slot = 0 if grey else next(free) if mark.color is None else mark.color
            colors.append("var(--lg-muted)" if grey else f"var(--lg-c{slot % len(PALETTE['light'])})")
        return colors

    def _head(self, named: Sequence[tuple[Mark, str]]) -> tuple[str, float]:
        """Title, legend and y label from the top down, and where the plot may begin."""
        room = self.width - 2 * _EDGE
        title = _wrap(self.title, room, 17)  # 15 pixels, but bold
        out = [_text(_EDGE, 29 + 20 * row, line, "title") for row, line in enumerate(title)]
        left, top = _EDGE, 11 + 20 * len(title) + (21 if named else 0)
        for mark, color in named:
            label = _cut(mark.label, room - 26)
            if left > _EDGE and left + 26 + text_width(label) > _EDGE + room:
                left, top = _EDGE, top + 18
            out.append(f'<g style="--c:{color}">{mark.swatch(left, top - 4)}</g>{_text(left + 26, top, label)}')
            left += 42 + text_width(label)
        out.append(_text(_EDGE, top + 22, _cut(self.y_label, room), "muted"))
        return "".join(out), top + 37.0

    def _x_ticks(self, axis: Axis, room: float) -> tuple[list[tuple[float, str]], bool]:
        """As many ticks as fit without touching, and whether the names of categories must be tilted for it."""
        if self._names:
            slot = room / len(self._names)
            every = math.ceil(NAME_ROW / slot)
            # Cut from the front: the end of a layer's name is what tells it from the others.
            ticks = [
                (float(i), _cut(name[::-1], LONGEST_NAME)[::-1]) for i, name in enumerate(self._names) if i % every == 0
            ]
            return ticks, any(text_width(label) > slot * every - 8 for _, label in ticks)
        for most in range(10, 3, -1):
            ticks = axis.ticks(most)
            if sum(text_width(label) + 14 for _, label in ticks) <= room:
                break
        return ticks, False

    def _ends(self, plot: Plot, ended: Sequence[tuple[Line, str]]) -> str:
        """Names at the right end of lines, pushed apart, each tied to its line by a short leader."""
        spots: list[tuple[float, float, str, str]] = []
        for mark, color in ended:
            px, py = plot.x.pixels(mark.x), plot.y.pixels(mark.y)
            seen = np.flatnonzero(plot.x.inside(px) & np.isfinite(py))
            if seen.size:
                at = float(np.clip(py[seen[-1]], plot.y.end, plot.y.start))
                spots.append((at, float(px[seen[-1]]), mark.label, color))
        spots.sort()
        rows: list[float] = []
        ceiling = -math.inf
        for spot in spots:
            rows.append(max(spot[0], ceiling))
            ceiling = rows[-1] + 15
        floor = plot.y.start
        for i in reversed(range(len(rows))):
            rows[i] = min(rows[i], floor)
            floor = rows[i] - 15
        return "".join(
            f'<path style="--c:{color}" class="edge" d="M{start:.1f} {at:.1f}L{plot.x.end + 12:.1f} {row:.1f}"/>'
            + _text(plot.x.end + 16, row + 4, _cut(label, self.width - plot.x.end - 18))
            for (at, start, label, color), row in zip(spots, rows, strict=True)
        )
