"""One axis of a chart: its range, its ticks with labels, and where on it a value lands.

A scale is linear or logarithmic.  Whatever it cannot show (NaN, infinities, zero on a log scale) becomes NaN and is not
drawn; it is never an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidValue, sentence
from .svg import Array, number, power

Scale = Literal["linear", "log2", "log10"]
_LIMIT = {"linear": 1e250, "log2": 900.0, "log10": 270.0}
"""The largest magnitude in scale units that is drawn; the margin to the end of float64 keeps sums from overflowing."""
_STRIDES = {2: [2**k for k in range(11)], 10: [1, 2, 5, 10, 20, 50, 100, 200, 500]}
"""Distances between two labelled exponents, by the base of a logarithmic axis."""


def _units(values: ArrayLike, scale: Scale) -> Array:
    """Return values in scale units; NaN where the scale cannot show them."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = array if scale == "linear" else np.log2(array) if scale == "log2" else np.log10(array)
    units = np.where(np.abs(units) < 1e-250, 0.0, units)
    return np.where(np.abs(units) <= _LIMIT[scale], units, np.nan)


def _linear_ticks(low: float, high: float, most: int, percent: bool, smallest: float = 0.0) -> list[tuple[float, str]]:
    """Return at most `most` ticks at multiples of 1, 2 or 5 times a power of ten, labelled with just enough digits."""
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
        """Return the axis that shows the range `wanted`, or all the data if that is None.

        Args:
            pad: the margin around the data, as a share of its span.
        """
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
            # The margin does not cross zero or 100 %: an axis that shows shares above one would puzzle its reader.
            whole = (1.0 if scale == "linear" else 0.0) if percent else math.inf
            stops = [whole] + [0.0] * (scale == "linear")
            margin = pad * (high - low)
            low = max([low - margin] + [stop for stop in stops if stop <= low])
            high = min([high + margin] + [stop for stop in stops if stop >= high])
        return cls(scale, percent, low, high)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return at least one and at most `most` ticks, ascending; each is a place in scale units and its label.

        Args:
            most: 4 or more.
        """
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
        """Return the pixels of places that are given in scale units."""
        share = (np.asarray(units, dtype=np.float64) - self.low) / (self.high - self.low)
        return np.clip(self.start + share * (self.end - self.start), -1e5, 1e5)  # renderers dislike huge numbers

    def pixels(self, values: ArrayLike) -> Array:
        """Return the pixels of values; NaN for those that the scale cannot show."""
        return self.place(_units(values, self.scale))

    def levels(self, values: ArrayLike) -> Array:
        """Return the pixels of values for areas and bars, in which a value that cannot be shown counts as zero.

        On a log scale zero is the start of the axis.
        """
        floor = self.start if self.scale != "linear" else float(self.place(0.0))
        return np.nan_to_num(self.pixels(values), nan=floor)

    def inside(self, pixels: ArrayLike) -> NDArray[np.bool_]:
        """Return which pixels lie between both ends of the axis."""
        middle, half = (self.start + self.end) / 2, abs(self.end - self.start) / 2
        return np.abs(np.asarray(pixels) - middle) <= half + 0.01
