"""BatchNorm in training by csrc's native kernels, with all threads of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import native
from ..reference.normalization import Gradients, Normalized, Statistics, in_memory, laid_as, mask_size, planes_of
from ..registry import add_kernel


def _sizes(x: Tensor) -> dict[str, Any]:
    """How a tensor lies in memory; where each image has one place, channels are always side by side."""
    size = planes_of(x)
    last = size.images != x.shape[0] or not x.is_contiguous()
    return {**size._asdict(), "last": last, "threads": torch.get_num_threads()}


def _vectors(**vectors: Tensor | None) -> tuple[dict[str, int], list[Tensor]]:
    """Addresses of float32 vectors, 0 for those that are not there; and the tensors, which must live as long."""
    kept = [one.contiguous() for one in vectors.values() if one is not None]
    found = iter(kept)
    return {
        name: 0 if one is None else native.address(name, next(found), torch.float32, one.numel())
        for name, one in vectors.items()
    }, kept


def batch_statistics(x: Tensor, epsilon: float) -> Statistics:
    """The kernel of `batch_statistics`."""
    x = in_memory(x)
    mean, variance, inverse = (x.new_empty(x.shape[1]) for _ in range(3))
    addresses, _ = _vectors(mean=mean, variance=variance, inverse=inverse)
    native.kernel("batch_statistics")(
        x=native.address("x", x, torch.float32, x.numel()), epsilon=epsilon, **addresses, **_sizes(x)
    )
    return mean, variance, inverse


def batch_normalize(
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Normalized:
    """The kernel of `batch_normalize`."""
    x, address, count = in_memory(x), native.address, x.numel()
    residual = None if residual is None else laid_as(x, residual)
    y, mask = torch.empty_like(x), x.new_empty(mask_size(count) if relu else 0, dtype=torch.uint8)
    addresses, _kept = _vectors(mean=mean, inverse=inverse, weight=weight, bias=bias)
    native.kernel("batch_normalize")(
        x=address("x", x, torch.float32, count), y=address("y", y, torch.float32, count),
        residual=0 if residual is None else address("residual", residual, torch.float32, count),
        mask=address("mask", mask, torch.uint8, len(mask)) if relu else 0, **addresses, **_sizes(x),
    )  # fmt: skip
    return y, mask


def batch_normalize_backward(
    g: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, mask: Tensor | None, residual: bool
) -> Gradients:
    """The kernel of `batch_normalize_backward`."""
    x, address, count = in_memory(x), native.address, x.numel()
    g, mask = laid_as(x, g), None if mask is None else mask.contiguous()
    d_x, d_weight, d_bias = torch.empty_like(x), x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    kept = torch.empty_like(x) if residual and mask is not None else x.new_empty(0)
    addresses, _kept = _vectors(mean=mean, inverse=inverse, weight=weight, d_weight=d_weight, d_bias=d_bias)
    native.kernel("batch_normalize_backward")(
        g=address("g", g, torch.float32, count), x=address("x", x, torch.float32, count),
        d_x=address("d_x", d_x, torch.float32, count),
        mask=0 if mask is None else address("mask", mask, torch.uint8, mask_size(count)),
        masked=address("masked", kept, torch.float32, count) if len(kept) else 0, **addresses, **_sizes(x),
    )  # fmt: skip
    return d_x, d_weight, d_bias, kept


add_kernel("batch_statistics", "cpu", batch_statistics)
add_kernel("batch_normalize", "cpu", batch_normalize)
add_kernel("batch_normalize_backward", "cpu", batch_normalize_backward)
