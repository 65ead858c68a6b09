"""Tables for the terminal: built as values, shown by rich, and plain text where a string is asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def text_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    """The first column and those whose name begins with "<" go left, the others are numbers and go right."""
    table = Table(title=title, caption=caption or None, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for place, name in enumerate(columns):
        left = place == 0 or name.startswith("<")
        table.add_column(Text(name.removeprefix("<")), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # layer names may hold brackets, which are no markup
    return table


def as_text(table: Table, width: int = 160) -> str:
    """What `print` shows: the table without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())
