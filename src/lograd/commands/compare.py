"""`lograd compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Json, out, print_json, show


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; the first is what the others are held against.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page with curves as well.")] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: final and best metric, time of a step, zeros and bits; with mean and spread over seeds."""
    from .. import __version__
    from ..files.atomic import check_folder
    from ..training import compare as compare_runs

    if output is not None:
        check_folder(output)
    found = compare_runs(runs)
    if output is not None:
        found.page(f"lograd {__version__}. Made by: lograd compare {' '.join(map(str, runs))}").save(output)
    if as_json:
        print_json(found.to_json() | {"page": None if output is None else str(output)})
        return
    show(found.table())
    if output is not None:
        out.print(f"\nThe page: {output} (open it in a browser)")
