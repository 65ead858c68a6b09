"""BatchNorm in training with a sum and a ReLU in the same pass, and its backward; float32, channels in dimension 1.

    y = max((x - mean) inverse weight + bias + residual, 0)

Each takes two passes over memory at most.  Sums are taken in float64 and in a fixed order, so no result depends on
threads, instruction set or layout.  The gradient passes the ReLU where its bit of a mask says so: the mask has a bit
for each element, in the order of memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType
from .arguments import check_tensor, describe
from .reference.normalization import check_backward, check_images, check_normalize
from .registry import call


class BatchStatistics(NamedTuple):
    """Statistics of the channels of a tensor, in float32."""

    mean: Tensor
    variance: Tensor
    """Biased: the mean of squares."""
    inverse: Tensor
    """1 / sqrt(variance + epsilon)."""


class BatchNormalized(NamedTuple):
    """A normalised tensor, and where a gradient passes its ReLU."""

    result: Tensor
    mask: Tensor
    """uint8, a bit for each element of memory; empty without a ReLU."""


class BatchNormGradients(NamedTuple):
    """The gradients of a BatchNorm."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    residual: Tensor
    """The gradient behind the ReLU, where it was asked for and there is a ReLU; else empty."""


def batch_statistics(x: Tensor, epsilon: float = 1e-5) -> BatchStatistics:
    """Return mean, variance and inverse standard deviation of each channel (dimension 1) of x.

    >>> batch_statistics(torch.tensor([[1.0], [3.0]]), 0.0).mean.item()
    2.0
    """
    _check_floats(x=x)
    check_images(x)
    return BatchStatistics(*call("batch_statistics", x, float(epsilon)))


def batch_normalize(
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> BatchNormalized:
    """Return x normalised by its statistics, with a sum and a ReLU in the same pass.

    Args:
        x: float32 with at least two dimensions, channels in dimension 1.
        mean, inverse: of `batch_statistics`.
        weight, bias: of each channel.
        residual: added before the ReLU; of the shape of x.
        relu: rectify the result, and give the mask that the backward needs.
    """
    _check_floats(x=x, mean=mean, inverse=inverse, weight=weight, bias=bias, residual=residual)
    check_normalize(x, mean, inverse, weight, bias, residual, relu)
    return BatchNormalized(*call("batch_normalize", x, mean, inverse, weight, bias, residual, bool(relu)))


def batch_normalize_backward(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
) -> BatchNormGradients:
    """Return the gradients of `batch_normalize` with respect to x, weight, bias and residual.

    Args:
        g: the gradient of the result.
        x, mean, inverse, weight: as in the forward, with the statistics of x itself.
        mask: of the ReLU, where there was one.
        residual: whether the gradient of the residual is wanted; without a mask it is g, and not given again.
    """
    _check_floats(g=g, x=x, mean=mean, inverse=inverse, weight=weight)
    check_backward(g, x, mean, inverse, weight, mask, residual)
    found = call("batch_normalize_backward", g, x, mean, inverse, weight, mask, bool(residual))
    return BatchNormGradients(*found)


def _check_floats(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None:
            check_tensor(name, tensor)
            if tensor.dtype != torch.float32:
                raise InvalidType(f"{name} must be float32; got {describe(tensor)}.")
