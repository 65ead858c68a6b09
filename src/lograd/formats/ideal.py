"""The idealised quantizer of Eq. 2 in the lognormal paper, which has more values than N bits can encode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue
from .values import Cells, Format, Rounding, check_rounding, check_width, round_steps

DETERMINISTIC = ("nearest", "nearest_away", "toward_zero")
"""Eq. 2 drops small values to zero, so it has no unbiased rounding."""


@final
@dataclass(frozen=True)
class IdealFormat(Format):
    """The quantizer of Eq. 2 of [chmiel2021], exactly as it is printed.

    With L = log2 x and E_max = 2^(exponent - 1): zero for L < -E_max, 2^E_max for L >= E_max, and in between the
    mantissa rounded to multiples of 2^-mantissa.  That is 2^exponent + 1 binades, more than the exponent bits can
    encode, and small values are dropped to zero instead of rounded.  It serves to check the paper against itself; a
    format that N bits can encode is a `FloatFormat`.
    """

    exponent: int
    mantissa: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", check_width("exponent bits", self.exponent, 1, 10))
        object.__setattr__(self, "mantissa", check_width("mantissa bits", self.mantissa, 0, 23))

    @property
    def emax(self) -> int:
        """The exponent of the largest value."""
        return int(2 ** (self.exponent - 1))

    @property
    def bits(self) -> int:
        """The width that the paper counts; the values need a little more."""
        return 1 + self.exponent + self.mantissa

    @property
    def max(self) -> float:
        return 2.0**self.emax

    @property
    def min_positive(self) -> float:
        return 2.0**-self.emax

    def __str__(self) -> str:
        return f"ideal-{self.exponent}-{self.mantissa}"

    def values(self) -> NDArray[np.float64]:
        binades = 2.0 ** np.arange(-self.emax, self.emax)
        positive = np.outer(binades, 1 + np.arange(2**self.mantissa) / 2**self.mantissa).ravel()
        return np.concatenate([[-self.max], -positive[::-1], [0.0], positive, [self.max]])

    def decode(self, code: int) -> float:
        raise InvalidValue(f"{self} is the idealised quantizer of Eq. 2 and has no codes; use FloatFormat for codes.")

    def encode(self, value: float) -> int:
        raise InvalidValue(f"{self} is the idealised quantizer of Eq. 2 and has no codes; use FloatFormat for codes.")

    def round(
        self, x: float, rounding: Rounding = "nearest", *, saturate: bool = True, uniform: float | None = None
    ) -> float:
        check_rounding(rounding, DETERMINISTIC)
        if math.isnan(x):
            return x
        magnitude = abs(x)
        if magnitude >= self.max:
            return math.copysign(self.max if saturate else math.inf, x)
        if magnitude < self.min_positive:
            return math.copysign(0.0, x)
        exponent = math.frexp(magnitude)[1] - 1
        steps = math.ldexp(magnitude, self.mantissa - exponent)
        odd = math.floor(steps) % 2 == 1
        return math.copysign(math.ldexp(round_steps(steps, odd, rounding, 0.0), exponent - self.mantissa), x)

    def cells(self, rounding: Rounding = "nearest") -> tuple[Cells, ...]:
        check_rounding(rounding, DETERMINISTIC)
        return super().cells(rounding)

    def _edges(self, points: NDArray[np.float64], rounding: Rounding) -> NDArray[np.float64]:
        edges = super()._edges(points, rounding)
        edges[1] = self.min_positive  # Eq. 2 drops what lies below to zero instead of rounding it
        return edges
