"""The backend of a product: asked for, or timed once on the layer itself; and why a layer has but dense products.

What was chosen is a small tensor: products sum in different orders, so a resumed run needs it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import native
from ...ops.contracts import FLOAT_TYPES
from ...treatments import Backend
from ..site import CPU, zeros

UNDECIDED, DENSE, SPARSE, INTEGER = range(4)
NAMES = {DENSE: "dense", SPARSE: "sparse", INTEGER: "integer"}
"""The name of each backend in words, plans and times."""
MODE, DENSE_TIME, SPARSE_TIME, ZEROS, INTEGER_TIME = range(5)
"""Slots of a choice: the backend in force, nanoseconds of each, and zeros per million when they were taken.

A time of 0 was not taken: that backend does not serve the product.
"""
SLOTS = 5
TOO_SMALL = -1
"""In the slot ZEROS: marks a layer that is too small to time."""
RAGGED = -2
"""In the slot ZEROS: marks a product whose last sum was not of whole blocks of a Hadamard transform."""
LEAST_WORK = 2**22
"""Multiply-adds of one product, a tenth of a millisecond: below there is nothing to gain:
nothing is timed, and no rows of zeros are looked for."""
FEWEST_CHANNELS = 8
"""Input channels of a group, a vector of eight: with fewer the kernels compute mostly padding."""
SHORTEST_SUM = 64
"""Products of an output element: below, writing the output takes most of an integer product, as of a dense one."""
CHANGE = 0.1
"""Backends are timed again when the share of zeros differs by so much from the one at which they were timed."""
MARGIN = 0.05
"""Other products have to be faster by so much: timing cannot tell less, and dense ones are the safe choice."""
FEWEST_TURNS, MOST_TURNS, LONG_ENOUGH = 2, 50, 0.01
"""Turns of a timing, and seconds after which it ends: a short product needs many turns for one without disturbance."""

Kind = Literal["sparse", "integer"]
"""Backends with kernels of their own."""


class Times(NamedTuple):
    """Milliseconds of the products by each backend, None for one that does not serve; and the share of zeros then.

    Treating the operands is part of all of them.  So dense products here are not those of plain PyTorch, which treats
    nothing: the times choose a backend, and do not tell what a plan gains or costs.
    """

    dense: float
    sparse: float | None = None
    integer: float | None = None
    zeros: float = 0.0

    def of(self, mode: int) -> float:
        """Return the time of a backend; that of dense products where it was not taken."""
        taken = {SPARSE: self.sparse, INTEGER: self.integer}.get(mode)
        return self.dense if taken is None else taken

    @property
    def fastest(self) -> int:
        """The backend to take: the fastest, if it is faster than dense products by more than the margin.

        >>> Times(dense=1.0, sparse=0.9, integer=0.4).fastest == INTEGER
        True
        """
        best = min((SPARSE, INTEGER), key=self.of)
        return best if self.of(best) < (1 - MARGIN) * self.dense else DENSE

    def words(self) -> str:
        """Return all times that were taken, for people.

        >>> Times(dense=1.6, sparse=1.2, zeros=0.85).words()
        'sparse 1.20 ms at 85% zeros, dense products of the same treated operands 1.60 ms'
        """
        parts = []
        if self.integer is not None:
            parts.append(f"integer {self.integer:.2f} ms")
        if self.sparse is not None:
            parts.append(f"sparse {self.sparse:.2f} ms at {self.zeros:.0%} zeros")
        return ", ".join([*parts, f"dense products of the same treated operands {self.dense:.2f} ms"])


class Choice:
    """The backend of the output, or of the products that one treated gradient enters.

    Args:
        backend: the backend in force from the beginning; "auto" has them timed.
        serving: the backends that serve, dense products besides.
    """

    def __init__(self, backend: Backend, serving: tuple[int, ...] = (SPARSE,)) -> None:
        self.fixed = backend != "auto"
        """True if the backend was asked for, so that nothing is timed."""
        self.serving = serving
        self.tensor = zeros(SLOTS, torch.int64, CPU)
        self.slots: np.ndarray[tuple[int], np.dtype[np.int64]] = self.tensor.numpy()
        """The same memory."""
        self.slots[MODE] = {"auto": UNDECIDED, "dense": DENSE, "sparse": SPARSE, "integer": INTEGER}[backend]

    def mode_for(self, held: bool) -> int:
        """Return the backend in force; for an evaluation, which times nothing, one that serves."""
        mode = int(self.slots[MODE])
        if held and mode == UNDECIDED:
            return INTEGER if INTEGER in self.serving else DENSE
        return mode

    def is_too_small(self, work: int) -> bool:
        """Return True for a product with too few multiply-adds to be timed, and mark it."""
        if work >= LEAST_WORK:
            return False
        self.slots[ZEROS] = TOO_SMALL
        return True

    def decide(self, times: Times) -> int:
        """Write measured times, and return the backend that won."""
        values = [times.fastest, times.dense * 1e6, (times.sparse or 0.0) * 1e6, times.zeros * 1e6]
        self.slots[:] = [int(value) for value in (*values, (times.integer or 0.0) * 1e6)]
        return times.fastest

    @property
    def mode(self) -> int:
        """The backend in force."""
        return int(self.slots[MODE])

    @property
    def in_force(self) -> int:
        """The backend in force, also of a layer that is too small to time; UNDECIDED before it is known.

        Codes are there before their product is computed, so that small integer products save the decoding.
        """
        if int(self.slots[ZEROS]) == RAGGED:
            return DENSE
        if self.mode == UNDECIDED and int(self.slots[ZEROS]) == TOO_SMALL:
            return INTEGER if INTEGER in self.serving else DENSE
        return self.mode

    @property
    def times(self) -> Times | None:
        """The measured times; None before there are any."""
        _, dense, sparse, share, integer = self.slots.tolist()
        if not dense:
            return None
        return Times(dense / 1e6, sparse / 1e6 or None, integer / 1e6 or None, share / 1e6)

    def load(self, saved: Tensor) -> None:
        """Go on from a saved choice; a backend that does not serve here is timed again."""
        self.tensor.copy_(saved)
        if self.mode not in (UNDECIDED, DENSE, *self.serving):
            self.tensor.zero_()

    def reconsider(self, share: float) -> None:
        """Time all backends again where the share of zeros has changed against the one in force."""
        if self.fixed or self.times is None or self.times.sparse is None:
            return
        more = self.times.zeros - share if self.mode == SPARSE else share - self.times.zeros
        if more > CHANGE:
            self.slots[MODE] = UNDECIDED

    def words(self) -> str:
        """Return the backend in force with the measured times, for people."""
        if int(self.slots[ZEROS]) == RAGGED:
            return "dense products, as sums are not of whole blocks of the Hadamard transform"
        if int(self.slots[ZEROS]) == TOO_SMALL:
            return f"{NAMES[self.in_force]} products, too small to be timed"
        words = "products not timed yet" if self.mode == UNDECIDED else f"{NAMES[self.mode]} products"
        return words if self.times is None else f"{words} ({self.times.words()})"


def timed(**ways: Callable[[], object]) -> Times:
    """Run all in turns, by the name of their backend, and return the smallest time of each.

    The first turn warms up and does not count.

    >>> timed(dense=lambda: time.sleep(0.01), sparse=lambda: None).fastest == SPARSE
    True
    """
    for way in ways.values():
        way()
    spent, best = 0.0, dict.fromkeys(ways, float("inf"))
    for turn in range(MOST_TURNS):
        if turn >= FEWEST_TURNS and spent > LONG_ENOUGH:
            break
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds = time.perf_counter() - start
            spent, best[name] = spent + seconds, min(best[name], 1e3 * seconds)
    return Times(**best)


def unserved(kind: Kind, shape: Sequence[int], groups: int = 1, transposed: bool = False) -> str | None:
    """Return why a layer with a weight of this shape has no products of a kind on any machine; None where it has.

    >>> unserved("integer", (32, 64, 3, 3))
    >>> unserved("sparse", (64, 1, 3, 3), groups=64)
    'depthwise: an output is a sum of too few products for sparse ones'
    """
    if len(shape) > 2 and groups > 1 and shape[1] == 1:
        return f"depthwise: an output is a sum of too few products for {kind} ones"
    if transposed:
        return f"transposed convolutions have no {kind} kernel"
    if len(shape) > 4:
        return f"convolutions over three dimensions have no {kind} kernel"
    if len(shape) > 2 and shape[1] < FEWEST_CHANNELS:
        channels = "1 input channel" if shape[1] == 1 else f"{shape[1]} input channels"
        return f"{channels} in a group; {kind} products pay from {FEWEST_CHANNELS} on"
    if kind == "integer" and (summed := math.prod(shape[1:])) < SHORTEST_SUM:
        return f"each output sums over {summed} products; integer products pay from {SHORTEST_SUM} on"
    return None


def unserved_here(kind: Kind, x: Tensor) -> str | None:
    """Return why tensors like this one have no products of a kind on this machine; None where they have."""
    if x.device.type != "cpu":
        return f"the tensors are on {x.device.type}; {kind} kernels are for the CPU"
    if x.dtype not in (FLOAT_TYPES if kind == "sparse" else (torch.float32,)):
        return f"{str(x.dtype).removeprefix('torch.')} has no {kind} kernel"
    status = native.status()
    return None if status.available else f"native kernels are not in use: {status.reason}"
