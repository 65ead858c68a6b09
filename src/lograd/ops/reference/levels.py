"""Levels in plain PyTorch: codes of a format as levels, and levels as numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import InvalidValue
from ..contracts import Takes
from ..layouts import dense, empty_for, flat, narrowed
from ..levels import levels_of
from ..registry import register


def code_levels(codes: Tensor, format: str) -> Tensor:
    """The level of each code, plus the format's zero, as a byte."""
    codes = dense(codes)
    out = torch.empty_like(codes)
    flat(out).copy_(levels_of(format).tensor(codes.device)[flat(codes).long()])
    return out


def dequantize_levels(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """(code - zero) / scale, with one of each for the tensor, or one for each row (first dimension)."""
    value = (codes.float() - _of_rows(zero, codes)) / _of_rows(scale, codes)
    return empty_for(codes, dtype).copy_(narrowed(value, dtype))


def _of_rows(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape([-1] + [1] * (x.dim() - 1)) if x.dim() else values.reshape(())


def check_levels(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> None:
    """Refuse scales that are not those of a tensor or of its rows."""
    rows = codes.shape[0] if codes.dim() else 1
    for what, values in (("scale", scale), ("zero", zero)):
        if values.numel() not in (1, rows):
            raise InvalidValue(f"{what} must have one element, or one for each of {rows} rows; got {values.numel()}.")


_FLOAT = Takes((torch.float32,))
register(
    "code_levels(Tensor codes, str format) -> Tensor",
    code_levels,
    None,
    lambda codes, format: empty_for(codes),
)
register(
    "dequantize_levels(Tensor codes, Tensor scale, Tensor zero, ScalarType dtype) -> Tensor",
    dequantize_levels,
    None,
    lambda codes, scale, zero, dtype: empty_for(codes, dtype),
    check_levels,
    {"scale": _FLOAT, "zero": _FLOAT},
)
