"""Parts that all commands share: the console, tables, JSON, and warnings as sentences."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

from ..report import TextTable, text, text_table


class PatientConsole(Console):
    """A console that ends quietly when its reader has gone."""

    def on_broken_pipe(self) -> None:  # `lograd formats | head`: the reader has seen enough
        """End the program without a word: the reader has seen enough."""
        sys.stderr.close()
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
    """A finished table, of a profile, a plan or a comparison."""
    text.show(table, out)


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
