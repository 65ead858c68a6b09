"""What `lograd demo` does: the story, then tables or JSON, and the page."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from ..report.progress import as_lines
from ..report.text import show
from .story import tasks, tell
from .tables import tables


def run(output: Path, quick: bool, as_json: bool, out: Console) -> None:
    with as_lines(not as_json):
        story = tell(tasks(quick))
    page = story.page().save(output)
    if as_json:
        print(json.dumps({"quick": quick, "page": str(page), **story.to_json()}, indent=2, ensure_ascii=False))
        return
    for table in tables(story.findings):
        out.print()
        show(table, out)
    out.print(f"\nThe page: {page} (open it in a browser). {story.seconds:.0f} s.")
