"""Parts that all commands share: the console, tables, JSON, warnings as sentences, and ending on Ctrl-C.

Ctrl-C and SIGTERM end every command alike: one sentence that says what was written, and the usual exit code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from typer.core import TyperGroup

from ..files import recorded
from ..report import TextTable, text_table


class PatientConsole(Console):
    """A console that ends quietly when its reader has gone."""

    def on_broken_pipe(self) -> None:  # `lograd formats | head`: the reader has seen enough
        """End the program without a word: the reader has seen enough."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
        raise SystemExit(0)


# A pipe or a file has no width; tables that are read there should not be folded to 80 columns.
out = PatientConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print a table of texts, after an empty line."""
    out.print()
    show(text_table(title, columns, [[*map(str, row)] for row in rows], header=header))


def show(table: TextTable) -> None:
    """Print a table in colours, fitted to a terminal; a file or a pipe gets its full width."""
    out.print(table, width=None if out.is_terminal else max(out.width, table.width))


def say(text: str) -> None:
    """A sentence on standard error."""
    print(f"lograd: {text}", file=sys.stderr, flush=True)


@contextmanager
def warnings_as_sentences(*, silent: bool = False) -> Iterator[None]:
    """Our own warnings without file, line and source, or not at all; those of others are as they were."""
    from ..errors import LogradWarning

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, LogradWarning):
                if not silent:
                    say(str(message))
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def cell(value: Any) -> str:
    """A value as it stands in a table: yes and no, lists with commas, a dash for what does not exist."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


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
