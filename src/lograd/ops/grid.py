"""A format as the kernels see it: a handful of numbers that a float kernel and an integer kernel share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..errors import InvalidType, InvalidValue, shown
from ..formats import FloatFormat, Format, IntFormat


class Grid(NamedTuple):
    """Magnitudes are rounded to multiples of 2^(max(exponent, smallest_exponent) - mantissa); of 1 for an integer."""

    integer: bool
    mantissa: int
    smallest_exponent: int
    odd_exponents_up: bool
    """Without mantissa, ties go to the even code: up where the exponent is odd, or (False) where it is even."""
    largest: float
    largest_negative: float


def grid_of(format: Format) -> Grid:
    """The grid of a format of at most 8 bits that rounds gradients: signed, with zero, with subnormals."""
    if not isinstance(format, FloatFormat | IntFormat):
        raise InvalidType(f"quantize takes a FloatFormat or an IntFormat; got {shown(format)}.")
    return _grid_of(format)


@lru_cache(maxsize=256)
def _grid_of(format: FloatFormat | IntFormat) -> Grid:
    if format.bits > 8:
        raise InvalidValue(f"quantize takes formats of at most 8 bits; {format} has {format.bits}.")
    if isinstance(format, IntFormat):
        return Grid(True, 0, 0, False, format.max, -format.min)
    if not (format.signed and format.zero and format.subnormals):
        raise InvalidValue(f"quantize takes formats with a sign, a zero and subnormals; {format} lacks one of them.")
    if format.emin - format.mantissa < -100 or format.emax > 100:
        raise InvalidValue(f"{format} reaches beyond 2^-100 to 2^100, where float32 arithmetic is not exact.")
    return Grid(False, format.mantissa, format.emin, (1 - format.emin) % 2 == 0, format.max, format.max)


def _arguments_of(format: Format) -> tuple[Any, ...]:
    return tuple(grid_of(format))


# A format is a value, so compiled code takes its numbers as constants and does not look into it.
_constant: Any = torch.compiler.assume_constant_result  # torch leaves it untyped
arguments_of: Callable[[Format], tuple[Any, ...]] = _constant(_arguments_of)
"""The grid as the operator's arguments."""
