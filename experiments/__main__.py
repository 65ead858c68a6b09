"""`python -m experiments demo` and `python -m experiments reproduce NAME`, which `./dev` calls."""

from __future__ import annotations

import sys

import typer

from lograd.cli import StoppableGroup, out
from lograd.errors import LogradError

from .demo.command import demo
from .reproduce import reproduce

app = typer.Typer(
    cls=StoppableGroup,
    help="The demo and the experiments of lograd.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(reproduce)


def main() -> None:
    """Run a command; errors raised on purpose become one sentence on standard error."""
    try:
        app()
    except LogradError as error:
        print(f"lograd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        out.on_broken_pipe()


if __name__ == "__main__":
    main()
