"""Ctrl-C and SIGTERM end every command alike: one sentence that says what was written, and the usual exit code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from ..files.atomic import recorded
from .console import say


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that whatever is half done is tidied up on the way out."""


class StoppableGroup(TyperGroup):
    """The commands of a program; one that is stopped says what it has written."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; one that is stopped by a signal says what it has written."""
        with _termination_as_exception(), recorded() as written:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as error:
                number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
                files = ", ".join(dict.fromkeys(map(str, written)))
                left = f"written before: {files}" if files else "nothing was written"
                say(f"{ctx.invoked_subcommand} was stopped by {_words(number)}; {left}.")
                raise typer.Exit(128 + number) from None


def _words(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else "SIGTERM"


@contextmanager
def _termination_as_exception() -> Iterator[None]:
    # Only the main thread may set handlers, and a process that was told to ignore the signal goes on doing so.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def raise_it(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
