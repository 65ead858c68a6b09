"""A format as the kernels see it: a handful of numbers that a float kernel and an integer kernel share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..errors import InvalidType, InvalidValue
from ..formats import FloatFormat, Format, IntFormat


@dataclass(frozen=True)
class Grid:
    """Magnitudes are rounded to multiples of 2^(max(exponent, smallest_exponent) - mantissa); of 1 for an integer."""

    integer: bool
    mantissa: int
    smallest_exponent: int
    odd_exponents_up: bool
    """Without mantissa, ties go to the even code: up where the exponent is odd, or (False) where it is even."""
    largest: float
    largest_negative: float


@lru_cache(maxsize=256)
def grid_of(format: Format) -> Grid:
    """The grid of a format of at most 8 bits that rounds gradients: signed, with zero, with subnormals."""
    if not isinstance(format, FloatFormat | IntFormat):
        raise InvalidType(f"quantize takes a FloatFormat or an IntFormat; got {format!r}.")
    if format.bits > 8:
        raise InvalidValue(f"quantize takes formats of at most 8 bits; {format} has {format.bits}.")
    if isinstance(format, IntFormat):
        return Grid(True, 0, 0, False, format.max, -format.min)
    if not (format.signed and format.zero and format.subnormals):
        raise InvalidValue(f"quantize takes formats with a sign, a zero and subnormals; {format} lacks one of them.")
    if format.emin - format.mantissa < -120 or format.emax > 120:
        raise InvalidValue(f"{format} reaches beyond 2^-120 to 2^120, where float32 arithmetic is not exact.")
    return Grid(False, format.mantissa, format.emin, (1 - format.emin) % 2 == 0, format.max, format.max)
