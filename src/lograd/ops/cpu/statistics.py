"""Counts and order statistics of a tensor, by the native kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import native
from ..contracts import FLOAT_TYPES
from ..layouts import dense
from ..reference.statistics import SLOTS
from ..registry import add_kernel


def log_histogram(x: Tensor, stride: int) -> Tensor:
    """The kernel of `log_histogram`."""
    x = dense(x)
    table = x.new_zeros(SLOTS, dtype=torch.int64)
    address, n = native.address, x.numel()
    native.kernel("log_histogram")(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), n, stride, torch.get_num_threads(),
        address("table", table, torch.int64, SLOTS),
    )  # fmt: skip
    return table


def kth_magnitude(x: Tensor, k: int) -> Tensor:
    """The kernel of `kth_magnitude`."""
    x = dense(x)
    out = x.new_empty((), dtype=torch.float32)
    address, n = native.address, x.numel()
    native.kernel("kth_magnitude")(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), n, k, torch.get_num_threads(),
        address("out", out, torch.float32, 1),
    )  # fmt: skip
    return out


add_kernel("log_histogram", "cpu", log_histogram)
add_kernel("kth_magnitude", "cpu", kth_magnitude)
