"""What a reproduction hands back: a table with the paper's value beside ours, charts, and plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..report import Chart, Page


@dataclass(frozen=True, eq=False)
class Result:
    """One table or figure of a paper, computed anew."""

    name: str
    title: str
    claim: str
    """What the paper says, and what came out here."""
    columns: list[str]
    rows: Sequence[Sequence[object]]
    charts: list[Chart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"name": self.name, "title": self.title, "claim": self.claim, "rows": rows, "notes": self.notes}

    def add_to(self, page: Page) -> None:
        page.heading(self.title).text(self.claim)
        if self.charts:
            page.charts(*self.charts)
        page.table(self.columns, [[text(cell) for cell in row] for row in self.rows])
        for note in self.notes:
            page.note(note)


def text(cell: object) -> str:
    """A table cell for people: four digits, and a dash for what does not exist."""
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
