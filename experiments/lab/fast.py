"""The plan of a run that is to be fast: measured on its own model and first batches before it begins."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from torch import Tensor, nn

from lograd import Plan
from lograd.acceleration import fastest_plan
from lograd.errors import plural

from .randomness import preserved
from .work import Configured

BATCHES = 4
"""Batches on which the decision is made."""


class Found(NamedTuple):
    """A plan, None where nothing is gained; what is said of it, and the seconds that it took to find."""

    plan: Plan | None
    words: str
    seconds: float


def find_plan(work: Configured) -> Found:
    """Return the plan of `lograd.accelerate`.

    Args:
        work: of this measurement alone: its batches are taken, and its model is left as it was made.
    """
    start = time.perf_counter()
    if work.total < BATCHES:
        return Found(None, f"the step stays as it is: a run of {plural(work.total, 'step')} is too short.", 0.0)

    def loss(model: nn.Module, wrapped: Any) -> Tensor:
        return work.forward(model, wrapped[0]).loss

    with preserved(), work.words():
        model = work.build()
        batches = [(work.take(step),) for step in range(BATCHES)]  # no pairs: `loss` takes them whole
        plan, words = fastest_plan(model, batches, loss)
    return Found(plan if plan.layers else None, words, time.perf_counter() - start)
