"""Whether a layer's products are computed sparsely: where the kernels serve at all, and which way is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from .. import native
from ..ops.library import FLOAT_TYPES

FEWEST_CHANNELS = 8
"""Input channels of a group, a vector of eight: with fewer the kernels compute mostly padding."""


def unserved(shape: Sequence[int], groups: int = 1, transposed: bool = False) -> str | None:
    """Why a layer with a weight of this shape has no sparse products on any machine; None where the kernels serve.

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
    """Why tensors like this one have no sparse products on this machine; None where they have."""
    if x.device.type != "cpu":
        return f"the tensors are on {x.device.type}; sparse kernels are for the CPU"
    if x.dtype not in FLOAT_TYPES:
        return f"{str(x.dtype).removeprefix('torch.')} has no sparse kernel"
    status = native.status()
    return None if status.available else f"native kernels are not in use: {status.reason}"


MARGIN = 0.05
"""Sparse products have to be faster by so much: timing cannot tell less, and dense ones are the safe choice."""
FEWEST_TURNS, MOST_TURNS, LONG_ENOUGH = 2, 50, 0.01
"""Turns, and seconds after which they end: products of a tenth of a millisecond need many for one undisturbed one."""


class Times(NamedTuple):
    """Milliseconds of the dense and of the sparse way."""

    dense: float
    sparse: float

    @property
    def sparse_wins(self) -> bool:
        return self.sparse < (1 - MARGIN) * self.dense


def faster(dense: Callable[[], object], sparse: Callable[[], object]) -> Times:
    """Both ways in turns, the smallest time of each; the first turn warms up and does not count.

    >>> faster(lambda: time.sleep(0.01), lambda: None).sparse_wins
    True
    """
    ways = (dense, sparse)
    for way in ways:
        way()
    spent, best = 0.0, [float("inf"), float("inf")]
    for turn in range(MOST_TURNS):
        if turn >= FEWEST_TURNS and spent > LONG_ENOUGH:
            break
        for place, way in enumerate(ways):
            start = time.perf_counter()
            way()
            seconds = time.perf_counter() - start
            spent, best[place] = spent + seconds, min(best[place], 1e3 * seconds)
    return Times(*best)
