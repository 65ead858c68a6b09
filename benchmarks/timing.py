"""What the benchmarks share: interleaved medians, and how results are described and written."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import lograd
from lograd import environment

RESULTS = Path(__file__).parent / "results"


def medians(cases: Mapping[str, Callable[[], object]], repeats: int, shortest: float = 0.0) -> dict[str, float]:
    """Milliseconds of a call of each case, the median of its `turns`."""
    return {name: median(values) for name, values in turns(cases, repeats, shortest).items()}


def turns(cases: Mapping[str, Callable[[], object]], repeats: int, shortest: float = 0.0) -> dict[str, list[float]]:
    """Milliseconds of a call of each case, taken in turns so that a disturbance hits all of them.

    A turn repeats its call until it has taken about `shortest` seconds, so that the clock's own cost does not show.
    """
    calls = {name: _calls(case, shortest) for name, case in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            times[name].append(1e3 * _seconds(case, calls[name]) / calls[name])
    return times


def _seconds(case: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        case()
    return time.perf_counter() - start


def _calls(case: Callable[[], object], shortest: float) -> int:
    if shortest <= 0:
        return 1
    case()  # the first call may compile something
    return max(1, round(shortest / max(_seconds(case, 1), 1e-7)))


def versions(*packages: str) -> dict[str, str]:
    ours = {"lograd": lograd.__version__, "python": platform.python_version()}
    return ours | {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, Any]:
    described = environment.describe()
    return {
        "cpu": described["machine"]["cpu"],
        "cores": described["machine"]["usable cores"],
        "instruction set": described["native module"]["instruction set"],
        "date": date.today().isoformat(),
    }


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += [f"| {' | '.join(str(row.get(column, '')) for column in columns)} |" for row in rows]
    return "\n".join(lines)


def write(name: str, result: Mapping[str, Any], introduction: str, table: str) -> None:
    """results/NAME.json, and results/NAME.md with one paragraph before the table."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(f"{introduction}\n\n{table}\n")
