"""The base class of element formats: a finite set of values, and the cells into which rounding cuts the real line.

The theory needs only the cells of a format, and the kernels only its bits.
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
"""The widest formats whose values can be listed; wider ones still round, encode and decode."""


def check_rounding(rounding: str, valid: tuple[str, ...] = ROUNDINGS) -> None:
    """Refuse a rounding that is not one of the valid ones."""
    if rounding not in valid:
        raise InvalidValue(sentence("rounding", rounding, "one of " + ", ".join(map(repr, valid))))


def check_width(what: str, width: Any, low: int, high: int) -> int:
    """Return `width` as an int from `low` to `high`; NumPy's integers are accepted, bools and floats are refused."""
    expected = f"a whole number from {low} to {high}"
    try:  # under torch.compile, operator.index makes the number a constant
        whole = None if isinstance(width, bool) else operator.index(width)
    except TypeError:
        whole = None
    if whole is None and (isinstance(width, bool | np.bool_) or not isinstance(width, numbers.Real)):
        raise InvalidType(sentence(what, width, expected))
    if whole is None or not low <= whole <= high:
        raise InvalidValue(sentence(what, width, expected))
    return whole


def check_uniform(rounding: str, uniform: float | None) -> float:
    """Return the random draw, without which stochastic rounding is refused: a default of 0 would always truncate."""
    if rounding != "stochastic":
        return 0.0
    if uniform is None or not 0 <= uniform < 1:
        raise InvalidValue(sentence("uniform", uniform, "a draw from [0, 1) for stochastic rounding"))
    return float(uniform)


def round_steps(steps: float, odd: bool, rounding: str, uniform: float) -> int:
    """Round a non-negative number of grid steps to a whole number.

    Args:
        odd: the code just below is odd, so ties go up.
        uniform: a draw from [0, 1), for stochastic rounding.
    """
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
    """Cells of rounding: magnitudes in [edges[i], edges[i + 1]) become points[i]; the last edge is infinity."""

    edges: NDArray[np.float64]
    points: NDArray[np.float64]


class Format(ABC):
    """A number format for single elements: 2**bits codes, some of which stand for the same value or for none."""

    if TYPE_CHECKING:  # a field in one subclass and a property in another

        @property
        def bits(self) -> int:
            """The width of a code."""

    @abstractmethod
    def decode(self, code: int) -> float:
        """Return the value of a code, which may be NaN or infinite."""

    @abstractmethod
    def encode(self, value: float) -> int:
        """Return the code of a value of the format, so that `decode(encode(v)) == v`; refuse other values."""

    @abstractmethod
    def round(
        self, x: float, rounding: Rounding = "nearest", *, saturate: bool = True, uniform: float | None = None
    ) -> float:
        """Return x rounded to a value of the format; NaN stays NaN.

        Args:
            rounding: "nearest" (ties to the even code), "nearest_away" (ties away from zero), "toward_zero" or
                "stochastic".
            saturate: numbers beyond the largest value become the largest; with False they become infinity, or NaN where
                the format has no infinity.
            uniform: a draw from [0, 1) for stochastic rounding, which rounds away from zero where the position inside
                the step plus the draw reaches 1.
        """

    def values(self) -> NDArray[np.float64]:
        """Return every finite value, ascending, with zero once."""
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
        """Return the cells of positive inputs and, where they differ, those of negative inputs.

        Stochastic rounding goes to either end of [points[i], points[i + 1]]; its cells are those of "toward_zero".
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
