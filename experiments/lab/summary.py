"""The end of a run in one object: final and best metrics, counters, time of a step."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from lograd.attachment.counters import Count

from .journal import Line, read_lines
from .measuring import Metric
from .session import Counted, Session, prunes


def summarise(
    session: Session, counted: Counted, metrics: Path, status: Literal["finished", "diverged"], reason: str = ""
) -> dict[str, Any]:
    """The content of summary.json for a session at its end.

    Args:
        counted: all that the session has counted; of several ranks, each has to ask it for that.
        metrics: the journal.
    """
    lines = read_lines(metrics)
    judged = [line for line in lines if line["kind"] == session.metric.kind]
    layers = counted.layers
    return {
        "status": status,
        "reason": reason,
        "steps": session.steps,
        "epochs": session.epoch,
        "final": judged[-1] if judged else None,
        "best": best_of(judged, session.metric),
        "skipped_steps": session.skipped,
        "pruned": session.handle is not None and prunes(session.handle.plan),
        **({} if session.handle is None or session.handle.guard is None else {"guard": session.handle.guard.summary()}),
        "seconds": round(session.seconds, 3),
        "seconds_per_step": seconds_per_step(lines),
        "counters": None
        if layers is None
        else {
            "total": sum(layers.values(), Count()).to_json(),
            "sparsity": {name: count.sparsity for name, count in layers.items()},
        },
        **({} if counted.edges is None else {"edges": counted.edges}),
        "weights": None if session.weights is None else session.weights.counters()._asdict(),
    }


def best_of(judged: list[Line], metric: Metric) -> Line | None:
    """The best of the lines that have the metric, the first of equals."""
    sign = 1 if metric.higher_is_better else -1
    return max(judged, key=lambda line: sign * float(line[metric.name]), default=None)


def seconds_per_step(lines: list[Line]) -> float | None:
    """The median over the log intervals of a step's mean time: a machine that was busy for a while does not show.

    The first interval is left out where there are others: the first steps of a process are slow.
    """
    places = [(0, 0.0)] + [(line["step"], line["seconds"]) for line in lines if line["kind"] == "train"]
    times = [(t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(places) if s1 > s0]
    return round(statistics.median(times[1:] or times), 6) if times else None
