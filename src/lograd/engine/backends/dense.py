"""Dense products: the operators that autograd itself would call."""

from __future__ import annotations

from torch import Tensor

from ...ops.geometry import Geometry
from ...ops.sparse_products import Products, convolution_products, linear_products


def products(g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, need: tuple[bool, bool, bool]) -> Products:
    """Return dX, dW and dbias of a gradient; what is not needed has no elements."""
    if not geometry.stride:
        return linear_products(g, x, weight, need)
    return convolution_products(g, x, weight, geometry, need)
