"""Levels of a tensor for integer products: the definition of `integer_codes` in plain PyTorch, and its declaration.

With z = x or x fold_c (c the channel), and for a range [low, high] that includes 0,

    code = clamp(round(z scale), -zero, B - zero) + zero        and back:    (code - zero) / scale.

Arithmetic on elements is float32, that on ranges float64 with one rounding at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import InvalidValue
from ..contracts import COUNTS, Takes
from ..layouts import dense, flat
from ..registry import register
from .row_passes import rounded

_LARGEST = torch.finfo(torch.float32).max
# A little below float32's largest number, so that every code decodes to a finite one.
_WIDEST = 3.4e38

Results = tuple[Tensor, Tensor, Tensor, Tensor]


def integer_codes(
    x: Tensor,
    limits: Tensor | None,
    fold: Tensor | None,
    fold_dim: int,
    bits: int,
    per_channel: bool,
    symmetric: bool,
    stochastic: bool,
    key: Tensor,
    power_of_two: bool = False,
) -> Results:
    """Codes, parameters (2, rows), the range found (2, rows) and counts; see `ops.pack_integers`."""
    x = dense(x)
    z = _as_laid(x, x) if fold is None else _as_laid(x, x.float() * _along(x, fold, fold_dim))
    rows = row_count(x, per_channel)
    found, finite = ranges(z.as_strided(x.shape, x.stride()), rows)
    low, high = found if limits is None else limits.reshape(2, rows)
    scale, zero, smallest, largest = level_parameters(low, high, bits, symmetric, power_of_two)
    bins = largest_code(bits, symmetric)

    scales, zeros = (_as_laid(x, _along(x, each, 0)) if rows > 1 else each for each in (scale, zero))
    steps = z * scales
    # A NaN takes the first code; its row decodes to NaN in any case.
    steps = torch.where(steps > -zeros, steps, -zeros)
    steps = torch.where(steps < bins - zeros, steps, bins - zeros)
    level = torch.copysign(rounded(steps.abs(), stochastic, key), steps)
    codes = empty_codes(x).copy_((level + zeros).to(torch.uint8).as_strided(x.shape, x.stride()))

    # A row without a range has no levels but zero: its step is 0, so that it is no part of any product.
    empty = (low >= 0) & (high <= 0)
    visible = torch.where(finite, torch.where(empty, torch.inf, scale), torch.nan)
    known = ~visible.isnan()
    size = x.numel() // max(rows, 1)
    per_row = z.as_strided(x.shape, x.stride()).reshape(rows, size)
    outside = (per_row < smallest[:, None]) | (per_row > largest[:, None])
    same = codes.reshape(rows, size) == zero[:, None]
    counts = torch.stack([(same & known[:, None]).sum(), (~known).sum() * size, outside.sum(), (x == 0).sum()])
    return codes, torch.stack([visible, zero]), found, counts


def ranges(z: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(2, rows) float32: smallest and largest finite element of each row, 0 without any; and True where all are."""
    matrix = z.reshape(rows, z.numel() // max(rows, 1))
    finite = matrix.isfinite()
    if matrix.shape[1] == 0:
        return z.new_zeros(2, rows), finite.all(1)
    some = finite.any(1)
    low = torch.where(some, torch.where(finite, matrix, torch.inf).amin(1), 0.0)
    high = torch.where(some, torch.where(finite, matrix, -torch.inf).amax(1), 0.0)
    return torch.stack([low, high]) + 0.0, finite.all(1)  # -0.0 becomes 0.0


def level_parameters(
    low: Tensor, high: Tensor, bits: int, symmetric: bool, power_of_two: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """float32 scale, zero and the values of the first and the last code, for ranges that are widened to include 0.

    Every code counts: of the two whole numbers beside -low B / (high - low), `zero` is the one that gives the larger
    scale under which both ends of the range have a code.  A scale that shall be a power of two is the next one below.
    A range that is not finite has a scale of NaN.
    """
    low, high = low.double().clamp(max=0.0), high.double().clamp(min=0.0)
    last = float(largest_code(bits, symmetric))
    bins = torch.full_like(low, last)
    if symmetric:
        zero = bins / 2
        wide = _quotient(zero, torch.maximum(-low, high))
    else:
        below = (-low * bins / (high - low)).floor().clamp(1.0, last - 1.0)
        above = torch.minimum(below + 1, bins - 1)
        first, second = (torch.minimum(_quotient(each, -low), _quotient(bins - each, high)) for each in (below, above))
        zero = torch.where(second > first, above, below)
        wide = torch.maximum(first, second)
        # One-sided ranges: zero is the first or the last code.
        zero = torch.where(low < 0, zero, 0.0)
        wide = torch.where(low < 0, wide, _quotient(bins, high))
        zero = torch.where((low < 0) & (high <= 0), bins, zero)
        wide = torch.where((low < 0) & (high <= 0), _quotient(bins, -low), wide)
    scale = wide.clamp(max=_LARGEST)
    least = torch.maximum(zero, bins - zero) / torch.full_like(scale, _WIDEST)
    if power_of_two:
        scale, least = _power_below(scale), 2 * _power_below(least)
    scale = torch.maximum(scale, least)
    proper = low.isfinite() & high.isfinite()
    scale = torch.where(proper, scale, torch.nan).float()
    zero = torch.where(proper, zero, bins / 2 if symmetric else 0.0)
    smallest, largest = -zero / scale.double(), (bins - zero) / scale.double()
    smallest = torch.where(proper, torch.minimum(low, smallest), -_LARGEST)
    largest = torch.where(proper, torch.maximum(high, largest), _LARGEST)
    return scale, zero.float(), smallest.float(), largest.float()


def _power_below(x: Tensor) -> Tensor:
    """The largest power of two that is at most x, which is positive and finite."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 1)


def _quotient(steps: Tensor, width: Tensor) -> Tensor:
    """steps / width; the largest float64 where the width is 0, so that the other side of a range decides."""
    return torch.where(width > 0, steps / width, torch.finfo(torch.float64).max)


def largest_code(bits: int, symmetric: bool) -> int:
    """The last code: one less where there are as many levels below zero as above."""
    return int(2**bits - (2 if symmetric else 1))


def row_count(x: Tensor, per_channel: bool) -> int:
    """The number of ranges."""
    return x.shape[0] if per_channel else 1


def empty_codes(x: Tensor) -> Tensor:
    """Codes without elements: images, which have four dimensions, lie channels-last, all else contiguously."""
    memory = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    return torch.empty(x.shape, dtype=torch.uint8, device=x.device, memory_format=memory)


def _along(x: Tensor, values: Tensor, dim: int) -> Tensor:
    """A list along one dimension of x, to be broadcast with it."""
    return values.reshape([-1 if place == dim else 1 for place in range(x.dim())])


def _as_laid(x: Tensor, values: Tensor) -> Tensor:
    """float32 values, broadcast to the shape of x, in the memory order of x and in one dimension."""
    laid = torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device=x.device)
    return flat(laid.copy_(values))


def check_integers(
    x: Tensor,
    limits: Tensor | None,
    fold: Tensor | None,
    fold_dim: int,
    bits: int,
    per_channel: bool,
    symmetric: bool,
    stochastic: bool,
    key: Tensor,
    power_of_two: bool = False,
) -> None:
    """Refuses lists that do not fit the tensor."""
    if per_channel and not x.dim():
        raise InvalidValue("per='channel' needs a tensor with channels, its first dimension; got one without any.")
    rows = row_count(x, per_channel)
    if limits is not None and limits.numel() != 2 * rows:
        expected = "a pair, low and high" if rows == 1 else f"of shape (2, {rows}), low and high of each channel"
        raise InvalidValue(f"range must be {expected}; got shape {tuple(limits.shape)}.")
    if fold is None:
        return
    if not 0 <= fold_dim < x.dim():
        raise InvalidValue(f"fold_dim must be a dimension of x, which has {x.dim()}; got {fold_dim}.")
    if tuple(fold.shape) != (x.shape[fold_dim],):
        wanted = f"one factor for each of {x.shape[fold_dim]} channels (dimension {fold_dim} of x)"
        raise InvalidValue(f"fold must be {wanted}; got shape {tuple(fold.shape)}.")


def _fake(
    x: Tensor, limits: Tensor | None, fold: Tensor | None, fold_dim: int, bits: int, per_channel: bool, *rest: object
) -> Results:
    rows = row_count(x, per_channel)
    return (
        empty_codes(x),
        x.new_empty((2, rows), dtype=torch.float32),
        x.new_empty((2, rows), dtype=torch.float32),
        x.new_empty(COUNTS + 1, dtype=torch.int64),
    )


register(
    "integer_codes(Tensor x, Tensor? limits, Tensor? fold, int fold_dim, int bits, bool per_channel, bool symmetric,"
    " bool stochastic, Tensor key, bool power_of_two=False) -> (Tensor, Tensor, Tensor, Tensor)",
    integer_codes,
    None,
    _fake,
    check_integers,
    {"limits": Takes((torch.float32,)), "fold": Takes((torch.float32,))},
)
