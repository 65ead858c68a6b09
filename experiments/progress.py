"""Progress of training on standard error: a bar on a terminal, a plain line for each evaluation elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from lograd.commands.console import say

from .lab import Status
from .lab.measuring import ACCURACY, BUILT_IN, COMMON, Metric

Show = Callable[[Status], None]


@contextmanager
def display(title: str, quiet: bool) -> Iterator[Show | None]:
    """The function that `train` calls after each step; None where the output is for a program."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield Lines(time.perf_counter)
    else:
        columns = (
            TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.completed}/{task.total}"),
            _Rate(), TimeRemainingColumn(), TextColumn("{task.fields[numbers]}"),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Bar(progress, title)


def saying(text: str, show: Show | None) -> Show:
    """A display that says a sentence at the first step as well: by then everything has been checked."""
    texts = [text]

    def show_and_say(status: Status) -> None:
        while texts:
            say(texts.pop())
        if show is not None:
            show(status)

    return show_and_say


def begins(status: Status, last: Status | None) -> bool:
    """Return True if a step is the first of a run: a resumed one does not start at 0, and others may follow it."""
    return last is None or status.step < last.step or status.total != last.total


class Bar:
    """Step, rate, remaining time, and the newest numbers."""

    def __init__(self, progress: Progress, title: str) -> None:
        self.progress = progress
        self.task = progress.add_task(title, total=None, numbers="")
        self.last: Status | None = None
        self.train = self.test = ""

    def __call__(self, status: Status) -> None:
        if begins(status, self.last):
            self.train = self.test = ""
            self.progress.reset(self.task, total=status.total, completed=status.step)
        for line in status.lines:
            if line["kind"] != "guard":
                setattr(self, line["kind"], words(line, status.metric))
        numbers = "; ".join(part for part in (self.train or f"loss {status.loss:.3f}", self.test) if part)
        self.progress.update(self.task, completed=status.step, numbers=numbers)
        self.last = status


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:.1f} steps/s")


class Lines:
    """One line for each evaluation, for logs; where a model has none, for each line of metrics."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.start = 0, 0.0
        self.last: Status | None = None

    def __call__(self, status: Status) -> None:
        now = self.clock()
        if begins(status, self.last):
            self.start = status.step, now
        self.last = status
        for line in status.lines:
            if line["kind"] == status.metric.kind:
                rate = (status.step - self.start[0]) / max(now - self.start[1], 1e-9)
                left = f", {rate:.1f} steps/s, {_duration((status.total - status.step) / rate)} left" if rate else ""
                text = f"step {status.step}/{status.total}, epoch {line['epoch']:g}: {words(line, status.metric)}{left}"
                print(text, file=sys.stderr, flush=True)


def words(line: dict[str, Any], metric: Metric = ACCURACY) -> str:
    """The numbers of a line of metrics, for people; those of a user's metric by their own names."""
    tested, own = line["kind"] == "test", metric not in BUILT_IN
    if own and tested:
        numbers = {name: value for name, value in line.items() if name not in COMMON and value is not None}
        parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items()]
    else:
        parts = [f"{'test ' if tested else ''}loss {line['loss']:.3f}"]
    if not own and "accuracy" in line:
        parts.append(f"accuracy {line['accuracy']:.1%}")
    if not own and "bits_per_character" in line:
        parts.append(f"{line['bits_per_character']:.3f} bits per character")
    if line["sparsity"] is not None:
        parts.append(f"zeros {line['sparsity']:.1%}")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
