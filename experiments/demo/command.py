"""`./dev demo`: a wide network trained sooner, the story of two small ones, as tables or JSON, and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lograd.cli import Json, out, print_json, show


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("lograd-demo.html"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps only: shows that everything works.")] = False,
    as_json: Json = False,
) -> None:
    """Train a wide network dense and accelerated; two small ones dense, with 6 bits and 85 % zeros; ends in a page."""
    from lograd.files import check_folder

    check_folder(output)  # before the work and before torch, which takes a second to import
    from lograd.progress import progress_shown

    from .story import tasks, tell, wide_task
    from .tables import tables

    with progress_shown(not as_json or None):
        story = tell(tasks(quick), wide_task(quick))
    page = story.write_page(output)
    if as_json:
        print_json({"quick": quick, "page": str(page), **story.to_json()})
        return
    for table in tables(story.sooner, story.findings):
        out.print()
        show(table)
    out.print(f"\nThe page: {page} (open it in a browser). {story.seconds:.0f} s.")
