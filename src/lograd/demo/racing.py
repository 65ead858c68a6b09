"""Training side by side: the same weights and batches, once dense and once for each plan, step by step in turn.

In turn, so that whatever else the machine does meanwhile slows all of them alike.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, final

from torch import nn

from ..attachment.counters import Count
from ..attachment.handle import Handle, attach
from ..plan import Plan
from ..profiles import Profile, observe
from ..report.progress import Advance
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
    """Of each step."""
    backward: list[float] = field(default_factory=list)
    """Milliseconds of each backward."""
    scores: dict[int, float] = field(default_factory=dict)
    """By the number of steps done."""
    zeros: dict[str, float] = field(default_factory=dict)
    """By layer: the share of zeros handed to the products after the first steps; of treated layers only."""

    @property
    def final(self) -> float:
        return list(self.scores.values())[-1]


def scout(task: Task, progress: Advance) -> Profile:
    """Train for a few steps and look at the gradients on the way."""
    runner = _Runner(task, task.fresh_model(0), Run("scout", 0))
    with observe(runner.model, max(task.scout // OBSERVATIONS, 1), weight_gradients=False, sample=2**20) as profile:
        for batch in islice(task.batches(1000), task.scout):
            runner.step(batch)
            progress(1)
    return profile


def race(task: Task, plans: Mapping[str, Plan], seed: int, progress: Advance) -> list[Run]:
    """One run without a plan and one for each plan."""
    start = task.fresh_model(seed)
    with ExitStack() as stack:
        runners = []
        for way, plan in {DENSE: None, **plans}.items():
            model = copy.deepcopy(start)
            # Not "auto": what is faster may change from run to run, and with it the last bits.
            handle = stack.enter_context(attach(model, plan, seed, backend="sparse")) if plan is not None else None
            runners.append(_Runner(task, model, Run(way, seed), handle))
        due = {round(task.steps * (k + 1) / task.checkpoints) for k in range(task.checkpoints)}
        for step, batch in enumerate(islice(task.batches(seed), task.steps), start=1):
            for runner in runners:
                runner.step(batch)
                if step in due:
                    runner.score(step)
                progress(1)
        for runner in runners:
            runner.finish()
    return [runner.run for runner in runners]


@final
class _Runner:
    """A model on its way."""

    def __init__(self, task: Task, model: nn.Module, run: Run, handle: Handle | None = None) -> None:
        self.task, self.model, self.run, self.handle = task, model, run, handle
        self.optimizer = task.optimizer(model)
        self.schedule = task.schedule(self.optimizer)
        self._warm_up = min(WARM_UP, task.steps // 3)
        self._before: dict[str, Count] = {}

    def step(self, batch: Batch) -> None:
        if self.handle is not None and len(self.run.losses) == self._warm_up:
            self._before = self.handle.counters().layers
        inputs, targets = batch
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss: Any = self.task.loss(self.model(inputs), targets)
        before = time.perf_counter()
        loss.backward()
        self.run.backward.append((time.perf_counter() - before) * 1e3)
        self.optimizer.step()
        if self.handle is not None:
            self.handle.step()
        self.run.milliseconds.append((time.perf_counter() - began) * 1e3)
        self.run.losses.append(float(loss.detach()))
        self.schedule.step()

    def score(self, step: int) -> None:
        self.model.eval()
        self.run.scores[step] = self.task.score(self.model)
        self.model.train()

    def finish(self) -> None:
        if self.handle is None:
            return
        for name, count in self.handle.counters().layers.items():
            before = self._before.get(name, Count())
            elements = count.elements - before.elements
            self.run.zeros[name] = (count.zeros_after - before.zeros_after) / elements if elements else 0.0
