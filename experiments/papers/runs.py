"""Finished runs side by side: their results, and how long one step of each takes, timed in turns."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from lograd import Plan

from ..lab import Config, in_turns, load_data, session_of
from .cells import CellFolder, Found

Timed = Mapping[str, tuple[Config, Plan | None]]
"""By name, the settings of a run and its plan."""


def finished(folder: CellFolder, name: str) -> Found | None:
    """The summary of a run that reached its end; a diverged one has no result to compare."""
    found = folder.found(name)
    return found if found is not None and found["status"] == "finished" else None


def timed_in_turns(runs: Timed, turns: int) -> Found:
    """Seconds of single steps of each run, batches included, taken in turns; the last third of the turns counts."""
    data = load_data(next(iter(runs.values()))[0])
    sessions = {name: session_of(config, data, plan) for name, (config, plan) in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    for turn in in_turns(sessions, turns):
        if turn.step > turns - max(turns // 3, 1):
            taken[turn.name].append(turn.session.times.batch + turn.session.times.step)
    return taken


def speeds(taken: Found | None, base: str) -> dict[str, float]:
    """How many steps of each run take as long as one step of the base: ratios of medians."""
    if taken is None:
        return {}
    return {name: median(taken[base]) / median(seconds) for name, seconds in taken.items()}
