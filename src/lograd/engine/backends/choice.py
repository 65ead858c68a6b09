"""The backend of a product: asked for, or timed once on the layer itself.  What was chosen is a small tensor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...treatments import Backend
from ..slots import CPU, zeros

UNDECIDED, DENSE, SPARSE = range(3)
MODE, DENSE_TIME, SPARSE_TIME, ZEROS = range(4)
"""Slots of a choice: the backend in force, nanoseconds of both, and zeros per million when they were taken."""
TOO_SMALL = -1
"""In the slot ZEROS: marks a layer that is too small to time."""
CHANGE = 0.1
"""Backends are timed again when the share of zeros differs by so much from the one at which they were timed."""
MARGIN = 0.05
"""Sparse products have to be faster by so much: timing cannot tell less, and dense ones are the safe choice."""
FEWEST_TURNS, MOST_TURNS, LONG_ENOUGH = 2, 50, 0.01
"""Turns of a timing, and seconds after which it ends: a short product needs many turns for one without disturbance."""


class Times(NamedTuple):
    """Milliseconds of the products by each backend, and the share of zeros at that time."""

    dense: float
    sparse: float
    zeros: float = 0.0

    @property
    def sparse_wins(self) -> bool:
        """True if sparse products are faster by more than the margin."""
        return self.sparse < (1 - MARGIN) * self.dense


class Choice:
    """The backend of the products that one treated gradient enters."""

    def __init__(self, backend: Backend) -> None:
        self.fixed = backend != "auto"
        """True if the backend was asked for, so that nothing is timed."""
        self.tensor = zeros(4, torch.int64, CPU)
        self.tensor[MODE] = SPARSE if backend == "sparse" else UNDECIDED

    @property
    def mode(self) -> int:
        """The backend in force."""
        return int(self.tensor[MODE])

    @property
    def times(self) -> Times | None:
        """The measured times; None before there are any."""
        _, dense, sparse, share = self.tensor.tolist()
        return Times(dense / 1e6, sparse / 1e6, share / 1e6) if dense else None

    def reconsider(self, share: float) -> None:
        """Time both backends again where the share of zeros has changed against the one in force."""
        if self.fixed or self.times is None:
            return
        more = share - self.times.zeros if self.mode == DENSE else self.times.zeros - share
        if more > CHANGE:
            self.tensor[MODE] = UNDECIDED

    def words(self) -> str:
        """Return the backend in force with the measured times, for people."""
        if int(self.tensor[ZEROS]) == TOO_SMALL:
            return "dense products, too small to be timed"
        words = {UNDECIDED: "products not timed yet", DENSE: "dense products", SPARSE: "sparse products"}[self.mode]
        if self.times is None:
            return words
        dense, sparse, share = self.times
        return f"{words} (dense {dense:.2f} ms, sparse {sparse:.2f} ms at {share:.0%} zeros)"


def decide(choice: Tensor, times: Times) -> int:
    """Write measured times into a choice, and return the backend that won."""
    mode = SPARSE if times.sparse_wins else DENSE
    values = [mode, times.dense * 1e6, times.sparse * 1e6, times.zeros * 1e6]
    choice.copy_(torch.tensor(values, device=CPU))
    return mode


def timed(dense: Callable[[], object], sparse: Callable[[], object]) -> Times:
    """Run both in turns, and return the smallest time of each; the first turn warms up and does not count.

    >>> timed(lambda: time.sleep(0.01), lambda: None).sparse_wins
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
