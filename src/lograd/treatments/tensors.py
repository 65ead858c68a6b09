"""Helpers of treatments that look at the tensor: sums that no number of threads changes, counts, and a matrix view."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..ops import Counted
from ..ops.coded import Layout
from ..ops.layouts import dense

CHUNK = 1024


def steady_sum(x: Tensor) -> Tensor:
    """Return the sum over the last dimension in float64, in an order that depends on its length alone."""
    while x.shape[-1] > CHUNK:
        x = _in_chunks(x).sum(-1, dtype=torch.float64)
    return x.sum(-1, dtype=torch.float64)


def steady_square_sum(x: Tensor) -> Tensor:
    """Return the sum of the squares of a vector in float64, in an order that depends on its length alone."""
    return steady_sum(torch.linalg.vector_norm(_in_chunks(x), dim=-1, dtype=torch.float64) ** 2)


def steady_magnitude_sum(x: Tensor) -> Tensor:
    """Return the sum of the magnitudes of a vector in float64, in an order that depends on its length alone."""
    return steady_sum(torch.linalg.vector_norm(_in_chunks(x), 1, dim=-1, dtype=torch.float64))


def _in_chunks(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % CHUNK
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x).reshape(*x.shape[:-1], -1, CHUNK)


def finite_part(g: Tensor) -> Tensor:
    """Return all elements in one dimension, as float32, zero in place of NaN and infinity."""
    return torch.nan_to_num(dense(g).detach().float(), nan=0.0, posinf=0.0, neginf=0.0).flatten()


def is_finite(g: Tensor) -> bool:
    """Return True if no element is NaN or infinite."""
    # A sum is read off 40 times faster; it is finite only if all elements are, and seldom infinite otherwise.
    return math.isfinite(float(g.detach().sum())) or bool(g.isfinite().all())


def zeros_of(g: Tensor) -> Tensor:
    """Return the number of zeros, as an int64 tensor of no dimensions; ten times faster than a sum of flags."""
    return g.numel() - torch.count_nonzero(g)


def counted(result: Tensor, saturated: Tensor | int = 0) -> Counted:
    """Return a result with its counts: zeros, NaN, and the given number of saturated elements."""
    zeros, nan = zeros_of(result), torch.count_nonzero(result.isnan())
    return Counted(result, torch.stack([zeros, nan, torch.as_tensor(saturated, device=result.device).to(torch.int64)]))


def contracted_last(g: Tensor, contracted: tuple[int, ...]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return g as a matrix whose last dimension is the one that a product sums over, and the way back.

    Without contracted dimensions the last one is taken.
    """
    layout = Layout.summed_last(dense(g), contracted)
    return layout.matrix(g), layout.restore
