"""What every element format shares: a finite set of values, and the cells that rounding cuts the real line into.

A format is a frozen value.  The theory needs nothing of it but its cells; the kernels nothing but its bits.
"""

from __future__ import annotations

import math
import numbers
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidType, InvalidValue, sentence

Rounding = Literal["nearest", "nearest_away", "toward_zero", "stochastic"]
ROUNDINGS: tuple[str, ...] = get_args(Rounding)

MAX_LISTED_BITS = 16
"""Formats up to this width can list their values; wider ones still round, encode and decode."""


def check_rounding(rounding: str, valid: tuple[str, ...] = ROUNDINGS) -> None:
    if rounding not in valid:
        raise InvalidValue(sentence("rounding", rounding, "one of " + ", ".join(map(repr, valid))))


def check_width(what: str, width: Any, low: int, high: int) -> int:
    """`width` as an int; NumPy's integers will do, a bool or a float will not."""
    expected = f"a whole number from {low} to {high}"
    try:  # torch.compile makes a constant of what operator.index is asked for
        whole = None if isinstance(width, bool) else operator.index(width)
    except TypeError:
        whole = None
    if whole is None and (isinstance(width, bool | np.bool_) or not isinstance(width, numbers.Real)):
        raise InvalidType(sentence(what, width, expected))
    if whole is None or not low <= whole <= high:
        raise InvalidValue(sentence(what, width, expected))
    return whole


def check_uniform(rounding: str, uniform: float | None) -> float:
    """The random draw, which stochastic rounding must be given: a silent 0 would always truncate."""
    if rounding != "stochastic":
        return 0.0
    if uniform is None or not 0 <= uniform < 1:
        raise InvalidValue(sentence("uniform", uniform, "a draw from [0, 1) for stochastic rounding"))
    return float(uniform)


def round_steps(steps: float, odd: bool, rounding: str, uniform: float) -> int:
    """A non-negative count of grid steps, made whole; `odd` says whether the code just below it is odd."""
    whole = math.floor(steps)
    fraction = steps - whole
    away = {
        "nearest": fraction > 0.5 or (fraction == 0.5 and odd),
        "nearest_away": fraction >= 0.5,
        "toward_zero": False,
        "stochastic": uniform >= 1 - fraction,
    }[rounding]
    return whole + int(away)


@dataclass(frozen=True, eq=False)
class Cells:
    """Magnitudes in [edges[i], edges[i + 1]) are rounded to points[i]; the last edge is infinity."""

    edges: NDArray[np.float64]
    points: NDArray[np.float64]


class Format(ABC):
    """A number format for single elements: 2**bits codes, some of which stand for the same value or for none."""

    if TYPE_CHECKING:  # a field in one class and a property in another, so it cannot be declared at run time

        @property
        def bits(self) -> int:
            """Width of a code."""

    @abstractmethod
    def decode(self, code: int) -> float:
        """The value that a code stands for (NaN and infinities included)."""

    @abstractmethod
    def encode(self, value: float) -> int:
        """The code of a representable value; `decode(encode(v)) == v`."""

    @abstractmethod
    def round(
        self, x: float, rounding: Rounding = "nearest", *, saturate: bool = True, uniform: float | None = None
    ) -> float:
        """x rounded to a representable value.

        `rounding`: "nearest" (ties to the even code), "nearest_away" (ties away from zero), "toward_zero", or
        "stochastic", which needs `uniform`, a draw from [0, 1), and moves away from zero where the fraction of the step
        that was passed plus the draw reaches 1.
        Values beyond the largest become the largest; with `saturate=False` they become infinity, or NaN where the
        format has no infinity.  NaN stays NaN.
        """

    def values(self) -> NDArray[np.float64]:
        """Every finite value, ascending, zero once."""
        if self.bits > MAX_LISTED_BITS:
            raise InvalidValue(f"{self} has 2**{self.bits} codes; values() lists formats of at most 16 bits.")
        decoded = np.array([self.decode(code) for code in range(2**self.bits)])
        return np.unique(decoded[np.isfinite(decoded)]) + 0.0  # + 0.0 turns a lone -0.0 into 0.0

    @property
    def max(self) -> float:
        """The largest finite value."""
        return float(self.values()[-1])

    @property
    def min_positive(self) -> float:
        """The smallest positive value."""
        values = self.values()
        return float(values[values > 0][0])

    def cells(self, rounding: Rounding = "nearest") -> tuple[Cells, ...]:
        """The cells of positive inputs and, where they differ, those of negative inputs.

        Stochastic rounding goes to either end of [points[i], points[i + 1]], so its cells are those of "toward_zero".
        """
        check_rounding(rounding)
        values = self.values()
        sides = [values[values >= 0]]
        if values[0] < 0 and not np.array_equal(negative := -values[values <= 0][::-1] + 0.0, sides[0]):
            sides.append(negative)
        return tuple(Cells(self._edges(points, rounding), points) for points in sides)

    def _edges(self, points: NDArray[np.float64], rounding: Rounding) -> NDArray[np.float64]:
        between = (points[1:] + points[:-1]) / 2 if rounding.startswith("nearest") else points[1:]
        return np.concatenate([[0.0], between, [np.inf]])
