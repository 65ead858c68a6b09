"""Tables for the terminal: built as values, shown by rich, and plain text where a string is asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 160
"""Columns of a printed table; wider ones are folded."""


class TextTable(Table):
    """A table of rich that a plain `print` shows as well, without colours."""

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def text_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> TextTable:
    """The first column and those whose name begins with "<" go left, the others are numbers and go right."""
    table = TextTable(
        title=title, caption=caption or None, box=SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    for place, name in enumerate(columns):
        left = place == 0 or name.startswith("<")
        table.add_column(Text(name.removeprefix("<")), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # layer names may hold brackets, which are no markup
    return table
