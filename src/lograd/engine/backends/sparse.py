"""Sparse products: lists of the elements that are not zero, which pruning makes on the way; and what they serve."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...ops.contracts import FLOAT_TYPES
from ...ops.geometry import Geometry
from ...ops.registry import call
from ...ops.sparse_products import Results
from . import served


def products(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    geometry: Geometry,
    threshold: Tensor | None,
    key: Tensor,
    need: tuple[bool, bool, bool],
) -> Results:
    """Return dX, dW, dbias and counts of a gradient, which is pruned on the way if there is a threshold."""
    name, shape = ("sparse_convolution_backward", geometry) if geometry.stride else ("sparse_linear_backward", ())
    result: Results = call(name, g, x, weight, threshold, key, *shape, *need)
    return result


def unserved(shape: Sequence[int], groups: int = 1, transposed: bool = False) -> str | None:
    """Return why a layer with a weight of this shape has no sparse products on any machine; None where it has.

    >>> unserved((32, 64, 3, 3))
    >>> unserved((64, 1, 3, 3), groups=64)
    'depthwise: a gradient element meets too few weights to be worth a list'
    """
    depthwise = "a gradient element meets too few weights to be worth a list"
    return served.unserved("sparse", depthwise, shape, groups, transposed)


def unserved_here(x: Tensor) -> str | None:
    """Return why tensors like this one have no sparse products on this machine; None where they have."""
    return served.unserved_here("sparse", FLOAT_TYPES, x)
