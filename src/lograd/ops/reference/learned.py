"""Gradients of a tensor and of its learned range in plain PyTorch, from the gradient of the rounded tensor.

Sums are taken in float64 and in a fixed order, which no thread changes: blocks of 1024 elements in memory order, in
each of these 16 sums of the elements i with equal i % 16, and then halves that are added to each other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InvalidValue
from ..contracts import type_name
from ..layouts import dense, flat, in_type
from ..registry import register

BLOCK, LANES = 1024, 16
LARGEST_LEVEL = 255
Gradients = tuple[Tensor, Tensor]


def laid_alike(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors without gaps, and x in memory as g is."""
    g = dense(g)
    return g, x if x.stride() == g.stride() else torch.empty_like(g).copy_(x)


def folded_sum(x: Tensor) -> Tensor:
    """Return the sum over the last dimension: the upper half, which may be shorter, is added to the lower until one
    element is left."""
    while (left := x.shape[-1]) > 1:
        half = (left + 1) // 2
        x = x[..., :half] + F.pad(x[..., half:], (0, 2 * half - left))
    return x[..., 0]


def block_sum(x: Tensor) -> Tensor:
    """Return the sum of a vector in float64, one element, in the order of the module."""
    x = F.pad(x.double(), (0, -x.numel() % BLOCK if x.numel() else BLOCK)).reshape(-1, BLOCK // LANES, LANES)
    lanes = torch.zeros_like(x[:, 0])
    for row in x.unbind(1):
        lanes += row
    return folded_sum(folded_sum(lanes)).reshape(1)


def range_gradients(g: Tensor, x: Tensor, factor: float, low: int, high: int) -> Gradients:
    """Return the gradient of x, which is g inside the range and 0 outside, and that of the step of the levels.

    Levels are low, ..., high, and the step is s = 1 / factor.  With y = x / s and rounding as the identity, the rounded
    x has the derivative round(y) - y by s inside the range, and the last level outside; this times g, summed.
    """
    g, x = laid_alike(g, x)
    steps = x.float() * factor
    inside = (steps >= low) & (steps <= high)
    wide = g.float()
    slopes = (steps.clamp(low, high).round_() - steps.where(inside, 0)).mul_(wide)
    return torch.empty_like(g).copy_(in_type(wide * inside, g.dtype)), block_sum(flat(slopes))


def _check(g: Tensor, x: Tensor, factor: float, low: int, high: int) -> None:
    if g.shape != x.shape or g.dtype != x.dtype:
        raise InvalidValue(
            f"g must be like x, {type_name(x.dtype)} of shape {tuple(x.shape)}; got {type_name(g.dtype)} of shape "
            f"{tuple(g.shape)}."
        )
    if not -LARGEST_LEVEL <= low <= 0 < high <= LARGEST_LEVEL:
        raise InvalidValue(f"levels must lie within -255 and 255, 0 between them; got {low} to {high}.")


register(
    "range_gradients(Tensor g, Tensor x, float factor, int low, int high) -> (Tensor, Tensor)",
    range_gradients,
    None,
    lambda g, x, factor, low, high: (torch.empty_like(dense(g)), g.new_empty(1, dtype=torch.float64)),
    _check,
)
