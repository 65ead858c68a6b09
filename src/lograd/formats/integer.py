"""Integer formats: a uniform grid of whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from ..errors import InvalidValue
from .values import Format, Rounding, check_rounding, check_uniform, check_width, round_steps


@final
@dataclass(frozen=True)
class IntFormat(Format):
    """Whole numbers of `bits` bits in two's complement: int4 is -8 to 7.

    Args:
        bits: width, 2 to 32.
        symmetric: leave out the most negative number, so that int4 is -7 to 7: 2**bits - 1 values.
        signed: False counts from 0 to 2**bits - 1.

    >>> IntFormat(bits=2).values()
    array([-2., -1.,  0.,  1.])
    """

    bits: int
    symmetric: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_width("bits of an integer format", self.bits, 2, 32))
        if self.symmetric and not self.signed:
            raise InvalidValue("symmetric=True needs signed=True: an unsigned integer has no negative side.")

    @property
    def min(self) -> float:
        """The smallest value."""
        return float(-(2 ** (self.bits - 1)) + self.symmetric) if self.signed else 0.0

    @property
    def max(self) -> float:
        return float(2 ** (self.bits - 1) - 1 if self.signed else 2**self.bits - 1)

    @property
    def min_positive(self) -> float:
        return 1.0

    def __str__(self) -> str:
        return ("" if self.signed else "u") + f"int{self.bits}" + (":symmetric" if self.symmetric else "")

    def decode(self, code: int) -> float:
        check_width(f"a code of {self}", code, 0, 2**self.bits - 1)
        value = code - 2**self.bits if self.signed and code >= 2 ** (self.bits - 1) else code
        return float(value) if value >= self.min else math.nan  # the code that `symmetric` leaves out

    def encode(self, value: float) -> int:
        if not (math.isfinite(value) and self.round(value) == value):
            raise InvalidValue(f"{value!r} is not a value of {self}; round it first, or choose a format that has it.")
        return int(value) % int(2**self.bits)

    def round(
        self, x: float, rounding: Rounding = "nearest", *, saturate: bool = True, uniform: float | None = None
    ) -> float:
        check_rounding(rounding)
        draw = check_uniform(rounding, uniform)
        x = float(x)
        if math.isnan(x):
            return x
        rounded = math.inf
        if math.isfinite(x):
            rounded = float(round_steps(abs(x), math.floor(abs(x)) % 2 == 1, rounding, draw))
        rounded = math.copysign(rounded, x)
        clipped = min(max(rounded, self.min), self.max)
        if clipped != rounded and not saturate and not (rounding == "toward_zero" and math.isfinite(x)):
            raise InvalidValue(f"{self} has neither infinity nor NaN, so {x!r} must saturate; use saturate=True.")
        return clipped + 0.0  # an integer has no -0
