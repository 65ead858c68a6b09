"""Codes as levels, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ...formats import IntFormat, parse_format
from ..layouts import dense, flat
from ..levels import levels_of
from ..registry import add_kernel


def code_levels(codes: Tensor, format: str) -> Tensor:
    """The kernel of `code_levels`: the sign bit turned over in integers, Python's own table of bytes otherwise."""
    codes = dense(codes)
    parsed, levels = parse_format(format), levels_of(format)
    if isinstance(parsed, IntFormat) and not parsed.symmetric:  # two's complement
        return codes ^ levels.zero
    out = torch.empty_like(codes)
    if codes.numel():
        looked_up = bytearray(flat(codes).numpy().data).translate(levels.table)
        flat(out).copy_(torch.frombuffer(looked_up, dtype=torch.uint8))
    return out


add_kernel("code_levels", "cpu", code_levels)
