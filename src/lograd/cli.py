"""The command line: `lograd COMMAND`.  Bad input is told what is valid, with exit code 2.

The commands themselves are in `commands`, a file for each; all of them have --json.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import __version__
from .commands import COMMANDS
from .commands.console import StoppableGroup, out
from .errors import LogradError

app = typer.Typer(
    cls=StoppableGroup,
    help="Backward passes with fewer bits and more zeros, chosen by theory, proven by measurement.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: errors raised on purpose become one sentence on standard error."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a reader that has gone is met here, not when Python ends
    except LogradError as error:
        print(f"lograd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        out.on_broken_pipe()


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Print the version, where it is asked for; the commands do the rest."""
    if version:
        print(__version__)
        raise typer.Exit


for command in COMMANDS:
    app.command()(command)
