"""Tables in Markdown, for the pages of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A table; the first column is text, the others are numbers.

    Args:
        rows: cells by the name of their column; one that is missing is left empty.
        columns: the names, in order.
    """
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += [f"| {' | '.join(str(row.get(column, '')) for column in columns)} |" for row in rows]
    return "\n".join(lines)
