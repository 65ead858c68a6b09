"""Transforms of a tensor before its elements are rounded to codes; decoding undoes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Householder:
    """Rows were stretched and reflected in groups: the T of `ops.quantize_block_householder`."""

    groups: Tensor
    """int64 (2, rows): the rows group by group, the largest of each first; where in that list each group begins."""
    stretch: Tensor
    """float32 (rows,): the factor of the row at each place of that list, before the reflection."""


@final
@dataclass(frozen=True, eq=False)
class Hadamard:
    """Blocks of neighbours in a row were transformed by `ops.hadamard`."""

    block: int
    key: Tensor | None
    """The int64 pair whose first element names the random signs; None where there are none."""


@final
@dataclass(frozen=True)
class ThreeQuarters:
    """Elements of blocks were multiplied by 3/4, so that none is cut off: `variant="unbiased"` of `quantize_blocks`."""


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Elements were mapped by a function of their own; it is undone by looking each code up."""

    values: Tensor
    """(256,) in the type of the tensor: what each code stands for."""


@final
@dataclass(frozen=True, eq=False)
class Folded:
    """Channels were multiplied by factors, those of a weight that a product sums over; decoding divides by them."""

    factors: Tensor
    """float32, one for each channel; 0 for one that the product does not need, which is zero afterwards."""
    dim: int = 1
    """The dimension of the tensor along which its channels lie."""

    def undone(self, x: Tensor) -> Tensor:
        """Return a tensor of multiplied channels divided by the factors; NaN stays NaN."""
        factors = self.factors.reshape([-1 if dim == self.dim % x.dim() else 1 for dim in range(x.dim())])
        return torch.where(factors != 0, x / factors, x * 0)


Transform = Folded | Householder | Hadamard | ThreeQuarters | Table
