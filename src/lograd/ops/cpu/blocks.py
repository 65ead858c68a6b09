"""Blocks of neighbours that share a scale, by the native kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import native
from ..codings import block_coding_of, compiled_block_coding_of
from ..contracts import COUNTS, FLOAT_TYPES
from ..layouts import in_layout_of, rows_and_columns
from ..reference.blocks import scales_shape
from ..registry import add_kernel
from ..writers import add_writer


def _quantize(
    x: Tensor, y: Tensor | None, codes: Tensor | None, scales: Tensor | None, tensor_scale: Tensor, format: str,
    stochastic: bool, unbiased: bool, key: Tensor,
) -> Tensor:  # fmt: skip
    source, counts = x.contiguous(), x.new_zeros(COUNTS, dtype=torch.int64)
    address, (rows, columns) = native.address, rows_and_columns(x)
    n, blocks = rows * columns, rows * block_coding_of(format, unbiased).per_row(columns)
    native.kernel("quantize_blocks")(
        compiled_block_coding_of(format, unbiased), FLOAT_TYPES[x.dtype], address("x", source, x.dtype, n),
        0 if y is None else address("out", y, x.dtype, n),
        0 if codes is None else address("codes", codes, torch.uint8, n),
        0 if scales is None else address("scales", scales, torch.uint8, blocks), rows, columns,
        address("tensor_scale", tensor_scale, torch.float32, 1), torch.finfo(x.dtype).max, stochastic, unbiased,
        address("key", key, torch.int64, 2), torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS),
    )  # fmt: skip
    return counts


def quantize_blocks(out: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor]:
    """The writer of values."""
    return (_quantize(x, out, None, None, *rest),)


def quantize_block_codes(x: Tensor, tensor_scale: Tensor, format: str, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel of `quantize_block_codes`."""
    codes = x.new_empty(x.shape, dtype=torch.uint8)
    scales = x.new_empty(scales_shape(x, block_coding_of(format, rest[1]).size), dtype=torch.uint8)
    counts = _quantize(x, None, codes, scales, tensor_scale, format, *rest)
    return in_layout_of(x, codes), scales, counts


def dequantize_block_codes(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, unbiased: bool, dtype: torch.dtype
) -> Tensor:
    """The kernel of `dequantize_block_codes`."""
    source, per_block = codes.contiguous(), scales.contiguous()
    y = codes.new_empty(codes.shape, dtype=dtype)
    address, (rows, columns) = native.address, rows_and_columns(codes)
    n, blocks = rows * columns, rows * block_coding_of(format, unbiased).per_row(columns)
    native.kernel("dequantize_blocks")(
        compiled_block_coding_of(format, unbiased), address("codes", source, torch.uint8, n),
        address("scales", per_block, torch.uint8, blocks), FLOAT_TYPES[dtype], address("out", y, dtype, n), rows,
        columns, address("tensor_scale", tensor_scale, torch.float32, 1), torch.finfo(dtype).max, unbiased,
        torch.get_num_threads(),
    )  # fmt: skip
    return in_layout_of(codes, y)


add_writer("quantize_blocks", "cpu", quantize_blocks)
add_kernel("quantize_block_codes", "cpu", quantize_block_codes)
add_kernel("dequantize_block_codes", "cpu", dequantize_block_codes)
