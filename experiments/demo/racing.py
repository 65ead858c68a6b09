"""Training side by side: the same weights and batches, once dense and once for each plan, step by step in turn.

In turn, so that whatever else the machine does meanwhile slows all of them alike.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import tee
from typing import Any

import torch
from torch import nn

from lograd.acceleration import Acceleration, accelerate
from lograd.attachment.explain import Count
from lograd.measure import Profile, observe
from lograd.plan import Plan
from lograd.progress import Advance

from ..lab import Session, in_turns
from .tasks import Batch, Task

DENSE = "dense"
WARM_UP = 20
"""First steps whose zeros are not counted, if the run has three times as many: gradients change by the step there, and
attach passes the first through."""
OBSERVATIONS = 6
"""Steps of the scout that are observed."""


@dataclass
class Run:
    """One model trained one way."""

    way: str
    seed: int
    losses: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    """Milliseconds of each step."""
    backward: list[float] = field(default_factory=list)
    """Milliseconds of each backward."""
    scores: dict[int, float] = field(default_factory=dict)
    """Scores by the number of steps done."""
    zeros: dict[str, float] = field(default_factory=dict)
    """The share of zeros by layer, handed to the products after the first steps; of treated layers only."""
    said: str = ""
    """The words of `lograd.accelerate`; empty where it was not called."""

    def add(self, step: int, loss: float, session: Session, score: float | None) -> None:
        """Note a step that the session has just made, and the score after it, if it was taken."""
        self.losses.append(loss)
        self.milliseconds.append(1e3 * session.times.step)
        self.backward.append(1e3 * session.times.backward)
        if score is not None:
            self.scores[step] = score

    @property
    def final(self) -> float:
        """The score at the end."""
        return list(self.scores.values())[-1]


def scout(task: Task, progress: Advance) -> Profile:
    """Train for a few steps and look at the gradients on the way."""
    session = session_of(task, task.fresh_model(0), task.batches(1000))
    with observe(session.model, max(task.scout // OBSERVATIONS, 1), weight_gradients=False, sample=2**20) as profile:
        for _ in range(task.scout):
            session.step()
            progress(1)
    return profile


def race(
    task: Task,
    plans: Mapping[str, Plan],
    seed: int,
    progress: Advance,
    *,
    layout: torch.memory_format = torch.contiguous_format,
    accelerated: str = "",
    **attaching: Any,
) -> list[Run]:
    """One run without a plan and one for each plan.

    Args:
        layout: of the model without a plan.
        accelerated: the name of one more run, which `lograd.accelerate` makes faster; empty for none.
        attaching: arguments of `lograd.attach`.
    """
    start = task.fresh_model(seed)
    ways: dict[str, Plan | None] = {DENSE: None, **plans} | ({accelerated: None} if accelerated else {})
    with ExitStack() as stack:
        sessions = {}
        handles: dict[str, Acceleration] = {}
        for (way, plan), batches in zip(ways.items(), tee(task.batches(seed), len(ways)), strict=True):
            model = copy.deepcopy(start)
            if way == DENSE:
                model.to(memory_format=layout)  # type: ignore[call-overload]
            session = session_of(task, model, batches, plan, seed=seed, **attaching)
            sessions[way] = stack.enter_context(session)
            if way == accelerated:
                handles[way] = stack.enter_context(accelerate(model, seed=seed, quiet=True))
        runs = {way: Run(way, seed) for way in ways}
        before: dict[str, dict[str, Count]] = {}
        for step, way, session, loss in in_turns(sessions, task.steps):
            begun = time.perf_counter()
            if way in handles:
                handles[way].step()
            beside = 1e3 * (time.perf_counter() - begun)
            runs[way].add(step, loss, session, task.evaluate(session.model) if step in task.scored_steps else None)
            runs[way].milliseconds[-1] += beside
            if step == min(WARM_UP, task.steps // 3):
                before[way] = _counts(session)
            progress(1)
        for way, handle in handles.items():
            runs[way].said = handle.words
        for way, session in sessions.items():
            runs[way].zeros = _zeros(before.get(way, {}), _counts(session))
    return list(runs.values())


def session_of(
    task: Task, model: nn.Module, batches: Iterator[Batch], plan: Plan | None = None, **attaching: Any
) -> Session:
    """A run of the task in memory; `attaching` are arguments of `lograd.attach`."""
    optimizer = task.optimizer(model)
    return Session(model, batches, task.loss, optimizer, plan, rate=task.rate, **(attaching if plan else {}))


def _counts(session: Session) -> dict[str, Count]:
    return {} if session.handle is None else dict(session.handle.counters().layers)


def _zeros(before: Mapping[str, Count], after: Mapping[str, Count]) -> dict[str, float]:
    """Return the share of zeros by layer in what was counted in between."""
    found = {}
    for name, count in after.items():
        earlier = before.get(name, Count())
        elements = count.elements - earlier.elements
        found[name] = (count.zeros_after - earlier.zeros_after) / elements if elements else 0.0
    return found
