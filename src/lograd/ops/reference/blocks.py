"""Blocks of neighbours that share a scale, in plain PyTorch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidValue
from ..codings import BlockCoding, block_coding_of
from ..contracts import COUNTS
from ..layouts import empty_for, in_layout_of, narrowed, rows_and_columns
from ..registry import register
from ..writers import register_writer
from .elementwise import quantize


class Rounded(NamedTuple):
    """Rows of element values, NaN where a block became NaN; blocks of scale codes; how many elements were cut off."""

    value: Tensor
    scale_codes: Tensor
    clipped: Tensor


def round_blocks(
    x: Tensor, tensor_scale: Tensor, coding: BlockCoding, stochastic: bool, unbiased: bool, key: Tensor
) -> Rounded:
    """Q(x / (t s)), or Q(3/4 x / (t s)), of float32 rows; NaN in a block that held NaN or infinity."""
    rows, columns = x.shape
    y = x / tensor_scale
    blocks = coding.per_row(columns)
    padded = torch.nn.functional.pad(y.abs(), (0, blocks * coding.size - columns))
    scale_codes = _scale_codes(padded.reshape(rows, blocks, coding.size).amax(-1), coding)
    s = _per_element(coding.scale.table(x.device)[scale_codes.long()], coding, columns)
    y = torch.where(s == 0, 0.0, y / s)
    if unbiased:
        y = y * 0.75
    one = x.new_ones(())
    value, clipped = quantize(y.flatten(), one, coding.element.grid, stochastic, key)
    value = value.reshape(rows, columns)
    if not coding.element.negative_zero:
        value = value + 0.0  # -0.0 becomes 0.0
    return Rounded(value, scale_codes, torch.as_tensor(clipped, device=x.device))


def restored(
    value: Tensor, scale_codes: Tensor, tensor_scale: Tensor, coding: BlockCoding, unbiased: bool, dtype: torch.dtype
) -> Tensor:
    """t s value, or 4/3 of it, within the finite numbers of `dtype`."""
    if unbiased:
        value = value / value.new_full((), 0.75)
    s = _per_element(coding.scale.table(value.device)[scale_codes.long()], coding, value.shape[-1])
    largest = torch.finfo(dtype).max
    return (value * s * tensor_scale).clamp(-largest, largest)


def _scale_codes(largest: Tensor, coding: BlockCoding) -> Tensor:
    finite = largest.isfinite()
    m = torch.where(finite, largest, 0.0)
    if coding.power_of_two:
        exponent = torch.frexp(m).exponent - 1 - coding.element_emax
        exponent = torch.where(m > 0, exponent, coding.scale_emin).clamp(coding.scale_emin, coding.scale_emax)
        codes = exponent - coding.scale_emin
    else:
        ideal = (m / m.new_full((), coding.element.grid.largest)).flatten()
        one = m.new_ones(())
        value, _ = quantize(ideal, one, coding.scale.grid, False, torch.zeros(2, dtype=torch.int64, device=m.device))
        codes = coding.scale.codes_of(value).reshape(m.shape).int()
    return torch.where(finite, codes, coding.scale.nan).to(torch.uint8)


def _per_element(scales: Tensor, coding: BlockCoding, columns: int) -> Tensor:
    return scales.repeat_interleave(coding.size, -1)[:, :columns]


def quantize_blocks(
    out: Tensor, x: Tensor, tensor_scale: Tensor, format: str, stochastic: bool, unbiased: bool, key: Tensor
) -> tuple[Tensor]:
    """The writer of values; gives the numbers of zeros, NaN and cut-off elements."""
    coding, t = block_coding_of(format, unbiased), tensor_scale.float()
    rounded = round_blocks(_rows(x).float(), t, coding, stochastic, unbiased, key)
    y = restored(rounded.value, rounded.scale_codes, t, coding, unbiased, x.dtype)
    out.copy_(narrowed(y, x.dtype).reshape(x.shape))
    return (torch.stack([(y == 0).sum(), y.isnan().sum(), rounded.clipped]),)


def quantize_block_codes(
    x: Tensor, tensor_scale: Tensor, format: str, stochastic: bool, unbiased: bool, key: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of the elements, codes of the scales, and counts."""
    coding = block_coding_of(format, unbiased)
    value, scale_codes, clipped = round_blocks(
        _rows(x).float(), tensor_scale.float(), coding, stochastic, unbiased, key
    )
    codes = torch.where(value.isnan(), 0, coding.element.codes_of(value))
    counts = torch.stack([(value == 0).sum(), value.isnan().sum(), clipped])
    return in_layout_of(x, codes.reshape(x.shape)), scale_codes.reshape(scales_shape(x, coding.size)), counts


def dequantize_block_codes(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, unbiased: bool, dtype: torch.dtype
) -> Tensor:
    """The values of `quantize_block_codes`."""
    coding = block_coding_of(format, unbiased)
    value = coding.element.table(codes.device)[_rows(codes).long()]
    blocks = scales.reshape(value.shape[0], coding.per_row(value.shape[1]))
    y = restored(value, blocks, tensor_scale.float(), coding, unbiased, dtype)
    return in_layout_of(codes, narrowed(y, dtype).reshape(codes.shape))


def scales_shape(x: Tensor, size: int) -> tuple[int, ...]:
    """The shape of the scales of x in blocks of this size."""
    return (*x.shape[:-1], (x.shape[-1] + size - 1) // size if x.dim() else 1)


def _rows(x: Tensor) -> Tensor:
    return x.contiguous().reshape(rows_and_columns(x))


def check_scales(codes: Tensor, scales: Tensor, size: int) -> None:
    """Refuses scales that are not one for each block of the codes."""
    blocks = scales_shape(codes, size)
    if scales.shape != blocks:
        raise InvalidValue(
            f"codes of shape {tuple(codes.shape)} in blocks of {size} need scales of shape {blocks}; got "
            f"{tuple(scales.shape)}."
        )


def _fake_counts(x: Tensor, tensor_scale: Tensor, format: str, *rest: Any) -> tuple[Tensor]:
    block_coding_of(format, rest[1])  # refuses a text that is no such format
    return (x.new_empty(COUNTS, dtype=torch.int64),)


def _fake_codes(x: Tensor, tensor_scale: Tensor, format: str, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    scales = x.new_empty(scales_shape(x, block_coding_of(format, rest[1]).size), dtype=torch.uint8)
    return empty_for(x, torch.uint8), scales, x.new_empty(COUNTS, dtype=torch.int64)


_ARGUMENTS = "Tensor x, Tensor tensor_scale, str format, bool stochastic, bool unbiased, Tensor key"
register_writer(f"quantize_blocks({_ARGUMENTS}) -> (Tensor, Tensor)", quantize_blocks, _fake_counts, order="rows")
register(f"quantize_block_codes({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)", quantize_block_codes, None, _fake_codes)
register(
    "dequantize_block_codes(Tensor codes, Tensor scales, Tensor tensor_scale, str format, bool unbiased, "
    "ScalarType dtype) -> Tensor",
    dequantize_block_codes,
    None,
    lambda codes, scales, tensor_scale, format, unbiased, dtype: empty_for(codes, dtype),
    lambda codes, scales, tensor_scale, format, unbiased, dtype: check_scales(
        codes, scales, block_coding_of(format, unbiased).size
    ),
)
