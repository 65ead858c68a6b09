"""Tables for the terminal: strings, as wide as they need; rich and notebooks draw them, and narrow terminals get less.

A table that does not fit first loses the columns that matter least, then wraps its texts.  The names in its first
column are broken only where a name alone is wider than the screen.
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
"""Columns to which titles and captions are wrapped, if the table itself is narrower."""
GAP = "  "
"""Between two cells, and at the beginning of a line."""
WRAPPED = 24
"""Columns to which a text may be wrapped before a column is left out."""
STYLES = {"title": "bold", "header": "bold", "rule": "dim", "row": "", "caption": "dim"}


@final
@dataclass(frozen=True)
class Layout:
    """What a table holds, and how it is drawn into the room that there is.

    Args:
        columns: their names; the first column and those whose name begins with "<" are texts and go left, the others
            are numbers and go right.
        droppable: names of columns to leave out where there is no room, the least important first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    droppable: tuple[str, ...] = ()
    header: bool = True

    @property
    def width(self) -> int:
        """The columns that it takes when nothing is wrapped or left out."""
        return sum(self._widths()) + len(GAP) * len(self.columns)

    def text(self, room: int | None = None) -> str:
        """Plain text in so many columns; None gives it all that it needs."""
        return "\n".join(line for _, line in self.lines(room or max(self.width, READABLE)))

    def lines(self, room: int) -> Iterator[tuple[str, str]]:
        """Each line with what it is: one of STYLES."""
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
        if fitted.caption:
            yield from (("caption", line) for line in ("", *_wrapped(fitted.caption, readable)))

    def html(self) -> str:
        """For notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self._names) if self.header else ""
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return (
            f"<p><b>{escape(self.title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            + "".join(f"<p>{escape(line)}</p>" for line in self.caption.splitlines())
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for kind, line in self.lines(options.max_width):
            yield Text(line, style=STYLES[kind], no_wrap=True, overflow="ignore")

    @property
    def _names(self) -> list[str]:
        return [name.removeprefix("<") for name in self.columns]

    def _is_text(self, place: int) -> bool:
        return place == 0 or not self.header or self.columns[place].startswith("<")

    def _widths(self) -> list[int]:
        lines = [*([self._names] if self.header else []), *self.rows]
        cells = zip(*lines, strict=True) if lines else ((),) * len(self.columns)
        return [max((cell_len(part) for cell in column for part in cell.split("\n")), default=0) for column in cells]

    def _fitted(self, room: int) -> Layout:
        """The same without the columns that find no room; the caption names them."""
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
        return replace(found, caption=f"{self.caption}\n{note}" if self.caption else note)

    def _without(self, name: str) -> Layout:
        kept = [place for place, column in enumerate(self.columns) if column != name]
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in kept), rows=rows)

    def _narrow(self) -> list[int]:
        """Widths with texts, but not names, wrapped to a few words."""
        widths = self._widths()
        return [min(width, WRAPPED) if i and self._is_text(i) else width for i, width in enumerate(widths)]

    def _shrunk(self, room: int) -> list[int]:
        """Widths that fit the room, if texts can make up for what is missing: the widest text gives first."""
        widths, least = self._widths(), self._narrow()
        least[0] = min(least[0], WRAPPED // 2)  # last of all, where a name alone is wider than the screen
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
    """A table as a string, as wide as it needs; where it is printed on a terminal, it fits the terminal."""

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
) -> TextTable:
    """A table of texts and numbers; see `Layout`."""
    cells = tuple(tuple(map(_printable, row)) for row in rows)
    names = tuple(map(_printable, columns))
    return TextTable(Layout(_printable(title), names, cells, _printable(caption), tuple(droppable), header))


def show(table: TextTable, console: Console) -> None:
    """Print a table in colours: as wide as the terminal, or whole where a file or a pipe has all the room."""
    console.print(table, width=None if console.is_terminal else max(console.width, table.layout.width))


def _printable(text: str) -> str:
    """A name may hold anything; what would move the cursor or ring the bell becomes U+FFFD."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _wrapped(text: str, width: int) -> list[str]:
    return [part for line in text.split("\n") for part in textwrap.wrap(line, width) or [""]]


def _terminal() -> int | None:
    """The width of the terminal that standard output is; None where it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (AttributeError, OSError, ValueError):  # a file, a pipe, a notebook, a closed stream
        return None
