"""StatQuant's bounds on the variance of its quantizers, for a gradient at hand.

A row is a sample, as the quantizers see it.  The ranges are those that the quantizers take, so that the bounds hold for
what is done: "ptq" widens its range until zero is one of its codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..ops.householder import householder_groups
from ..theory.variance import block_householder_variance_bound, per_sample_variance_bound, per_tensor_variance_bound
from ..treatments import Sentence
from ..treatments.statquant import StatQuant


def bound_of(treatments: Sentence, g: Tensor) -> float | None:
    """Return the bound on E|Q(g) - g|^2; None for treatments that the paper does not have.

    >>> g = torch.tensor([[-1.0, 2.0], [0.5, 0.25]])
    >>> round(bound_of((StatQuant(8, "psq"),), g), 8)  # 2 / (4 * 255^2) * (3^2 + 0.25^2)
    6.968e-05
    """
    if len(treatments) != 1 or not isinstance(one := treatments[0], StatQuant) or not one.unbiased:
        return None
    matrix = g.detach().float().reshape(len(g), -1) if g.dim() > 1 else g.detach().float().reshape(1, -1)
    rows, columns = matrix.shape
    if one.method == "ptq" or g.dim() < 2:
        step = 1 / float(ops.pack_per_tensor(matrix, one.bits).scale)
        return float(per_tensor_variance_bound(step * (2**one.bits - 1), rows, columns, one.bits))
    ranges = (matrix.amax(1) - matrix.amin(1)).double()
    if one.method == "psq":
        return float(per_sample_variance_bound(ranges.numpy(force=True), columns, one.bits))
    return _householder(ranges, columns, one.bits)


def _householder(ranges: Tensor, columns: int, bits: int) -> float:
    """Return the sum over groups of one large row and some small ones."""
    if not bool(ranges.any()):
        return 0.0
    groups = householder_groups(ranges.clamp(min=float(ranges.max()) * 1e-12))
    ordered = ranges[groups.order]
    first = torch.unique(groups.first)  # ascending: where each group begins
    ends = torch.cat([first[1:], first.new_tensor([len(ranges)])])
    sizes = ends - first
    others = torch.where(sizes > 1, ordered[(first + 1).clamp(max=len(ranges) - 1)], 0.0)
    found = block_householder_variance_bound(
        ordered[first].numpy(force=True), others.numpy(force=True), sizes.numpy(force=True), columns, bits
    )
    return float(found.sum())
