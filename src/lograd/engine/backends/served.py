"""The reasons that sparse and integer kernels share for not serving a layer or a tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ... import native

FEWEST_CHANNELS = 8
"""Input channels of a group, a vector of eight: with fewer the kernels compute mostly padding."""


def unserved(kind: str, depthwise: str, shape: Sequence[int], groups: int, transposed: bool) -> str | None:
    """Return why a layer with a weight of this shape has no products of a kind on any machine; None where it may.

    Args:
        kind: "sparse" or "integer".
        depthwise: why a depthwise convolution has none.
        shape, groups, transposed: of the layer.
    """
    if len(shape) > 2 and groups > 1 and shape[1] == 1:
        return f"depthwise: {depthwise}"
    if transposed:
        return f"transposed convolutions have no {kind} kernel"
    if len(shape) > 4:
        return f"convolutions over three dimensions have no {kind} kernel"
    if len(shape) > 2 and shape[1] < FEWEST_CHANNELS:
        channels = "1 input channel" if shape[1] == 1 else f"{shape[1]} input channels"
        return f"{channels} in a group; {kind} products pay from {FEWEST_CHANNELS} on"
    return None


def unserved_here(kind: str, types: Collection[torch.dtype], x: Tensor) -> str | None:
    """Return why tensors like this one have no products of a kind on this machine; None where they have."""
    if x.device.type != "cpu":
        return f"the tensors are on {x.device.type}; {kind} kernels are for the CPU"
    if x.dtype not in types:
        return f"{str(x.dtype).removeprefix('torch.')} has no {kind} kernel"
    status = native.status()
    return None if status.available else f"native kernels are not in use: {status.reason}"
