"""How tensors lie in memory, and how float32 results become those of a narrower type.

A dense tensor fills a block of memory, in whatever order of its dimensions.  Operators take it as it lies and give a
result of the same layout; a tensor with gaps or overlaps is copied to a contiguous one first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def is_dense(x: Tensor) -> bool:
    """True if the elements fill a block of memory, each once."""
    return x.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense.default(x))


def dense(x: Tensor) -> Tensor:
    """x itself where its elements fill a block of memory, in whatever order; else a contiguous copy."""
    if x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(x):
        return x
    return x.contiguous()


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor in memory order, as a view."""
    return x.as_strided((x.numel(),), (1,))


def empty_for(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A result in the layout of x, contiguous where x has gaps or overlaps; in another type if one is given."""
    return torch.empty_like(x, dtype=dtype) if is_dense(x) else x.new_empty(x.shape, dtype=dtype)


def in_layout_of(x: Tensor, result: Tensor) -> Tensor:
    """A fresh contiguous result, in the layout of x."""
    if x.is_contiguous() or not is_dense(x):
        return result
    out = torch.empty_like(x, dtype=result.dtype)
    return result if out.stride() == result.stride() else out.copy_(result)


def rows_and_columns(x: Tensor) -> tuple[int, int]:
    """The shape of x as rows of its last dimension; a tensor without dimensions is a row of one."""
    columns = x.shape[-1] if x.dim() else 1
    return (x.numel() // columns if columns else 0), columns


def kept_finite(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 that can be rounded to a type without a finite number becoming infinite."""
    if dtype == torch.float32:
        return y
    largest = torch.finfo(dtype).max
    return torch.where(y.isinf(), y, y.clamp(-largest, largest))


def in_type(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 rounded to a type, finite where it was; 16 bits have one NaN for all, float32 keeps those of y.

    PyTorch's own conversion writes NaN as it happens to compute them, which depends on the place in a tensor.
    """
    return y if dtype == torch.float32 else narrowed(y, dtype)


def narrowed(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 rounded to a type, finite where it was, with one NaN for all in every type."""
    y = kept_finite(y, dtype).to(dtype)
    return y.masked_fill(y.isnan(), math.nan)
