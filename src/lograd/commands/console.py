"""What the commands share: the console, tables, JSON, and warnings as sentences."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


class PatientConsole(Console):
    def on_broken_pipe(self) -> None:  # `lograd formats | head`: the reader has seen enough
        sys.stderr.close()
        raise SystemExit(0)


# A pipe or a file has no width; tables that are read there should not be folded to 80 columns.
out = PatientConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)

# Wide tables, such as a profile's: a file has room, and layer names are there to be searched for.
_wide = PatientConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else 240)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    out.print(f"\n{title}", style="bold")
    table = Table(show_header=header, box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        # Names and texts are folded and never cut off: they are there to be copied.
        left = index == 0 or not header or column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    out.print(table)


def show(table: Table) -> None:
    """A finished table, of a profile, a plan or a comparison."""
    _wide.print(table)


def say(text: str) -> None:
    """A sentence on standard error."""
    print(f"lograd: {text}", file=sys.stderr, flush=True)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Our own warnings without file, line and source; those of others are as they were."""
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
                say(str(message))
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
