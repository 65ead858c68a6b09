"""Sparse products: lists of the elements that are not zero, which pruning makes on the way; and what they serve."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ... import native
from ...ops.contracts import FLOAT_TYPES
from ...ops.geometry import Geometry
from ...ops.registry import call
from ...ops.sparse_products import Results

FEWEST_CHANNELS = 8
"""Input channels of a group, a vector of eight: with fewer the kernels compute mostly padding."""


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
    if len(shape) > 2 and groups > 1 and shape[1] == 1:
        return "depthwise: a gradient element meets too few weights to be worth a list"
    if transposed:
        return "transposed convolutions have no sparse kernel"
    if len(shape) > 4:
        return "convolutions over three dimensions have no sparse kernel"
    if len(shape) > 2 and shape[1] < FEWEST_CHANNELS:
        channels = "1 input channel" if shape[1] == 1 else f"{shape[1]} input channels"
        return f"{channels} in a group; sparse products pay from {FEWEST_CHANNELS} on"
    return None


def unserved_here(x: Tensor) -> str | None:
    """Return why tensors like this one have no sparse products on this machine; None where they have."""
    if x.device.type != "cpu":
        return f"the tensors are on {x.device.type}; sparse kernels are for the CPU"
    if x.dtype not in FLOAT_TYPES:
        return f"{str(x.dtype).removeprefix('torch.')} has no sparse kernel"
    status = native.status()
    return None if status.available else f"native kernels are not in use: {status.reason}"
