"""The state of an optimizer in 8 bits between steps: FP8 codes with a spacing for each row, rounded stochastically.

A running mean changes by a small part of itself in each step, 1/1000 for Adam's second moment: to nearest it would stay
where it is.  Second moments are kept as square roots, which have half the binades, and never become zero, since they
are divided by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from .coding import Coding, coding_of
from .tensor import LowPrecisionTensor

MEANS = ("momentum_buffer", "exp_avg")
"""Names, in torch.optim, of running means of gradients."""
SQUARES = ("exp_avg_sq", "square_avg", "sum")
"""Names of running means, or sums, of squared gradients."""
TOGETHER = ("grad_avg", "max_exp_avg_sq")
"""Names of parts that are compared with, or subtracted from, others: beside them all stays in float32."""


@final
class Moments:
    """How parts of a state become codes.

    Args:
        seed_of: gives the seed for a weight and the number of a part.
    """

    def __init__(self, seed_of: Callable[[LowPrecisionTensor, int], int]) -> None:
        self._seed_of = seed_of
        mean = coding_of("e4m3fn")
        self._codings: dict[str, Coding] = dict.fromkeys(MEANS, mean) | dict.fromkeys(SQUARES, replace(mean, root=True))

    def encode_(self, weight: LowPrecisionTensor, state: dict[str, Any], coded: dict[str, LowPrecisionTensor]) -> None:
        """Put codes in the place of those parts of a weight's state that have a coding.

        Args:
            weight: the weight.
            state: the optimizer's state for it, in float32.
            coded: the parts of which there are codes already, which take the new numbers.
        """
        if any(name in state for name in TOGETHER):
            return
        for name, value in state.items():
            coding = self._codings.get(name)
            if coding is None or not isinstance(value, Tensor) or value.shape != weight.shape:
                continue
            if value.dtype != torch.float32 or isinstance(value, LowPrecisionTensor):
                continue
            old = coded.get(name)
            if old is None:
                place = tuple(self._codings).index(name)
                state[name] = LowPrecisionTensor.of(value, coding, self._seed_of(weight, place), "stochastic")
            else:
                alike = value.stride() == old.codes.stride()
                old.write_(value if alike else torch.empty_like(old.codes, dtype=torch.float32).copy_(value))
                state[name] = old
