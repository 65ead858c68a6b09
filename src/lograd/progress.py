"""Progress on standard error while something takes long: a bar on a terminal, plain lines in the log of a command.

A library should be silent where standard error is no terminal, so lines are printed only inside `progress_shown(True)`,
which the commands enter.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .errors import plural

T = TypeVar("T")
INTERVAL = 10.0
"""Seconds between two lines."""

Advance = Callable[[int], None]
"""A function to be called with the number of steps that are done since its last call."""
_wanted: ContextVar[bool | None] = ContextVar("wanted", default=None)


@contextmanager
def progress_shown(wanted: bool | None) -> Iterator[None]:
    """Show progress as a caller wants it.

    Args:
        wanted: True shows it also where standard error is no terminal; False shows nothing, also on a terminal; None
            leaves the decision to whoever called the caller.
    """
    before = _wanted.set(_wanted.get() if wanted is None else wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


@contextmanager
def progress(what: str, total: int, unit: str = "step") -> Iterator[Advance]:
    """Yield a function to call after each step.

    Args:
        what: shown beside the bar, such as "observing gradients".
        total: the number of steps.
        unit: the name of one step.
    """
    if sys.stderr.isatty() and _wanted.get() is not False:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield partial(bar.advance, bar.add_task(what, total=total))
    else:
        yield _lines(what, total, unit) if _wanted.get() else lambda steps: None


def tracked(items: Iterable[T], total: int, what: str, unit: str = "step") -> Iterator[T]:
    """Yield the items and show progress; `total` is their number."""
    with progress(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


def _lines(what: str, total: int, unit: str) -> Advance:
    """Return a function that prints a line every ten seconds."""
    start = last = time.monotonic()
    done = 0

    def advance(steps: int) -> None:
        nonlocal done, last
        done, now = done + steps, time.monotonic()
        if now - last >= INTERVAL:
            last = now
            text = f"lograd: {what}: {done:,} of {plural(total, unit)}, {now - start:.0f} s"
            print(text, file=sys.stderr, flush=True)

    return advance
