"""Limits of a gradient's size, inside which the numbers of its treatments hold; outside it passes through.

A threshold or a scale follows from statistics of an earlier step.  A gradient that is a hundred times smaller or larger
than it was then would be mostly noise, or mostly clipped, and its step would be lost before anybody can react.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..ops.contracts import FLOAT_TYPES, Takes
from ..ops.layouts import is_dense
from ..ops.registry import register
from .slots import READY

LOW, HIGH, OUTSIDE = range(3)
"""Slots of the limits of a gradient: of the mean of |g|, and the gradients so far that were outside."""
BLOCKS = WIDTH = 64
"""A large gradient is judged by so many runs of neighbouring elements, evenly spread, each of this length."""


def sampled_size(x: Tensor) -> float:
    """Return the mean of |x|, of a sample where the tensor is large and lies without gaps in memory.

    >>> sampled_size(torch.tensor([3.0, -5.0]))
    4.0
    """
    count = x.numel()
    if count > BLOCKS * WIDTH and is_dense(x):
        x = x.as_strided((BLOCKS, WIDTH), (count // BLOCKS, 1), x.storage_offset())
    return float(x.abs().mean()) if count else 0.0


def _check_size(x: Tensor, control: Tensor, limits: Tensor) -> None:
    """Let a gradient of another size pass through until `control` says otherwise, and count it.

    NaN and infinities, which loss scaling brings about, say nothing of a size.
    """
    low, high, _ = limits.tolist()
    if not control.tolist()[READY] or not high or x.dtype not in FLOAT_TYPES or low <= sampled_size(x) <= high:
        return
    # Where a few elements are nearly all of a gradient, a sample misses them; so all of it must agree.
    size = float(x.abs().mean(dtype=torch.float64)) if x.numel() else 0.0
    if size and math.isfinite(size) and not low <= size <= high:
        control[READY] = 0
        limits[OUTSIDE] += 1


register(
    "check_size(Tensor x, Tensor(a!) control, Tensor(b!) limits) -> ()",
    _check_size,
    _check_size,
    lambda x, *rest: None,
    takes={
        "x": Takes(),
        "control": Takes((torch.int64,), 2, anywhere=True),
        "limits": Takes((torch.float64,), 3, anywhere=True),
    },
)
