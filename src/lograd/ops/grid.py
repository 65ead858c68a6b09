"""A format as the kernels see it: a handful of numbers that a float kernel and an integer kernel share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..errors import InvalidType, InvalidValue, shown
from ..formats import BlockFormat, FloatFormat, Format, IntFormat


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
    return _cached_grid(_checked(format))


def _checked(format: Format) -> FloatFormat | IntFormat:
    if not isinstance(format, FloatFormat | IntFormat):
        raise InvalidType(f"quantize takes a FloatFormat or an IntFormat; got {shown(format)}.")
    return format


def _grid(format: FloatFormat | IntFormat) -> Grid:
    if format.bits > 8:
        raise InvalidValue(f"quantize takes formats of at most 8 bits; {format} has {format.bits}.")
    if isinstance(format, IntFormat):
        return Grid(True, 0, 0, False, format.max, -format.min)
    if not (format.signed and format.zero and format.subnormals):
        raise InvalidValue(f"quantize takes formats with a sign, a zero and subnormals; {format} lacks one of them.")
    if format.emin - format.mantissa < -100 or format.emax > 100:
        raise InvalidValue(f"{format} reaches beyond 2^-100 to 2^100, where float32 arithmetic is not exact.")
    return Grid(False, format.mantissa, format.emin, (1 - format.emin) % 2 == 0, format.max, format.max)


_cached_grid = lru_cache(maxsize=256)(_grid)


def arguments_of(format: Format) -> tuple[Any, ...]:
    """The grid as the operator's arguments.

    torch.compile follows the computation itself, so that a format may be made inside of what is compiled: it cannot
    look into a cache, nor hand a format that it has only traced to a function that it does not trace.
    """
    if torch.compiler.is_compiling():
        return tuple(_grid(constant(_checked(format))))
    return tuple(grid_of(format))


def constant(format: Any) -> Any:
    """The same format; in compiled code with numbers that are constants there, whatever they were before.

    A format that came from outside may have symbols in place of its numbers, and its class makes constants of them.
    """
    if not torch.compiler.is_compiling():
        return format
    if isinstance(format, BlockFormat):
        return BlockFormat(constant(format.element), format.size, constant(format.scale))
    if isinstance(format, IntFormat):
        return IntFormat(format.bits, format.symmetric, format.signed)
    if isinstance(format, FloatFormat):
        return FloatFormat(
            format.exponent, format.mantissa, format.bias, format.specials, format.signed, format.subnormals,
            format.zero,
        )  # fmt: skip
    return format
