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
    lines = [line(columns), "|---|" + "---:|" * (len(columns) - 1)]
    lines += [line([row.get(column, "") for column in columns]) for row in rows]
    return "\n".join(lines)


def line(cells: Sequence[object]) -> str:
    """A row, in which a bar inside a cell, as in |g|, does not end it.

    >>> line(["|g|", 1])
    '| \\\\|g\\\\| | 1 |'
    """
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
