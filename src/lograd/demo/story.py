"""The demo from beginning to end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from ..report import Page
from . import page
from .findings import WAYS, Finding, investigate
from .racing import Progress
from .tasks import DigitsTask, PlayTask, Task

THREADS = 1
"""The models are small: a second thread gains little, waits for the first, and stalls where other programs run."""


@final
@dataclass(frozen=True)
class Story:
    """What was found about each task, and how long it took."""

    findings: list[Finding]
    seconds: float

    def page(self) -> Page:
        return page.build(self.findings, self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "threads": THREADS,
            "models": [finding.to_json() for finding in self.findings],
        }


def tasks(quick: bool = False) -> list[Task]:
    """Long enough to see differences; `quick` is long enough to see that everything works."""
    if quick:
        return [DigitsTask(24, scout=12, seeds=2, checkpoints=3), PlayTask(12, scout=4, seeds=1, checkpoints=2)]
    return [DigitsTask(240, scout=60, seeds=3), PlayTask(110, scout=50, seeds=2)]


def step_count(task: Task) -> int:
    """Steps of the whole story of a task."""
    return task.scout + task.seeds * len(WAYS) * task.steps


def tell(chosen: list[Task], progress: Mapping[str, Progress] | None = None) -> Story:
    """Train and compare; `progress` has a function for each task's name."""
    start, before = time.perf_counter(), torch.get_num_threads()
    silent: Progress = lambda steps: None  # noqa: E731
    try:
        torch.set_num_threads(THREADS)
        findings = [investigate(task, (progress or {}).get(task.name, silent)) for task in chosen]
    finally:
        torch.set_num_threads(before)
    return Story(findings, time.perf_counter() - start)
