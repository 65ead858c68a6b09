"""Heat maps as SVG text: a matrix of numbers from zero on as cells, the darker the larger, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidValue, sentence
from .svg import Array, cut, escape, number, text_at, text_width, wrap
from .theme import CHART_CSS

DECADES = 4
"""Factors of ten that the shades span, from the largest number down; smaller ones have the lightest."""
LONGEST_NAME = 150
"""Pixels of a name; a longer one loses its beginning, as layers of one model mostly differ at the end."""
NAME_ROW = 14
"""Pixels between two names, so that they do not touch."""
TALLEST, SMALLEST = 34.0, 9.0
"""Pixels of a row."""
_EDGE = 14.0
_FAINTEST = 0.07


@dataclass(frozen=True)
class HeatMap:
    """A matrix with named rows and columns, drawn by `svg()`.

    Args:
        x_names, y_names: of the columns and rows.
        values: one row for each y name; numbers from zero on.  Zeros stay empty.
        width, height: pixels; the rows fit the height where they can, and a map with many of them becomes higher.
        note: small text below.

    >>> HeatMap("Noise", "to", "from", ["a", "b"], ["c"], [[1.0, 0.0]]).svg()[:4]
    '<svg'
    """

    title: str
    x_label: str
    y_label: str
    x_names: Sequence[str]
    y_names: Sequence[str]
    values: ArrayLike
    note: str = ""
    width: int = 560
    height: int = 480

    def __post_init__(self) -> None:
        array = np.asarray(self.values, dtype=np.float64)
        if array.shape != (len(self.y_names), len(self.x_names)) or not array.size:
            raise InvalidValue(
                sentence("values of a heat map", array.shape, f"of shape {(len(self.y_names), len(self.x_names))}")
            )
        if not np.all((array >= 0) & np.isfinite(array)):
            raise InvalidValue("values of a heat map must be finite, zero or positive.")

    def svg(self, styled: bool = True) -> str:
        """Return the drawing as SVG text.

        Args:
            styled: put `CHART_CSS` inside; a page with many drawings carries it once.
        """
        array: Array = np.asarray(self.values, dtype=np.float64)
        rows, columns = array.shape
        names = [_short(name) for name in self.y_names]
        left = _EDGE + 8 + max(map(text_width, names))
        head, top = self._head(array)
        notes = wrap(self.note, self.width - 2 * _EDGE)
        below = [_short(name) for name in self.x_names]
        slant = 16 + 0.6 * max(map(text_width, below))
        foot = slant + 24 + 16 * len(notes)
        size = min(max((self.height - top - foot) / rows, SMALLEST), TALLEST)
        height = top + size * rows + foot
        wide = (self.width - _EDGE - left) / columns
        about = f"{self.y_label}; {self.x_label}. {self.note}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="lg" role="img" width="{self.width}" '
            f'height="{height:.0f}" viewBox="0 0 {self.width} {height:.0f}" style="--c:var(--lg-c0)">'
            f"<title>{escape(self.title)}</title><desc>{escape(about)}</desc>"
            + (f"<style>{CHART_CSS}</style>" if styled else "")
            + f'<rect class="surface" width="100%" height="100%"/>{head}'
            + self._cells(array, left, top, wide, size)
            + _row_names(names, left - 8, top, size)
            + _column_names(below, left, top + size * rows, wide)
            + text_at(left + wide * columns / 2, height - 16 * len(notes) - 9, self.x_label, "muted", "middle")
            + "".join(text_at(_EDGE, height - 9 - 16 * row, line, "muted") for row, line in enumerate(reversed(notes)))
            + "</svg>"
        )

    def _head(self, array: Array) -> tuple[str, float]:
        """Return title, y label and the shades with their numbers, and where the cells may begin."""
        title = wrap(self.title, self.width - 2 * _EDGE, 17)
        out = [text_at(_EDGE, 29 + 20 * row, line, "title") for row, line in enumerate(title)]
        top, left = 34.0 + 20 * len(title), _EDGE
        largest = float(array.max())
        for decade in range(DECADES + 1) if largest > 0 else ():
            value = largest / 10**decade
            label = number(float(f"{value:.2g}")) + (" or less" if decade == DECADES else "")
            if left + 22 + text_width(label) > self.width - _EDGE:
                break
            out.append(_rect(left, top - 10, 14, 12, _shade(value, largest)) + text_at(left + 20, top, label, "muted"))
            left += 34 + text_width(label)
        out.append(text_at(_EDGE, top + 22, cut(self.y_label, self.width - 2 * _EDGE), "muted"))
        return "".join(out), top + 34.0

    def _cells(self, array: Array, left: float, top: float, wide: float, size: float) -> str:
        largest = float(array.max())
        cells = []
        for row, name in enumerate(self.y_names):
            for column, other in enumerate(self.x_names):
                value = float(array[row, column])
                tip = f"{escape(name)} → {escape(other)}: {number(value)}"
                x, y = left + wide * column, top + size * row
                cells.append(_rect(x, y, wide - 1, size - 1, _shade(value, largest), tip))
        return "".join(cells)


def _shade(value: float, largest: float) -> float:
    """Return how dark a number is drawn, from 0 for zero to 1 for the largest."""
    if value <= 0 or largest <= 0:
        return 0.0
    return max(_FAINTEST, 1 + (1 - _FAINTEST) * math.log10(value / largest) / DECADES)


def _rect(x: float, y: float, width: float, height: float, shade: float, tip: str = "") -> str:
    title = f"<title>{tip}</title>" if tip else ""
    return (
        f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill-opacity="{shade:.3f}" stroke="var(--lg-grid)">{title}</rect>'
    )


def _short(name: str) -> str:
    return cut(name[::-1], LONGEST_NAME)[::-1]


def _row_names(names: Sequence[str], right: float, top: float, size: float) -> str:
    every = math.ceil(NAME_ROW / size)
    return "".join(
        text_at(right, top + size * (row + 0.5) + 4, name, "muted", "end")
        for row, name in enumerate(names)
        if row % every == 0
    )


def _column_names(names: Sequence[str], left: float, bottom: float, wide: float) -> str:
    every = math.ceil(1.4 * NAME_ROW / wide)
    out = []
    for column, name in enumerate(names):
        if column % every == 0:
            x = left + wide * (column + 0.5) + 4
            turn = f' transform="rotate(-35 {x:.1f} {bottom + 14:.1f})"'
            out.append(text_at(x, bottom + 14, name, "muted", "end", turn))
    return "".join(out)
