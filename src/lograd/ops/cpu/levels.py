"""Codes as levels, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import native
from ..layouts import dense
from ..levels import levels_of
from ..registry import add_kernel


def code_levels(codes: Tensor, format: str) -> Tensor:
    """The kernel of `code_levels`, which looks each code up."""
    codes = dense(codes)
    out, count, address = torch.empty_like(codes), codes.numel(), native.address
    table = levels_of(format).tensor(codes.device)
    native.kernel("look_up")(
        address("codes", codes, torch.uint8, count), address("out", out, torch.uint8, count), count,
        address("table", table, torch.uint8, 256), torch.get_num_threads(),
    )  # fmt: skip
    return out


if native.kernel("look_up") is not None:
    add_kernel("code_levels", "cpu", code_levels)
