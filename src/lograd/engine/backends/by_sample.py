"""The integer product for dX of a gradient whose samples have ranges of their own, as PSQ and BHQ make them.

With codes c, the step s_i and the low end l_i of sample i, G_i = s_i c_i + l_i and T the mixing of samples,

    dX = T^-1 (s_i (c_i . W) + l_i (1 . W)),

where a dot is the product of the layer: c . W is an integer one, and 1 . W, that of ones, is the same for all samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops.coded import Householder
from ...ops.geometry import Geometry
from ...ops.integer_operands import Fold
from ...ops.registry import call
from ...ops.scaled_products import lists
from ..coding import Codes

_SMALLEST, _LARGEST = 2.0**-96, 2.0**64
"""Steps of weights between these leave sums of products in float32's range."""


def input_gradient(
    g: Codes, low: Tensor, fold: Fold | None, weight: Codes, geometry: Geometry, shape: tuple[int, ...]
) -> Tensor:
    """Return dX as float32; images lie channels-last.

    Args:
        g, low: the gradient; the low end of each sample.
        fold: factors by which its channels were multiplied before it was coded; None for none.
        shape: of the layer's input.
    """
    scale = weight.step if fold is None else weight.step.new_tensor([fold.unit])
    rows = (-1, *(1,) * (g.codes.dim() - 1))
    ones = torch.ones_like(g.codes[:1])
    if not _SMALLEST <= float(scale) <= _LARGEST:
        # Too far from 1 to come first: (s_i (c_i . W) + l_i (1 . W)) times it, in float64.
        d_x, of_ones = (_sums(codes, weight, geometry, shape, None).double() for codes in (g.codes, ones))
        d_x.mul_(g.step.reshape(rows)).addcmul_(low.double().reshape(rows), of_ones)
        d_x = d_x.mul_(scale.double()).float()
    elif not geometry.stride:
        d_x = call("integer_matmul", g.codes, weight.codes, 0, weight.offset, g.step, scale, None)
        d_x.addr_(low, _sums(ones, weight, geometry, shape, scale)[0])
    else:
        d_x, of_ones = (_sums(codes, weight, geometry, shape, scale) for codes in (g.codes, ones))
        d_x.mul_(g.step.reshape(rows)).addcmul_(low.reshape(rows), of_ones)
    return d_x if g.mixing is None else _separated(d_x, g.mixing)


def _sums(codes: Tensor, weight: Codes, geometry: Geometry, shape: tuple[int, ...], scale: Tensor | None) -> Tensor:
    """Return codes . W, times a scale."""
    found: Tensor
    if not geometry.stride:
        found = call("integer_matmul", codes, weight.codes, 0, weight.offset, None, scale, None)
    else:
        where = *lists(geometry), list(shape[2:])
        found = call("integer_convolution_input_gradient", codes, weight.codes, 0, weight.offset, scale, *where)
    return found


def _separated(x: Tensor, mixing: Householder) -> Tensor:
    """Return T^-1 x over rows: each group is reflected, and its rows are divided by their factors.

    H z = z - v (v . z) / (1 - 1 / sqrt n) with v = 1 / sqrt n - e1, in a group of n rows; see
    `ops.quantize_block_householder`.
    """
    order, first = mixing.groups.unbind()
    column = (-1, *(1,) * (x.dim() - 1))
    size = torch.bincount(first, minlength=len(first))[first]
    share = size.double().rsqrt()
    factor = torch.where(size > 1, 1 / (1 - share), 0.0)
    leads = torch.arange(len(first)) == first
    z = x[order]
    total = torch.zeros_like(z).index_add_(0, first, z)[first]
    along = (total * share.float().reshape(column)).sub_(z[first]).mul_(factor.float().reshape(column))
    z.addcmul_(along, (share - leads.double()).float().reshape(column), value=-1).div_(mixing.stretch.reshape(column))
    return torch.empty_like(x).index_copy_(0, order, z)
