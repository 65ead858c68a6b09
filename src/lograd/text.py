"""Tables for the terminal, drawn by rich.  A table is a string of its full width, which `print` fits to a terminal.

A table that does not fit first loses the least important columns, which its caption then names; then its texts wrap.
The same value becomes HTML on a page and in a notebook.
"""

from __future__ import annotations

import html
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

READABLE = 100
"""Characters at which titles and captions are wrapped, unless the table is wider."""
GAP = 2
"""Spaces before each cell."""
WRAPPED = 24
"""The least characters to which a text is wrapped; before it gets narrower, a column is left out."""


@final
@dataclass(frozen=True)
class TableParts:
    """The parts of a table, which rich draws at any width; `text_table` explains them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    droppable: Sequence[str]
    header: bool

    @property
    def names(self) -> list[str]:
        """The names of the columns as they are shown."""
        return [name.removeprefix("<") for name in self.columns]

    @property
    def width(self) -> int:
        """The number of characters in a line when nothing is wrapped or left out."""
        return sum(self._widths()) + GAP * len(self.columns)

    def is_text(self, place: int) -> bool:
        """Return True if a column holds texts, which stand on the left."""
        return place == 0 or not self.header or self.columns[place].startswith("<")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        gone = self._left_out(room)
        readable = min(room, max(READABLE, self.width))
        if self.title:
            yield _prose(f"{self.title}\n", "bold", console, readable)
        yield Padding(self._drawn(gone, room), (0, 0, 0, GAP), expand=False)
        below = [self.caption]
        if gone:
            below.append(f"Not shown, for want of room: {', '.join(name.removeprefix('<') for name in gone)}.")
        if any(below):
            yield Text("\n") + _prose("\n".join(filter(None, below)), "dim", console, readable)

    def drawn(self, width: int) -> str:
        """Return the table as text without colours."""
        console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def _widths(self) -> list[int]:
        lines = [*([self.names] if self.header else []), *self.rows]
        cells = zip(*lines, strict=True) if lines else ((),) * len(self.columns)
        return [max((cell_len(part) for cell in column for part in cell.split("\n")), default=0) for column in cells]

    def _left_out(self, room: int) -> list[str]:
        """Return the columns without which the table fits the room, its texts wrapped."""
        widths = self._widths()
        least = [min(width, WRAPPED) if i and self.is_text(i) else width for i, width in enumerate(widths)]
        needed = {name: GAP + width for name, width in zip(self.columns, least, strict=True)}
        others = [name for name in reversed(self.columns[1:]) if name not in self.droppable]
        gone: list[str] = []
        for name in (name for name in (*self.droppable, *others) if name in needed and len(self.columns) > 1):
            if sum(needed.values()) <= room:
                break
            del needed[name]
            gone.append(name)
        return gone

    def _drawn(self, gone: Sequence[str], room: int) -> Table:
        made = Table(box=SIMPLE_HEAD, show_edge=False, show_header=self.header, pad_edge=False, padding=(0, 1, 0, 0))
        kept = [place for place, column in enumerate(self.columns) if column not in gone]
        widths = self._widths()
        for place in kept:
            text = self.is_text(place)
            whole = not text if place else widths[0] + GAP <= room
            made.add_column(
                Text(self.names[place]), justify="left" if text else "right", no_wrap=whole, overflow="fold"
            )
        for row in self.rows:
            made.add_row(*(Text(row[place]) for place in kept))
        return made


@final
class TextTable(str):
    """A table as a string of its full width, with its parts; see `text_table`."""

    parts: TableParts

    def __str__(self) -> str:
        room = _terminal()
        return self[:] if room is None or self.parts.width <= room else self.parts.drawn(room)

    __repr__ = __str__

    def __rich__(self) -> TableParts:
        return self.parts

    def _repr_html_(self) -> str:
        parts = self.parts
        head = "".join(f"<th>{html.escape(name)}</th>" for name in parts.names) if parts.header else ""
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in parts.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        below = "".join(f"<p>{html.escape(line)}</p>" for line in parts.caption.splitlines())
        return f"<p><b>{html.escape(parts.title)}</b></p>{table}{below}"


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    *,
    droppable: Sequence[str] = (),
    header: bool = True,
) -> TextTable:
    """Return a table.

    Args:
        columns: the names.  The first column and those whose name begins with "<" hold texts and are aligned left, the
            others hold numbers and are aligned right.
        droppable: names of columns to leave out where there is no room, the least important first.
        header: False leaves out the line of names.

    >>> table = text_table("Layers", ["layer", "zeros"], [["conv1", "12 %"], ["fc", "3 %"]])
    >>> print(table.splitlines()[2])
      layer  zeros
    """
    cells = [[_printable(cell) for cell in row] for row in rows]
    names = [_printable(name) for name in columns]
    parts = TableParts(_printable(title), names, cells, _printable(caption), droppable, header)
    table = TextTable(parts.drawn(max(parts.width, READABLE)))
    table.parts = parts
    return table


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return a table in Markdown; the first column is text, the others are numbers.

    Args:
        rows: cells by the name of their column; one that is missing is left empty.
        columns: the names, in order.
    """
    lines = [markdown_row(columns), "|---|" + "---:|" * (len(columns) - 1)]
    lines += [markdown_row([row.get(column, "") for column in columns]) for row in rows]
    return "\n".join(lines)


def markdown_row(cells: Sequence[object]) -> str:
    """Return one row, in which a bar inside a cell, as in |g|, does not end it.

    >>> markdown_row(["|g|", 1])
    '| \\\\|g\\\\| | 1 |'
    """
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _prose(text: str, style: str, console: Console, width: int) -> Text:
    wrapped = Text("\n").join(Text(text).wrap(console, width))
    return Text(wrapped.plain, style=style, no_wrap=True, overflow="ignore")


def _printable(text: str) -> str:
    """Replace control characters, which a layer's name may hold and a terminal would obey, by U+FFFD."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _terminal() -> int | None:
    """Return the width of the terminal; None where standard output is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (AttributeError, OSError, ValueError):  # a file, a pipe, a notebook, a closed stream
        return None
