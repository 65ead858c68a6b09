"""Gradients of learned ranges by csrc's native kernel, with all threads of PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import native
from ..contracts import FLOAT_TYPES
from ..reference.learned import Gradients, laid_alike
from ..registry import add_kernel


def range_gradients(g: Tensor, x: Tensor, factor: float, low: int, high: int) -> Gradients:
    """The kernel of `range_gradients`."""
    g, x = laid_alike(g, x)
    d_x, total = torch.empty_like(g), g.new_empty(1, dtype=torch.float64)
    address, n = native.address, g.numel()
    native.kernel("range_gradients")(
        FLOAT_TYPES[g.dtype], address("g", g, g.dtype, n), address("x", x, g.dtype, n),
        address("d_x", d_x, g.dtype, n), n, factor, low, high, address("total", total, torch.float64, 1),
        torch.get_num_threads(),
    )  # fmt: skip
    return d_x, total


add_kernel("range_gradients", "cpu", range_gradients)
