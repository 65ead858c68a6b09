"""Where the elements of a coded tensor belong: its shape, its strides, and the matrix that was made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Layout:
    """Shape, strides and type of a tensor, and how its codes lie.

    Codes have the shape of the tensor.  Where `order` is given they are a matrix instead: the dimensions of the tensor
    in that order, the last of them as `columns` columns.  A row of codes may be longer than that, as it was filled up
    with zeros to whole blocks.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None = None
    columns: int = 0
    bits: int = 8
    """Bits of a stored code: 8, or 4 where two share a byte."""
    width: int = 0
    """Codes in a row where two share a byte, which holds one or two of them at the end."""

    @classmethod
    def of(cls, x: Tensor) -> Layout:
        """The layout of a tensor without gaps or overlaps, with codes of its own shape."""
        return cls(tuple(x.shape), tuple(x.stride()), x.dtype)

    @classmethod
    def summed_last(cls, x: Tensor, summed: tuple[int, ...]) -> Layout:
        """The layout of a tensor without gaps as a matrix whose columns are the dimensions that a product sums over.

        Without such dimensions the last one is taken.
        """
        sums = (summed or (x.dim() - 1,)) if x.dim() else ()
        order = tuple(dim for dim in range(x.dim()) if dim not in sums) + sums
        columns = math.prod(x.shape[dim] for dim in sums)
        return cls(tuple(x.shape), tuple(x.stride()), x.dtype, order, columns)

    def matrix(self, x: Tensor) -> Tensor:
        """A tensor of this layout as a contiguous matrix with `columns` columns."""
        assert self.order is not None
        return x.permute(self.order).reshape(-1 if self.columns else 0, self.columns).contiguous()

    def shaped(self, values: Tensor) -> Tensor:
        """Codes, or values that lie as they do, in the shape of the tensor; a view where that can be."""
        if self.order is None:
            return values
        moved = values[:, : self.columns].reshape([self.shape[dim] for dim in self.order])
        return moved.permute([self.order.index(dim) for dim in range(len(self.shape))])

    def restore(self, values: Tensor) -> Tensor:
        """Values that lie as the codes do, as a tensor of this layout."""
        return self.laid(self.shaped(values))

    def laid(self, values: Tensor) -> Tensor:
        """Values in the shape of the tensor, with its strides."""
        if values.stride() == self.strides:
            return values
        out = torch.empty_strided(self.shape, self.strides, dtype=values.dtype, device=values.device)
        return out.copy_(values)
