"""A case of `./dev bench integer`: one piece of work done in several ways, timed in turns in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from ..timing import turns

Call = Callable[[], object]
Make = Callable[[], Call]
"""Prepares a way and returns the call to time; one that cannot be had raises."""

FP32 = "FP32"
"""Ways whose names begin so are what all others are divided into: the fastest of them counts."""
SLOW = 10.0
"""A way that takes so many times longer than FP32 is timed in two turns only."""


@dataclass(frozen=True)
class Case:
    """A line of a table.

    Args:
        section: the table.
        name: the work.
        ours: by name, ways that must run.
        peers: by name, ways of others, FP32 among them; one that does not run is reported with the reason.
    """

    section: str
    name: str
    ours: Mapping[str, Make]
    peers: Mapping[str, Make]


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """The times of all ways of a case, their speed-ups over FP32, and the reasons of those that do not run."""
    calls, reasons = _prepared({**case.peers, **case.ours})
    slow = _slow(calls)
    times = turns({name: call for name, call in calls.items() if name not in slow}, repeats)
    times |= turns({name: calls[name] for name in slow}, min(repeats, 2))
    row: dict[str, Any] = {"section": case.section, "case": case.name, "threads": torch.get_num_threads()}
    for words, kind in (("minimum", min), ("median", median)):
        found = {name: kind(times[name]) for name in calls}
        best = min((value for name, value in found.items() if name.startswith(FP32)), default=float("nan"))
        row[f"{words} ms"] = {name: round(value, 4) for name, value in found.items()}
        row[f"speed-up by {words}"] = {
            name: round(best / value, 3) for name, value in found.items() if not name.startswith(FP32)
        }
    row["does not run"] = reasons
    row["failed"] = [name for name in case.ours if name in reasons]
    return row


def _prepared(ways: Mapping[str, Make]) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls of the ways that run, each made once, and why the others do not."""
    calls: dict[str, Call] = {}
    reasons: dict[str, str] = {}
    for name, make in ways.items():
        made = _tried(make)
        if isinstance(made, str):
            reasons[name] = made
        else:
            calls[name] = made
    return calls, reasons


def _tried(make: Make) -> Call | str:
    """A call that has run once, or the reason why it does not run."""
    try:
        call = make()
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return call


def _slow(calls: Mapping[str, Call]) -> set[str]:
    """The names of ways that take much longer than FP32."""
    once = {name: times[0] for name, times in turns(calls, 1).items()}
    dense = min((value for name, value in once.items() if name.startswith(FP32)), default=0.0)
    return {name for name, value in once.items() if dense and value > SLOW * dense}
