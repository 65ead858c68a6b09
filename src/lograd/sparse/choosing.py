"""Whether a layer's products are computed sparsely: where the kernels serve at all, and which way is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .. import native
from ..ops.library import FLOAT_TYPES

FEWEST_CHANNELS = 8
"""Input channels of a group, a vector of eight: with fewer the kernels compute mostly padding."""


def supported(x: Tensor, weight: Tensor, groups: int = 1, transposed: bool = False) -> str | None:
    """Why a linear layer or convolution is left dense; None where the sparse kernels serve.

    >>> import torch
    >>> supported(torch.zeros(2, 64), torch.zeros(32, 64, 3, 3), groups=64)
    'depthwise: a gradient element meets too few weights to be worth a list'
    """
    if weight.dim() > 2 and groups > 1 and weight.shape[1] == 1:
        return "depthwise: a gradient element meets too few weights to be worth a list"
    if transposed:
        return "transposed convolutions have no sparse kernel"
    if weight.dim() > 4:
        return "convolutions over three dimensions have no sparse kernel"
    if weight.dim() > 2 and weight.shape[1] < FEWEST_CHANNELS:
        return f"{weight.shape[1]} input channels in a group; sparse products pay from {FEWEST_CHANNELS} on"
    if x.device.type != "cpu":
        return f"the tensors are on {x.device.type}; sparse kernels are for the CPU"
    if x.dtype not in FLOAT_TYPES:
        return f"{str(x.dtype).removeprefix('torch.')} has no sparse kernel"
    status = native.status()
    return None if status.available else f"native kernels are not in use: {status.reason}"


class Times(NamedTuple):
    """Milliseconds of the dense and of the sparse way."""

    dense: float
    sparse: float

    @property
    def sparse_wins(self) -> bool:
        return self.sparse < self.dense


def faster(dense: Callable[[], object], sparse: Callable[[], object], repeats: int = 2) -> Times:
    """Both ways in turns, the smallest time of each; the first turn warms up and does not count.

    >>> faster(lambda: time.sleep(0.01), lambda: None).sparse_wins
    True
    """
    best = [float("inf"), float("inf")]
    for turn in range(repeats + 1):
        for place, way in enumerate((dense, sparse)):
            start = time.perf_counter()
            way()
            if turn:
                best[place] = min(best[place], 1e3 * (time.perf_counter() - start))
    return Times(*best)
