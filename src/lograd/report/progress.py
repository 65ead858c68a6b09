"""Progress on standard error while something takes long: a bar on a terminal, plain lines in the log of a command.

A library should be silent where standard error is no terminal, so lines are printed only inside `as_lines`, which the
commands enter, or where the caller asks for them (`shown`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TypeVar, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import plural

T = TypeVar("T")
PATIENCE = 2.0
"""Seconds before anything is shown."""
INTERVAL = 10.0
"""Least seconds between two lines.  In long runs a tenth of the time so far, so that they do not fill the log."""

Advance = Callable[[int], None]
"""A function to be called with the number of steps that are done since its last call."""
_lines: ContextVar[bool] = ContextVar("lines", default=False)
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def as_lines(wanted: bool = True) -> Iterator[None]:
    """Also show progress where standard error is no terminal, as a plain line every ten seconds."""
    before = _lines.set(wanted)
    try:
        yield
    finally:
        _lines.reset(before)


@contextmanager
def shown(wanted: bool | None) -> Iterator[None]:
    """Show progress as a caller wants it.

    Args:
        wanted: True shows it also where standard error is no terminal; False shows nothing, also on a terminal; None
            leaves the decision to whoever called the caller.
    """
    if wanted is None:
        yield
        return
    before = _silent.set(not wanted)
    try:
        with as_lines(wanted):
            yield
    finally:
        _silent.reset(before)


@contextmanager
def progress(
    what: str, total: int, unit: str = "step", clock: Callable[[], float] = time.perf_counter
) -> Iterator[Advance]:
    """Yield a function to call after each step; it shows progress if the whole takes longer than two seconds.

    Args:
        what: shown beside the bar, such as "observing gradients".
        total: the number of steps.
        unit: the name of one step.
        clock: returns seconds; for tests.
    """
    with ExitStack() as stack:
        bar = sys.stderr.isatty() and not _silent.get()
        meter = _Bar(what, total, stack, clock) if bar else _Lines(what, total, unit, clock)
        yield meter.advance
        meter.end()


def tracked(items: Iterable[T], total: int, what: str, unit: str = "step") -> Iterator[T]:
    """Yield the items and show progress; `total` is their number."""
    with progress(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


@final
class _Bar:
    def __init__(self, what: str, total: int, stack: ExitStack, clock: Callable[[], float]) -> None:
        self.what, self.total, self.done = what, total, 0
        self.stack, self.clock, self.start = stack, clock, clock()
        self.bar: Progress | None = None

    def advance(self, steps: int) -> None:
        self.done += steps
        if self.bar is None and self.clock() - self.start > PATIENCE:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = self.stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
            self.bar.add_task(self.what, total=self.total)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done)

    def end(self) -> None:
        """Do nothing: the bar is removed when its stack ends."""


@final
class _Lines:
    def __init__(self, what: str, total: int, unit: str, clock: Callable[[], float]) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self.clock, self.start = clock, clock()
        self.next = PATIENCE
        self.first: tuple[int, float] | None = None

    def advance(self, steps: int) -> None:
        self.done += steps
        seconds = self.clock() - self.start
        self.first = self.first or (self.done, seconds)
        if seconds >= self.next and self.done < self.total:
            self.next = seconds + max(INTERVAL, seconds / 10)
            self._say(f"{self.done:,} of {plural(self.total, self.unit)}, {seconds:.0f} s{self._left(seconds)}")

    def end(self) -> None:
        seconds = self.clock() - self.start
        if seconds >= PATIENCE:
            self._say(f"{plural(self.done, self.unit)} in {seconds:.0f} s")

    def _left(self, seconds: float) -> str:
        """Return the estimated rest by all steps but the first, which often takes many times longer than another."""
        done, begun = self.first or (0, 0.0)
        if self.done == done:
            return ""
        return f", about {(seconds - begun) * (self.total - self.done) / (self.done - done):.0f} s left"

    def _say(self, text: str) -> None:
        if _lines.get():
            print(f"lograd: {self.what}: {text}", file=sys.stderr, flush=True)
