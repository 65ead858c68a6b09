"""Which rows of a large table run every day; the others are marked slow and run with ./dev slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def daily(rows: Iterable[Any], kept: Iterable[Any] | Callable[[Any], bool]) -> list[Any]:
    """The rows for `pytest.mark.parametrize`: those that `kept` names, or says yes to, are not slow.

    A name in `kept` that is no row is an error: a table that changes would else lose its daily rows silently.
    """
    rows = list(rows)
    if not callable(kept):
        names = list(kept)
        assert all(name in rows for name in names), f"{[name for name in names if name not in rows]} are no rows"
        return daily(rows, lambda row: row in names)
    chosen = [row if kept(row) else slow(row) for row in rows]
    assert any(row is one for row, one in zip(rows, chosen, strict=True)), "no row is left for every day"
    return chosen


def slow(row: Any) -> Any:
    """A row for ./dev slow alone; a tuple is one value for each name."""
    return pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow)
