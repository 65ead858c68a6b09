"""Tables for the terminal, which are strings; rich and notebooks draw them in their own way.

A table that does not fit a terminal first loses the least important columns, then wraps its texts.  A name in the first
column is broken only where it alone is wider than the terminal.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from .svg import escape

READABLE = 100
"""Characters at which titles and captions are wrapped, unless the table is wider."""
GAP = "  "
"""Stands between two cells, and at the beginning of a line."""
WRAPPED = 24
"""The least characters to which a text is wrapped; before it gets narrower, a column is left out."""
STYLES = {"title": "bold", "header": "bold", "rule": "dim", "row": "", "caption": "dim"}


@final
@dataclass(frozen=True)
class Layout:
    """The contents of a table, and how it is drawn at a given width.

    Args:
        columns: the names.  The first column and those whose name begins with "<" hold texts and are aligned left, the
            others hold numbers and are aligned right.
        droppable: names of columns to leave out where there is no room, the least important first.
        header: False leaves out the line of names.
        notes: sentences on some columns, after the caption; one is shown only where one of its columns is.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    droppable: tuple[str, ...] = ()
    header: bool = True
    notes: tuple[tuple[tuple[str, ...], str], ...] = ()

    @property
    def width(self) -> int:
        """The number of characters in a line when nothing is wrapped or left out."""
        return sum(self._widths()) + len(GAP) * len(self.columns)

    def text(self, room: int | None = None) -> str:
        """Return plain text of at most `room` characters a line; None gives it all the room that it needs."""
        return "\n".join(line for _, line in self.lines(room or max(self.width, READABLE)))

    def lines(self, room: int) -> Iterator[tuple[str, str]]:
        """Yield each line with its kind, a key of `STYLES`."""
        fitted = self._fitted(room)
        widths = fitted._shrunk(room)
        readable = min(room, max(READABLE, fitted.width))
        if self.title:
            yield from (("title", line) for line in (*_wrapped(self.title, readable), ""))
        if self.header:
            yield from (("header", line) for line in fitted._drawn(fitted._names, widths))
            yield "rule", GAP + "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
        for row in fitted.rows:
            yield from (("row", line) for line in fitted._drawn(row, widths))
        if below := fitted._below:
            yield from (("caption", line) for line in ("", *_wrapped(below, readable)))

    def html(self) -> str:
        """Return the table as HTML, for notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self._names) if self.header else ""
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return (
            f"<p><b>{escape(self.title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            + "".join(f"<p>{escape(line)}</p>" for line in self._below.splitlines())
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for kind, line in self.lines(options.max_width):
            yield Text(line, style=STYLES[kind], no_wrap=True, overflow="ignore")

    @property
    def _names(self) -> list[str]:
        return [name.removeprefix("<") for name in self.columns]

    @property
    def _below(self) -> str:
        """The caption, and the notes on columns that are shown."""
        notes = [text for columns, text in self.notes if set(columns) & set(self.columns)]
        return "\n".join([*([self.caption] if self.caption else []), *notes])

    def _is_text(self, place: int) -> bool:
        return place == 0 or not self.header or self.columns[place].startswith("<")

    def _widths(self) -> list[int]:
        lines = [*([self._names] if self.header else []), *self.rows]
        cells = zip(*lines, strict=True) if lines else ((),) * len(self.columns)
        return [max((cell_len(part) for cell in column for part in cell.split("\n")), default=0) for column in cells]

    def _fitted(self, room: int) -> Layout:
        """Return the table without the columns that have no room, which its caption names."""
        found, gone = self, list[str]()
        others = [name for name in reversed(self.columns[1:]) if name not in self.droppable]
        for name in (*self.droppable, *others):
            narrowest = sum(found._narrow()) + len(GAP) * len(found.columns)
            if narrowest <= room or len(found.columns) < 2:
                break
            if name in found.columns:
                found = found._without(name)
                gone.append(name.removeprefix("<"))
        if not gone:
            return self
        note = f"Not shown, for want of room: {', '.join(gone)}."
        return replace(found, notes=(*self.notes, (found.columns, note)))

    def _without(self, name: str) -> Layout:
        kept = [place for place, column in enumerate(self.columns) if column != name]
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in kept), rows=rows)

    def _narrow(self) -> list[int]:
        """Return the least widths: texts are wrapped to a few words, names and numbers are not."""
        widths = self._widths()
        return [min(width, WRAPPED) if i and self._is_text(i) else width for i, width in enumerate(widths)]

    def _shrunk(self, room: int) -> list[int]:
        """Return widths that fit the room, if texts can be narrowed enough; the widest text is narrowed first."""
        widths, least = self._widths(), self._narrow()
        least[0] = min(least[0], WRAPPED // 2)  # used last, where a name alone is wider than the screen
        while sum(widths) + len(GAP) * len(widths) > room:
            texts = [place for place in range(1, len(widths)) if widths[place] > least[place]]
            widest = max(texts, key=lambda place: widths[place]) if texts else 0
            if widths[widest] <= least[widest]:
                break
            widths[widest] -= 1
        return widths

    def _drawn(self, cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        parts = [_wrapped(cell, max(width, 1)) for cell, width in zip(cells, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            padded = [
                part + pad if self._is_text(i) else pad + part
                for i, part in enumerate(line)
                for pad in (" " * (widths[i] - cell_len(part)),)
            ]
            yield (GAP + GAP.join(padded)).rstrip()


@final
class TextTable(str):
    """A table as a string of its full width; `print` on a terminal fits it to the terminal."""

    layout: Layout

    def __new__(cls, layout: Layout) -> TextTable:
        made = super().__new__(cls, layout.text())
        made.layout = layout
        return made

    def __str__(self) -> str:
        room = _terminal()
        return self[:] if room is None or self.layout.width <= room else self.layout.text(room)

    __repr__ = __str__

    def __rich__(self) -> Layout:
        return self.layout

    def _repr_html_(self) -> str:
        return self.layout.html()

    def __reduce__(self) -> tuple[type[TextTable], tuple[Layout]]:
        return TextTable, (self.layout,)


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    *,
    droppable: Sequence[str] = (),
    header: bool = True,
    notes: Sequence[tuple[Sequence[str], str]] = (),
) -> TextTable:
    """Return a table; the arguments are those of `Layout`.

    >>> table = text_table("Layers", ["layer", "zeros"], [["conv1", "12 %"], ["fc", "3 %"]])
    >>> print(table.splitlines()[2])
      layer  zeros
    """
    cells = tuple(tuple(map(_printable, row)) for row in rows)
    names = tuple(map(_printable, columns))
    told = tuple((tuple(shown), _printable(note)) for shown, note in notes)
    return TextTable(Layout(_printable(title), names, cells, _printable(caption), tuple(droppable), header, told))


def show(table: TextTable, console: Console) -> None:
    """Print a table in colours, fitted to a terminal; a file or a pipe gets its full width."""
    console.print(table, width=None if console.is_terminal else max(console.width, table.layout.width))


def _printable(text: str) -> str:
    """Replace control characters, which a layer's name may hold and a terminal would obey, by U+FFFD."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _wrapped(text: str, width: int) -> list[str]:
    return [part for line in text.split("\n") for part in textwrap.wrap(line, width) or [""]]


def _terminal() -> int | None:
    """Return the width of the terminal; None where standard output is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (AttributeError, OSError, ValueError):  # a file, a pipe, a notebook, a closed stream
        return None
