"""Codes and nibbles in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidValue
from ..codings import coding_of
from ..contracts import COUNTS
from ..layouts import dense, empty_for, flat, narrowed
from ..registry import register
from ..writers import register_writer
from .elementwise import quantize


def quantize_codes(out: Tensor, x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> tuple[Tensor]:
    """The writer of codes; gives the numbers of zeros, NaN and saturated elements."""
    coding = coding_of(format)
    y = flat(x).float() * scale.float()
    value, clipped = quantize(y, y.new_ones(()), coding.grid, stochastic, key)
    flat(out).copy_(coding.codes_of(value))
    return (torch.stack([(value == 0).sum(), value.isnan().sum(), torch.as_tensor(clipped, device=x.device)]),)


def dequantize_codes(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    """The value of each code, divided by the scale."""
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    value = coding_of(format).table(codes.device)[flat(codes).long()]
    flat(out).copy_(narrowed(value / scale.float(), dtype))
    return out


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two codes to a byte."""
    if bool((codes > 15).any()):
        raise too_wide()
    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return (codes[..., 0::2] | codes[..., 1::2] << 4).clone(memory_format=torch.contiguous_format)


def unpack_nibbles(packed: Tensor, length: int) -> Tensor:
    """The codes of `pack_nibbles`."""
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return pairs[..., :length].clone(memory_format=torch.contiguous_format)


def packed_shape(codes: Tensor) -> Tensor:
    """Room for the bytes that hold these codes in pairs."""
    return codes.new_empty((*codes.shape[:-1], (codes.shape[-1] + 1) // 2))


def too_wide() -> InvalidValue:
    """The error where a code has more than 4 bits."""
    return InvalidValue("a code is larger than 15, so two of them do not fit into a byte; pack codes of 4-bit formats.")


def check_packable(codes: Tensor) -> None:
    """Refuses codes without a dimension."""
    if not codes.dim():
        raise InvalidValue("codes must have at least one dimension to be packed along; got a tensor without any.")


def check_length(packed: Tensor, length: int) -> None:
    """Refuses a length that the bytes do not hold."""
    if not packed.dim():
        raise InvalidValue("packed must have at least one dimension to be unpacked along; got a tensor without any.")
    if length < 0:
        raise InvalidValue(f"length must be a number of codes, 0 or more; got {length}.")
    n = packed.shape[-1]
    if (length + 1) // 2 != n:
        raise InvalidValue(f"{n} bytes hold {2 * n} or {max(2 * n - 1, 0)} codes of 4 bits; got length={length}.")


def _fake_counts(x: Tensor, scale: Tensor, format: str, *rest: Any) -> tuple[Tensor]:
    coding_of(format)  # refuses a text that is no format
    return (x.new_empty(COUNTS, dtype=torch.int64),)


register_writer(
    "quantize_codes(Tensor x, Tensor scale, str format, bool stochastic, Tensor key) -> (Tensor, Tensor)",
    quantize_codes,
    _fake_counts,
    order="memory",
    dtype=torch.uint8,
)
register(
    "dequantize_codes(Tensor codes, Tensor scale, str format, ScalarType dtype) -> Tensor",
    dequantize_codes,
    None,
    lambda codes, scale, format, dtype: empty_for(codes, dtype),
)
register("pack_nibbles(Tensor codes) -> Tensor", pack_nibbles, None, packed_shape, check_packable)
register(
    "unpack_nibbles(Tensor packed, SymInt length) -> Tensor",
    unpack_nibbles,
    None,
    lambda packed, length: packed.new_empty((*packed.shape[:-1], length)),
    check_length,
)
