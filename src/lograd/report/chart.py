"""Charts as SVG text: values in, one string out, without a plotting library.

`Chart` lays out title, legend, axes and notes around its marks (`marks`).  Nothing here knows about gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from ..errors import InvalidValue, sentence
from .axis import Axis, Scale
from .marks import Bars, Line, Mark, Plot, Points, Rule
from .svg import Array, cut, escape, text_at, text_width, wrap
from .theme import CHART_CSS, PALETTE

LONGEST_NAME = 165
"""Pixels of a name on the x axis; a longer one loses its beginning."""
NAME_ROW = 21
"""Pixels between two tilted names, so that they do not touch."""
_EDGE = 14.0
"""Pixels between the border and the text."""


Tick = tuple[float, str]
"""A place on an axis, in scale units, and its label."""


@dataclass(frozen=True)
class _Room:
    """The plot inside its chart, and what stands around it."""

    plot: Plot
    height: float
    """Pixels of the whole chart, which may be more than was asked for."""
    below: float
    """Pixels below the tick labels, for the label of the x axis and the notes."""
    notes: Sequence[str]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    tilted: bool
    """Long names below the x axis are tilted."""


def _clip(plot: Plot) -> str:
    """Return the opening tag of the part that is cut off at the edge of the plot.

    A nested svg clips without an id, so any number of charts can share a page.
    """
    x, y = plot.x, plot.y
    a, b, w, h = (f"{v:.1f}" for v in (x.start - 1, y.end - 1, x.end - x.start + 2, y.start - y.end + 2))
    return f'<svg x="{a}" y="{b}" width="{w}" height="{h}" viewBox="{a} {b} {w} {h}">'


@dataclass(frozen=True)
class Chart:
    """Marks over two axes, drawn by `svg()`.

    The legend stands between title and plot, where it cannot cover data.

    Args:
        marks: what is drawn; the categories of `Bars` stand at x = 0, 1, 2.
        x_range, y_range: in data values; by default they cover the data.
        x_percent, y_percent: label shares as percentages.
        x_whole: x counts something, such as steps, and has ticks at whole numbers only.
        end_labels: name lines at their right end instead of in the legend.
        width, height: pixels; a chart with long names or notes becomes higher.
        note: small text below the chart.
        x_names: names of the places x = 0, 1, 2, for other marks than `Bars`.

    >>> Chart("Loss", "step", "loss", [Line([0, 1, 2], [3.0, 2.0, 1.5])]).svg()[:4]
    '<svg'
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
        """Return the drawing as SVG text.

        Args:
            styled: put `CHART_CSS` inside.  A page with many charts leaves it out and carries it once.
        """
        painted = list(zip(self.marks, self._colors(), strict=True))
        ended = [(mark, color) for mark, color in painted if self.end_labels and isinstance(mark, Line) and mark.label]
        named = [pair for pair in painted if pair[0].label and not isinstance(pair[0], Rule) and pair not in ended]
        head, top = self._head(named)
        room = self._room(top, [mark for mark, _ in ended])
        plot = room.plot
        frame, labels = self._frame(room)
        series = ", ".join(mark.label for mark in self.marks if mark.label)
        about = f"{self.y_label} against {self.x_label}. {f'Shown: {series}. ' if series else ''}{self.note}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="lg" role="img" width="{self.width}" '
            f'height="{room.height:.0f}" viewBox="0 0 {self.width} {room.height:.0f}">'
            f"<title>{escape(self.title)}</title><desc>{escape(about)}</desc>"
            + (f"<style>{CHART_CSS}</style>" if styled else "")
            + f'<rect class="surface" width="100%" height="100%"/>{head}{frame}{_clip(plot)}'
            + "".join(f'<g style="--c:{color}">{mark.draw(plot)}</g>' for mark, color in painted)
            + "</svg>"
            + "".join(f'<g style="--c:{color}">{mark.draw_over(plot)}</g>' for mark, color in painted)
            + self._ends(plot, ended)
            + labels
            + "</svg>"
        )

    def _room(self, top: float, ended: Sequence[Line]) -> _Room:
        """Return how the area below the head is divided between the plot, its ticks and the notes.

        Args:
            top: where the plot may begin.
            ended: lines that are named at their right end.
        """
        x, y = self._axes()
        y_ticks = y.ticks(min(10, max(4, int((self.height - top - 50) / 26))))
        left = _EDGE + 8 + max(text_width(label) for _, label in y_ticks)
        right = self.width - max([16.0, *(min(24 + text_width(mark.label), self.width / 3) for mark in ended)])
        x_ticks, tilted = self._x_ticks(x, right - left)
        longest = max(text_width(label) for _, label in x_ticks)
        right = right if tilted else min(right, self.width - 4 - text_width(x_ticks[-1][1]) / 2)
        notes = wrap(self.note, self.width - 2 * _EDGE)
        below = (22 if self.x_label else 4) + (16 * len(notes) + 6 if notes else 0)
        foot = (16 + 0.6 * longest if tilted else 24) + below
        height = max(float(self.height), top + (160 if tilted else 120) + foot)
        x = replace(x, start=max(left, 0.8 * longest) if tilted else left, end=right)
        y = replace(y, start=height - foot, end=top)
        return _Room(Plot(x, y, self.marks, self._names), height, below, notes, x_ticks, y_ticks, tilted)

    def _frame(self, room: _Room) -> tuple[str, str]:
        """Return the grid, which lies below the marks, and the labels of axes and notes, which lie above them."""
        x, y = room.plot.x, room.plot.y
        frame, labels = [], []
        for at, (_, label) in zip(y.place([unit for unit, _ in room.y_ticks]), room.y_ticks, strict=True):
            frame.append(f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>')
            labels.append(text_at(x.start - 8, at + 4, label, "muted", "end"))
        for at, (_, label) in zip(x.place([unit for unit, _ in room.x_ticks]), room.x_ticks, strict=True):
            if room.tilted:
                turn = f' transform="rotate(-35 {at + 4:.1f} {y.start + 14:.1f})"'
                labels.append(text_at(at + 4, y.start + 14, label, "muted", "end", turn))
            else:
                labels.append(text_at(at, y.start + 18, label, "muted", "middle"))
            if not self._names:
                frame.append(f'<path class="grid" d="M{at:.1f} {y.start:.1f}V{y.end:.1f}"/>')
        middle = (x.start + x.end) / 2
        name = cut(self.x_label, x.end - x.start)
        labels.append(text_at(middle, room.height - room.below + 14, name, "muted", "middle"))
        for row, line in enumerate(reversed(room.notes)):
            labels.append(text_at(_EDGE, room.height - 9 - 16 * row, line, "muted"))
        zero = float(y.levels(0.0))
        if y.inside(zero):
            frame.append(f'<path class="axis" d="M{x.start:.1f} {zero:.1f}H{x.end:.1f}"/>')
        if not any(np.isfinite(x.pixels(a)).any() and np.isfinite(y.pixels(b)).any() for a, b in self._extents()):
            labels.append(text_at(middle, (y.start + y.end) / 2, "no data", "muted", "middle"))
        return "".join(frame), "".join(labels)

    def _colors(self) -> list[str]:
        """Return the colour of each mark, as a CSS variable."""
        taken = {mark.color for mark in self.marks}
        free = (slot for slot in count() if slot not in taken)
        colors = []
        for mark in self.marks:
            grey = isinstance(mark, Rule) and mark.color is None
            slot = 0 if grey else next(free) if mark.color is None else mark.color
            colors.append("var(--lg-muted)" if grey else f"var(--lg-c{slot % len(PALETTE['light'])})")
        return colors

    def _head(self, named: Sequence[tuple[Mark, str]]) -> tuple[str, float]:
        """Return title, legend and y label, which stand above the plot, and where the plot may begin."""
        room = self.width - 2 * _EDGE
        title = wrap(self.title, room, 17)  # 15 pixels, but bold
        out = [text_at(_EDGE, 29 + 20 * row, line, "title") for row, line in enumerate(title)]
        left, top = _EDGE, 11 + 20 * len(title) + (21 if named else 0)
        for mark, color in named:
            label = cut(mark.label, room - 26)
            if left > _EDGE and left + 26 + text_width(label) > _EDGE + room:
                left, top = _EDGE, top + 18
            out.append(f'<g style="--c:{color}">{mark.swatch(left, top - 4)}</g>{text_at(left + 26, top, label)}')
            left += 42 + text_width(label)
        out.append(text_at(_EDGE, top + 22, cut(self.y_label, room), "muted"))
        return "".join(out), top + 37.0

    def _x_ticks(self, axis: Axis, room: float) -> tuple[list[Tick], bool]:
        """Return as many ticks as fit without touching, and True if names must be tilted for that."""
        if self._names:
            slot = room / len(self._names)
            every = math.ceil(NAME_ROW / slot)
            # Cut from the front: layers of one model mostly differ at the end of their names.
            ticks = [
                (float(i), cut(name[::-1], LONGEST_NAME)[::-1]) for i, name in enumerate(self._names) if i % every == 0
            ]
            return ticks, any(text_width(label) > slot * every - 8 for _, label in ticks)
        for most in range(10, 3, -1):
            ticks = axis.ticks(most)
            if sum(text_width(label) + 14 for _, label in ticks) <= room:
                break
        return ticks, False

    def _ends(self, plot: Plot, ended: Sequence[tuple[Line, str]]) -> str:
        """Return the names at the right end of lines, moved apart, each joined to its line by a short leader."""
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
            + text_at(plot.x.end + 16, row + 4, cut(label, self.width - plot.x.end - 18))
            for (at, start, label, color), row in zip(spots, rows, strict=True)
        )
