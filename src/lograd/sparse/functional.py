"""linear, conv1d and conv2d of torch.nn.functional with a sparse backward.

The forward is PyTorch's own, autocast included.  In the backward the gradient is pruned as `ops.stochastic_prune` does
it, E[T(g)] = g, and enters both products and the bias; without a threshold it stays as it is and only the zeros that it
has are skipped.  Random numbers are a function of (seed, position): give each step its own seed, or a key tensor (seed,
offset) that you change in place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.autograd import Gradients, Need, differentiable
from ..engine.forms import cast_as_autocast_would
from ..ops.arguments import Scalar, key_of, scalar
from ..ops.sparse_products import sparse_convolution_backward, sparse_linear_backward
from .threshold import Pruning

Pair = int | tuple[int, int]
Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, threshold: Scalar | None = None, seed: int | Tensor = 0
) -> Tensor:
    """x @ weight.T + bias for any leading dimensions."""
    return apply_linear(x, weight, bias, _pruning(x, threshold, seed))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    threshold: Scalar | None = None,
    seed: int | Tensor = 0,
) -> Tensor:
    """A convolution of a batch of images, or of one."""
    geometry = (_pair(stride), _pair(padding), _pair(dilation), groups)
    return apply_convolution(x, weight, bias, geometry, _pruning(x, threshold, seed))


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    *,
    threshold: Scalar | None = None,
    seed: int | Tensor = 0,
) -> Tensor:
    """A convolution of a batch of sequences, or of one."""
    geometry = (_single(stride), _single(padding), _single(dilation), groups)
    return apply_convolution(x, weight, bias, geometry, _pruning(x, threshold, seed))


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, pruning: Pruning) -> Tensor:
    x, weight, bias = cast_as_autocast_would(x, weight, bias)
    return differentiable(x, weight, bias, _Linear(), pruning)


def apply_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pruning: Pruning) -> Tensor:
    x, weight, bias = cast_as_autocast_would(x, weight, bias)
    batched = x.dim() == weight.dim()
    result = differentiable(x if batched else x.unsqueeze(0), weight, bias, _Convolution(geometry), pruning)
    return result if batched else result.squeeze(0)


def _pair(value: Pair) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _single(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _pruning(x: Tensor, threshold: Scalar | None, seed: int | Tensor) -> Pruning:
    key = key_of(seed, 0, x)
    return Pruning(None if threshold is None else scalar("threshold", threshold, x, 0.0), key)


class _Linear(NamedTuple):
    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor, Tensor]:
        return x, weight

    def products(self, g: Tensor, x: Tensor, weight: Tensor, pruning: Pruning, need: Need) -> Gradients:
        return sparse_linear_backward(g, x, weight, *pruning.ready_for(g), need)[:3]


class _Convolution(NamedTuple):
    geometry: Geometry

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation, groups = self.geometry
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, (0,) * len(stride), groups)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor, Tensor]:
        return x, weight

    def products(self, g: Tensor, x: Tensor, weight: Tensor, pruning: Pruning, need: Need) -> Gradients:
        return sparse_convolution_backward(g, x, weight, *pruning.ready_for(g), self.geometry, need)[:3]
