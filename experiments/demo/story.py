"""The demo from beginning to end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from lograd.progress import progress

from . import page
from .findings import WAYS, Finding, investigate
from .sooner import Sooner, compare
from .tasks import DigitsTask, PlayTask, Task, WideDigitsTask

THREADS = 1
"""The models are small: a second thread gains little, waits for the first, and stalls where other programs run."""


@final
@dataclass(frozen=True)
class Story:
    """All findings of the demo, and how long it took."""

    findings: list[Finding]
    seconds: float
    sooner: Sooner
    """A wide network, dense and accelerated."""

    def write_page(self, path: Path) -> Path:
        """Write the page of the story, and return its path."""
        return page.write(path, self.sooner, self.findings, self.seconds)

    def to_json(self) -> dict[str, Any]:
        """The story as plain values."""
        return {
            "seconds": self.seconds,
            "threads": THREADS,
            "accelerated": self.sooner.to_json(),
            "models": [finding.to_json() for finding in self.findings],
        }


def tasks(quick: bool = False) -> list[Task]:
    """Long enough to see differences; `quick` is long enough to see that everything works."""
    if quick:
        return [DigitsTask(24, scout=12, seeds=2, checkpoints=3), PlayTask(12, scout=4, seeds=1, checkpoints=2)]
    return [DigitsTask(120, scout=60, seeds=3), PlayTask(50, scout=40, seeds=2)]


def wide_task(quick: bool = False) -> Task:
    """The task of the opening, of a width that gains; `quick` takes a narrow network for a few steps."""
    if quick:
        return DigitsTask(4, scout=0, seeds=1, checkpoints=2)
    return WideDigitsTask(48, scout=0, seeds=2, checkpoints=4)


def step_count(task: Task) -> int:
    """Steps of the whole story of a task."""
    return task.scout + task.seeds * len(WAYS) * task.steps


def tell(chosen: list[Task], wide: Task) -> Story:
    """Train and compare: `wide` dense and accelerated, and each chosen task with bits and with zeros."""
    start, before = time.perf_counter(), torch.get_num_threads()
    try:
        torch.set_num_threads(THREADS)
        sooner = compare(wide)
        findings = []
        for task in chosen:
            with progress(f"{task.model_name} on {task.name}", step_count(task)) as advance:
                findings.append(investigate(task, advance))
    finally:
        torch.set_num_threads(before)
    return Story(findings, time.perf_counter() - start, sooner)
