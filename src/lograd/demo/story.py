"""The demo from beginning to end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, final

import torch

from ..report import Page
from ..report.progress import progress
from . import page
from .findings import WAYS, Finding, investigate
from .tasks import DigitsTask, PlayTask, Task

THREADS = 1
"""The models are small: a second thread gains little, waits for the first, and stalls where other programs run."""


@final
@dataclass(frozen=True)
class Story:
    """All findings of the demo, and how long it took."""

    findings: list[Finding]
    seconds: float

    def page(self) -> Page:
        """The page of the story."""
        return page.build(self.findings, self.seconds)

    def to_json(self) -> dict[str, Any]:
        """The story as plain values."""
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


def tell(chosen: list[Task]) -> Story:
    """Train and compare."""
    start, before = time.perf_counter(), torch.get_num_threads()
    try:
        torch.set_num_threads(THREADS)
        findings = []
        for task in chosen:
            with progress(f"{task.model_name} on {task.name}", step_count(task)) as advance:
                findings.append(investigate(task, advance))
    finally:
        torch.set_num_threads(before)
    return Story(findings, time.perf_counter() - start)
