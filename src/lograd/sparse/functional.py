"""linear, conv1d and conv2d of torch.nn.functional with a sparse backward.

The forward is PyTorch's own, autocast included.  In the backward the gradient is pruned as `ops.stochastic_prune` does
it, E[T(g)] = g, and enters both products and the bias; without a threshold it stays as it is and only the zeros that it
has are skipped.  Random numbers are a function of (seed, position): give each step its own seed, or a key tensor (seed,
offset) that you change in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..gradients import DoubleBackward, cast_as_autocast_would
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
    result: Tensor = _Linear.apply(x, weight, bias, *pruning)  # type: ignore[no-untyped-call]
    return result


def apply_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pruning: Pruning) -> Tensor:
    x, weight, bias = cast_as_autocast_would(x, weight, bias)
    batched = x.dim() == weight.dim()
    result: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
        x if batched else x.unsqueeze(0), weight, bias, geometry, *pruning
    )
    return result if batched else result.squeeze(0)


def _pair(value: Pair) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _single(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _pruning(x: Tensor, threshold: Scalar | None, seed: int | Tensor) -> Pruning:
    key = key_of(seed, 0, x)
    return Pruning(None if threshold is None else scalar("threshold", threshold, x, 0.0), key)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *pruning: Any) -> Tensor:
        _save(ctx, x, weight, pruning)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        need, pruning = _ready(ctx, g)
        x, weight = ctx.saved_tensors
        return _wanted(sparse_linear_backward(g, x, weight, *pruning, need), need, 4)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, *pruning: Any) -> Tensor:
        _save(ctx, x, weight, pruning)
        ctx.geometry = geometry
        stride, padding, dilation, groups = geometry
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, (0,) * len(stride), groups)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        need, pruning = _ready(ctx, g)
        x, weight = ctx.saved_tensors
        return _wanted(sparse_convolution_backward(g, x, weight, *pruning, ctx.geometry, need), need, 5)


def _save(ctx: Any, x: Tensor, weight: Tensor, pruning: tuple[Any, ...]) -> None:
    ctx.save_for_backward(x, weight)
    # Not saved: these change between forward and backward, and their present values count.
    ctx.pruning = pruning


def _ready(ctx: Any, g: Tensor) -> tuple[tuple[bool, bool, bool], tuple[Tensor | None, Tensor]]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise DoubleBackward(
            "a sparse backward cannot be differentiated again (create_graph=True); "
            "use the functions of torch.nn.functional for second derivatives."
        )
    return tuple(ctx.needs_input_grad[:3]), Pruning(*ctx.pruning).ready_for(g)


def _wanted(results: tuple[Tensor, ...], need: tuple[bool, ...], others: int) -> tuple[Tensor | None, ...]:
    return *(result if wanted else None for result, wanted in zip(results, need, strict=False)), *(None,) * others
