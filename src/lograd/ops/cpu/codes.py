"""Codes and nibbles, by the native kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import native
from ..codings import compiled_coding_of
from ..contracts import COUNTS, FLOAT_TYPES
from ..layouts import dense, rows_and_columns
from ..reference.codes import packed_shape, too_wide
from ..registry import add_kernel
from ..writers import add_writer


def quantize_codes(out: Tensor, x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> tuple[Tensor]:
    """The writer of codes."""
    counts = x.new_zeros(COUNTS, dtype=torch.int64)
    address, n = native.address, x.numel()
    native.kernel("quantize_codes")(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), address("out", out, torch.uint8, n), n,
        address("scale", scale, torch.float32, 1), compiled_coding_of(format), stochastic,
        address("key", key, torch.int64, 2), torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS),
    )  # fmt: skip
    return (counts,)


def dequantize_codes(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    """The kernel of `dequantize_codes`."""
    coding = compiled_coding_of(format)
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    address, n = native.address, codes.numel()
    native.kernel("dequantize_codes")(
        address("codes", codes, torch.uint8, n), FLOAT_TYPES[dtype], address("out", out, dtype, n), n,
        address("scale", scale, torch.float32, 1), coding, torch.get_num_threads(),
    )  # fmt: skip
    return out


def pack_nibbles(codes: Tensor) -> Tensor:
    """The kernel of `pack_nibbles`."""
    codes = codes.contiguous()
    out = packed_shape(codes)
    rows, columns = rows_and_columns(codes)
    if not native.kernel("pack_nibbles")(
        native.address("codes", codes, torch.uint8, rows * columns),
        native.address("packed", out, torch.uint8, rows * ((columns + 1) // 2)), rows, columns, torch.get_num_threads(),
    ):  # fmt: skip
        raise too_wide()
    return out


def unpack_nibbles(packed: Tensor, length: int) -> Tensor:
    """The kernel of `unpack_nibbles`."""
    packed = packed.contiguous()
    out = packed.new_empty((*packed.shape[:-1], length))
    rows, columns = rows_and_columns(out)
    native.kernel("unpack_nibbles")(
        native.address("packed", packed, torch.uint8, rows * ((columns + 1) // 2)),
        native.address("codes", out, torch.uint8, rows * columns), rows, columns, torch.get_num_threads(),
    )  # fmt: skip
    return out


add_writer("quantize_codes", "cpu", quantize_codes)
add_kernel("dequantize_codes", "cpu", dequantize_codes)
add_kernel("pack_nibbles", "cpu", pack_nibbles)
add_kernel("unpack_nibbles", "cpu", unpack_nibbles)
