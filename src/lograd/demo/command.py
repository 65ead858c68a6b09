"""What `lograd demo` does: progress on a terminal, then tables or JSON, and the page."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from .story import step_count, tasks, tell
from .tables import tables


def run(output: Path, quick: bool, as_json: bool, out: Console) -> None:
    chosen = tasks(quick)
    with ExitStack() as stack:
        shown = {}
        if sys.stderr.isatty() and not as_json:
            bars = stack.enter_context(_progress())
            for task in chosen:
                what = f"{task.model_name} on {task.name}"
                shown[task.name] = partial(bars.advance, bars.add_task(what, total=step_count(task)))
        story = tell(chosen, shown)
    page = story.page().save(output)
    if as_json:
        print(json.dumps({"quick": quick, "page": str(page), **story.to_json()}, indent=2, ensure_ascii=False))
        return
    for table in tables(story.findings):
        out.print()
        out.print(table)
    out.print(f"\nThe page: {page} (open it in a browser). {story.seconds:.0f} s.")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} steps/s")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
