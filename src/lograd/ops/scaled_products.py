"""Integer products times the steps of their operands, for steps of any magnitude.

An exact sum is scaled by one float32 number, the product of two steps.  It may leave float32 where the scaled sum does
not: a sum of 0 stays 0 with steps of 1e20 and 1e25, and a large sum with steps of 1e-20 and 1e-25 is a number.  Where
the product of steps is no ordinary float32 number the kernel gives its sums unscaled, and they are scaled in float64:
slow, and rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .geometry import Geometry
from .registry import call

_SMALLEST, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
_BYTES = 255.0**2
"""No product of two levels is larger."""


class Steps(NamedTuple):
    """The factor of a sum: steps that are multiplied in order, and divided by the factors that a gradient was given."""

    factors: tuple[Tensor | float, ...]
    """The first is a tensor."""
    divisor: Tensor | None = None

    def product(self, largest: float = _LARGEST) -> Tensor | None:
        """The factor as float32; None where it, or a product on the way to it, is not ordinary: too small or too large.

        Zero is ordinary where a step is zero, and so is NaN, where one is NaN.
        """
        found = self._products(torch.float32)
        checked = found if len(found) == 1 and largest < _LARGEST else found[1:]
        if all(_ordinary(each, largest) for each in checked):
            return found[-1]
        sizes = [each.abs() for each in self._products(torch.float64)[-len(checked) :]]
        usual = (((size >= _SMALLEST) & (size <= largest)) | (size == 0) | size.isnan() for size in sizes)
        return found[-1] if all(bool(each.all()) for each in usual) else None

    def exact(self) -> Tensor:
        """The factor as float64, which holds the product of any four float32 numbers."""
        return self._products(torch.float64)[-1]

    def _products(self, dtype: torch.dtype) -> list[Tensor]:
        """The first step, and what it becomes by each of the others and by the divisor."""
        first, *others = self.factors
        assert isinstance(first, Tensor)
        found = [first.to(dtype)]
        for factor in others:
            found.append(found[-1] * factor)
        if self.divisor is not None:
            found.append(found[-1] / self.divisor)
        return found


def matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, rows: Steps | None, columns: Steps | None, bias: Tensor | None
) -> Tensor:
    """The operator `integer_matmul`, with steps of rows and of columns."""
    codes = a, b, a_zero, b_zero
    # The sum is multiplied by the factor of its column first, which must leave room for that of its row.
    room = _LARGEST if rows is None else _LARGEST / (_BYTES * max(a.shape[-1], 1))
    of_rows, of_columns = rows and rows.product(), columns and columns.product(room)
    result: Tensor
    if (rows is None) == (of_rows is None) and (columns is None) == (of_columns is None):
        result = call("integer_matmul", *codes, of_rows, of_columns, bias)
        return result
    factors = [] if columns is None else [columns.exact().reshape(-1)]
    factors += [] if rows is None else [rows.exact().reshape(-1, 1)]
    return _scaled(call("integer_matmul", *codes, None, None, None), factors, bias)


def scaled_convolution(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Steps, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    """The operator `integer_convolution`, with steps of output channels."""
    codes, where = (x, weight, x_zero, weight_zero), lists(geometry)
    scales = columns.product()
    if scales is not None:
        result: Tensor = call("integer_convolution", *codes, scales, bias, *where)
        return result
    along = (-1, *(1,) * (x.dim() - 2))
    sums = call("integer_convolution", *codes, None, None, *where)
    return _scaled(sums, [columns.exact().reshape(along)], None if bias is None else bias.reshape(along))


def convolution_input_gradient(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, step: Steps, geometry: Geometry, size: Sequence[int]
) -> Tensor:
    """The operator `integer_convolution_input_gradient`, with one step for all."""
    codes, where = (g, weight, g_zero, weight_zero), (*lists(geometry), list(size))
    scale = step.product()
    result: Tensor = call("integer_convolution_input_gradient", *codes, scale, *where)
    return result if scale is not None else _scaled(result, [step.exact()])


def convolution_weight_gradient(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Steps, geometry: Geometry, size: Sequence[int]
) -> Tensor:
    """The operator `integer_convolution_weight_gradient`, with steps of output channels."""
    codes, where = (g, x, g_zero, x_zero), (*lists(geometry), list(size))
    scales = rows.product()
    result: Tensor = call("integer_convolution_weight_gradient", *codes, scales, *where)
    return result if scales is not None else _scaled(result, [rows.exact().reshape(-1, *(1,) * (g.dim() - 1))])


def block_matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, step: Steps,
    bias: Tensor | None, size: int,
) -> Tensor:  # fmt: skip
    """The operator `integer_block_matmul`, with one step for all."""
    scale = step.product()
    if scale is not None and _blocks_are_ordinary(a_scales, b_scales, float(scale), a.shape[1], size):
        result: Tensor = call("integer_block_matmul", a, b, a_zero, b_zero, a_scales, b_scales, scale, bias, size)
        return result
    first, second = (
        (codes.double() - zero) * scales.double().repeat_interleave(size, 1)
        for codes, zero, scales in ((a, a_zero, a_scales), (b, b_zero, b_scales))
    )
    return _scaled((first @ second.t()).mul_(step.exact()), [], bias)


def scaled(sums: Tensor, steps: Steps) -> Tensor:
    """Sums times steps of a shape that multiplies them; the sums are overwritten."""
    product = steps.product()
    return sums.mul_(product) if product is not None else _scaled(sums, [steps.exact()])


def lists(geometry: Geometry) -> tuple[list[int], list[int], list[int], int]:
    """The geometry of a convolution as its operators take it."""
    stride, padding, dilation, groups = geometry
    return list(stride), list(padding), list(dilation), groups


def _ordinary(x: Tensor, largest: float) -> bool:
    """True if no element is zero, NaN, subnormal or too large."""
    if x.numel() == 0:
        return True
    low, high = (x, x) if x.numel() == 1 else x.aminmax()  # a step is not negative
    return float(low) >= _SMALLEST and float(high) <= largest


def _blocks_are_ordinary(a: Tensor, b: Tensor, scale: float, k: int, size: int) -> bool:
    """True if sums of blocks, times their scales, neither overflow nor vanish where `scale` would bring them back."""
    if 0 in (a.numel(), b.numel()):
        return True
    (a_low, a_high), (b_low, b_high) = ([float(end) for end in each.aminmax()] for each in (a, b))
    if max(a_high * size, a_high * b_high * k) * _BYTES > _LARGEST:
        return False
    return scale <= 1 or a_low * b_low >= _SMALLEST or min(a_low, b_low) == 0


def _scaled(sums: Tensor, factors: Sequence[Tensor], bias: Tensor | None = None) -> Tensor:
    """Sums times float64 factors, rounded to float32, plus a bias."""
    result = sums.double()
    for factor in factors:
        result = result * factor
    return result.float() if bias is None else result.float() + bias
