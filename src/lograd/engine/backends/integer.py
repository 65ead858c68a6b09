"""Integer products: codes are multiplied as they are, and exact sums scaled once; and what they serve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...ops import scaled_products
from ...ops.geometry import Geometry
from ...ops.integer_operands import Fold
from ...ops.scaled_products import Steps
from ..coding import Codes
from . import by_sample, served

SHORTEST_SUM = 64
"""Products of an output element: below, writing the output takes most of the time, and dense products do that too."""


def output(x: Codes, weight: Codes, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return Y as float32; images lie channels-last."""
    if x.step.numel() > 1:  # rows of a linear layer
        sides = Steps((x.step,)), Steps((weight.step,))
        return scaled_products.matmul(x.codes, weight.codes.t(), x.offset, weight.offset, *sides, bias)
    steps = Steps((x.step, weight.step))
    if geometry.stride:
        return scaled_products.convolution(x.codes, weight.codes, x.offset, weight.offset, steps, bias, geometry)
    return scaled_products.matmul(x.codes, weight.codes.t(), x.offset, weight.offset, None, steps, bias)


def products(
    g: Codes, fold: Fold | None, x: Codes, weight: Codes, geometry: Geometry, need: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dX, dW and dbias as float32; what is not needed has no elements, and images lie channels-last.

    Args:
        g: the gradient.
        fold: factors by which it was multiplied before it was coded, its channels for dX alone, or its rows for dW
            alone; None for none.
        need: which of the three are needed; of a gradient whose codes count from the low end of each sample dX alone.
    """
    d_x, d_weight, d_bias = (g.scale.new_empty(0) for _ in range(3))  # results of an operator are not one tensor
    if g.low is not None:
        return by_sample.input_gradient(g, g.low, fold, weight, geometry, tuple(x.codes.shape)), d_weight, d_bias
    of_x = Steps((g.step, weight.step if fold is None else fold.unit))
    of_weight = Steps((g.step, x.step if fold is None else fold.unit))
    sides = g.offset, weight.offset if need[0] else 0, x.offset if need[1] else 0
    if geometry.stride:
        if need[0]:
            d_x = scaled_products.convolution_input_gradient(
                g.codes, weight.codes, *sides[:2], of_x, geometry, x.codes.shape[2:]
            )
        if need[1]:
            d_weight = scaled_products.convolution_weight_gradient(
                g.codes, x.codes, sides[0], sides[2], of_weight, geometry, weight.codes.shape[2:]
            )
    else:
        if need[0]:
            d_x = scaled_products.matmul(g.codes, weight.codes, *sides[:2], None, of_x, None)
        if need[1]:
            d_weight = scaled_products.matmul(g.codes.t(), x.codes, sides[0], sides[2], of_weight, None, None)
    if need[2]:
        d_bias = channel_sums(g)
    return d_x, d_weight, d_bias


def channel_sums(g: Codes) -> Tensor:
    """Return dbias: the sum of each channel of the gradient, exact but for one rounding and its scale."""
    rows = g.codes if g.codes.dim() == 2 else g.codes.permute(0, 2, 3, 1).reshape(-1, g.codes.shape[1])
    ones = torch.ones(1, rows.shape[0], dtype=torch.uint8, device=rows.device)
    return scaled_products.matmul(ones, rows, 0, g.offset, None, Steps((g.step,)), None).view(-1)


def unserved(shape: Sequence[int], groups: int = 1, transposed: bool = False) -> str | None:
    """Return why a layer with a weight of this shape has no integer products on any machine; None where it has.

    >>> unserved((32, 64, 3, 3))
    >>> unserved((64, 1, 3, 3), groups=64)
    'depthwise: each output sums over too few products to be worth integers'
    """
    depthwise = "each output sums over too few products to be worth integers"
    if reason := served.unserved("integer", depthwise, shape, groups, transposed):
        return reason
    if (summed := math.prod(shape[1:])) < SHORTEST_SUM:
        return f"each output sums over {summed} products; integer products pay from {SHORTEST_SUM} on"
    return None


def unserved_here(x: Tensor) -> str | None:
    """Return why tensors like this one have no integer products on this machine; None where they have."""
    return served.unserved_here("integer", (torch.float32,), x)
