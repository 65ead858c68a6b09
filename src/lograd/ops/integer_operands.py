"""Coded tensors as operands of integer products: levels, and the steps by which they are scaled.

A scale is separable if it can be taken out of a product's sum: one for the tensor, or one for each row of the result.
Scales along the dimension that is summed over are not, unless the other operand was multiplied by them before it was
quantized (`Folded`), or they belong to whole blocks, whose sums are scaled one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue
from ..formats import BlockFormat, parse_format
from .coded import CodedTensor, Folded, ThreeQuarters
from .codings import block_coding_of, levels_of
from .registry import call


class Operand(NamedTuple):
    """The levels of a coded tensor: an element is (code - zero) step, divided by its channel's factor if folded."""

    name: str
    """The word for it in a message."""
    codes: Tensor
    """uint8, in the shape of the tensor; as a matrix with the blocks in its rows where there are blocks."""
    zero: int
    step: Tensor
    """float32: one for the tensor, or one for each row (first dimension)."""
    folded: Folded | None = None
    blocks: Tensor | None = None
    """float32 (rows, blocks): the scale of each block."""
    size: int = 0
    """Elements in a block."""

    @property
    def by_row(self) -> bool:
        """True if rows have scales of their own."""
        return self.step.numel() > 1


class Fold(NamedTuple):
    """The factors of a gradient's channels that stand for the steps of a weight, over which dX sums."""

    factors: Tensor
    """float32: the steps over `unit`; 0 for outputs whose weights are all zero, which are no part of dX."""
    unit: float
    """A power of two near the largest step, by which dX is multiplied: the bits are those of the steps themselves, but
    the product with a small gradient does not underflow."""


def fold_by(step: Tensor) -> Fold:
    """Return the factors for a weight with one step for each output."""
    step = torch.where(step > 0, step, 0.0)  # NaN, the step of weights that are not finite, becomes 0, too
    largest = float(step.max()) if step.numel() else 0.0
    unit = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0
    return Fold(step / unit, unit)


def check_coded(**operands: object) -> None:
    """Refuse an operand that is no coded tensor."""
    for name, coded in operands.items():
        if not isinstance(coded, CodedTensor):
            raise InvalidType(f"{name} must be a CodedTensor; got an object of type {type(coded).__name__}.")


def operand(name: str, coded: CodedTensor, summed: Sequence[int]) -> Operand:
    """The levels of a coded tensor; refused, with the reason, where it has none.

    Args:
        name: the word for it in a message.
        summed: the dimensions of the tensor that the product sums over.
    """
    folded = next((step for step in coded.transform if isinstance(step, Folded)), None)
    others = [step for step in coded.transform if step is not folded and not isinstance(step, ThreeQuarters)]
    if others:
        raise InvalidValue(
            f"codes of {name} are not those of its elements, which were transformed ({type(others[0]).__name__}) "
            "before they were rounded."
        )
    if coded.block_scales is not None:
        return _in_blocks(name, coded, coded.block_scales, summed)
    codes = coded.layout.shaped(coded.in_bytes())
    if coded.zero is None:
        levels = levels_of(coded.format)
        if not levels.identity:
            codes = call("code_levels", codes, coded.format)
        return Operand(name, codes, levels.zero, levels.factor / coded.scale, folded)
    return Operand(name, codes, _zero_of(name, coded.zero), _step_of(name, coded, codes), folded)


def _zero_of(name: str, zero: Tensor) -> int:
    """The whole number that all rows have as the code of zero."""
    value = float(zero.reshape(-1)[0]) if zero.numel() else 0.0
    if zero.numel() > 1 and not bool((zero == value).all()):
        raise InvalidValue(f"rows of {name} have different codes for zero; integer products take one for all.")
    if not (value.is_integer() and 0 <= value <= 255):
        raise InvalidValue(f"the code of zero of {name} must be a whole number from 0 to 255; got {value:g}.")
    return int(value)


def _step_of(name: str, coded: CodedTensor, codes: Tensor) -> Tensor:
    """1 / scale; NaN where a code is beyond the format, as that is a NaN among codes that count from `low` up."""
    step = coded.scale.reciprocal()
    if coded.low is None:
        return step
    if bool((coded.low != 0).any()):  # a NaN is none
        raise InvalidValue(f"codes of {name} count from a `low` that is not zero, so they are no multiples of a step.")
    if coded.largest_code < 255 and codes.numel():
        step = torch.where(codes.max() > coded.largest_code, torch.nan, step)
    return step


def _in_blocks(name: str, coded: CodedTensor, scales: Tensor, summed: Sequence[int]) -> Operand:
    """A matrix whose rows are whole blocks along the dimensions that are summed over."""
    format = parse_format(coded.format)
    assert isinstance(format, BlockFormat)
    layout, dims = coded.layout, len(coded.layout.shape)
    last = layout.order if layout.order is not None else tuple(range(dims))
    lengths = [layout.shape[dim] for dim in summed]
    columns = layout.columns if layout.order is not None else (layout.shape[-1] if dims else 1)
    if tuple(last[dims - len(summed) :]) != tuple(summed) or torch.Size(lengths).numel() != columns:
        raise InvalidValue(
            f"blocks of {name} lie along another dimension than the product sums over, so their scales are not "
            "separable; quantize it for this product."
        )
    codes, levels = coded.in_bytes(), levels_of(coded.format)
    if not levels.identity:
        codes = call("code_levels", codes, coded.format)
    blocks = -(-columns // format.size)
    rows = codes.numel() // codes.shape[-1] if codes.numel() else 0
    matrix = codes.reshape(rows, codes.shape[-1] if dims else 1)[:, :columns]
    matrix = torch.nn.functional.pad(matrix, (0, blocks * format.size - columns), value=levels.zero)
    values = _scale_table(coded.format, scales.device)[scales.reshape(rows, -1)[:, :blocks].long()]
    unbiased = any(isinstance(step, ThreeQuarters) for step in coded.transform)
    step = coded.scale * (levels.factor * 4 / 3 if unbiased else levels.factor)
    return Operand(name, matrix, levels.zero, step, None, values, format.size)


@lru_cache(maxsize=64)
def _scale_table(format: str, device: torch.device) -> Tensor:
    return block_coding_of(format, False).scale.table(device)
