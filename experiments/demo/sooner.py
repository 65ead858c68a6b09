"""The opening of the demo: a wide network trained as it is and with the plan of `lograd.accelerate`, over seconds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple, final

import torch

from lograd.progress import progress

from ..lab import in_turns
from .racing import DENSE, Run, race, session_of
from .tasks import Task

FAST = "accelerated"
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
"""Memory layouts of the dense network, by name; the faster one is raced against."""
TRIED = 4
"""Steps of each layout, of which the fastest counts."""


class Point(NamedTuple):
    """A score or a loss, and the seconds of training before it."""

    seconds: float
    value: float


@final
@dataclass(frozen=True)
class Sooner:
    """One task, dense and accelerated; there are dense runs alone where accelerate leaves the model as it is."""

    task: Task
    found: str
    """The sentence that `lograd.accelerate` says."""
    layout: str
    """The memory layout of the dense network, the faster of two."""
    runs: list[Run]

    def of(self, way: str) -> list[Run]:
        """The runs of a way, one for each seed."""
        return [run for run in self.runs if run.way == way]

    @property
    def gained(self) -> bool:
        """True if there is a plan that makes the step faster."""
        return bool(self.of(FAST))

    def seconds(self, way: str) -> float:
        """Seconds of training of a whole run, without evaluations: the mean over the seeds."""
        return fmean(sum(run.milliseconds) / 1e3 for run in self.of(way))

    def score(self, way: str) -> float:
        """The final score: the mean over the seeds."""
        return fmean(run.final for run in self.of(way))

    @property
    def ratio(self) -> float:
        """Seconds of a dense run over those of an accelerated one."""
        return self.seconds(DENSE) / self.seconds(FAST)

    @property
    def difference(self) -> float:
        """The final score against the dense run of the same seed: the mean over the seeds."""
        return fmean(fast.final - dense.final for dense, fast in zip(self.of(DENSE), self.of(FAST), strict=True))

    @property
    def spread(self) -> float:
        """By how much the final scores of dense runs differ between seeds."""
        ends = [run.final for run in self.of(DENSE)]
        return max(ends) - min(ends)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "name": self.task.name,
            "model": self.task.model_name,
            "score": self.task.score_name,
            "steps": self.task.steps,
            "found": self.found,
            "dense_layout": self.layout,
            "runs": [
                {"way": run.way, "seed": run.seed, "seconds": sum(run.milliseconds) / 1e3, "curve": curve(run)}
                for run in self.runs
            ],
        }


def curve(run: Run) -> list[Point]:
    """The scores of a run over its seconds of training."""
    taken = list(accumulate(run.milliseconds))
    return [Point(taken[step - 1] / 1e3, score) for step, score in run.scores.items()]


def compare(task: Task) -> Sooner:
    """Train dense and with `lograd.accelerate`, step by step in turn; its first steps are those of the training."""
    with progress(f"{task.model_name} on {task.name}", task.seeds * 2 * task.steps) as advance:
        layout = _faster_layout(task)
        runs = [
            run for seed in range(task.seeds)
            for run in race(task, {}, seed, advance, layout=LAYOUTS[layout], accelerated=FAST)
        ]  # fmt: skip
    found = next(run.said for run in runs if run.way == FAST)
    gained = all("times faster" in run.said for run in runs if run.way == FAST)
    return Sooner(task, found, layout, runs if gained else [run for run in runs if run.way == DENSE])


def _faster_layout(task: Task) -> str:
    """Return the name of the memory layout with the fastest dense step."""
    sessions = {
        name: session_of(task, task.fresh_model(0).to(memory_format=layout), task.batches(1000))  # type: ignore[call-overload]
        for name, layout in LAYOUTS.items()
    }
    fastest = dict.fromkeys(LAYOUTS, float("inf"))
    for turn in in_turns(sessions, min(TRIED, task.steps)):
        fastest[turn.name] = min(fastest[turn.name], turn.session.times.step)
    return min(fastest, key=lambda name: fastest[name])
