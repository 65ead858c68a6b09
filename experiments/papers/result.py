"""The result of a reproduction: a table with the paper's value beside ours, figures, and plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from lograd.plots import Section
from lograd.text import markdown, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, eq=False)
class Result:
    """One table or figure.

    Args:
        name: by which it is asked for.
        title: its heading.
        claim: what the paper says and what came out here, or how a table is to be read.
        columns: names of the columns.
        rows: the cells, in the order of the columns.
        figures: drawn on the page.
        notes: sentences below the table.
    """

    name: str
    title: str
    claim: str
    columns: list[str]
    rows: Sequence[Sequence[object]]
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return title, claim, notes, and an object for each row."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"name": self.name, "title": self.title, "claim": self.claim, "rows": rows, "notes": self.notes}

    def section(self) -> Section:
        """Return it as a part of a page."""
        rows = [[text(cell) for cell in row] for row in self.rows]
        table = text_table("", self.columns, rows, " ".join(self.notes))
        return Section(self.title, self.claim, figures=self.figures, tables=[table])

    def to_markdown(self) -> str:
        """Return the claim, the table and the notes, for a page of results."""
        rows = [dict(zip(self.columns, map(text, row), strict=True)) for row in self.rows]
        return "\n\n".join([self.claim, markdown(rows, self.columns), *self.notes]) + "\n"


def text(cell: object) -> str:
    """Return a table cell for people: four digits, and a dash for what does not exist."""
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
