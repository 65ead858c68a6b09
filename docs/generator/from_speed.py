"""Blocks about time to accuracy, from the committed results of `./dev reproduce speed`."""

from __future__ import annotations

import json

from .blocks import Maker, table
from .from_results import EXPERIMENTS, Row

COLUMNS = {
    "threads": "threads", "step, dense": "dense step", "step, fast": "fast step", "finding the plan": "search",
    "seconds, dense": "seconds, dense", "seconds, fast": "seconds, fast", "times sooner": "times sooner",
    "spread over seeds": "spread",
}  # fmt: skip
"""Columns of a result, and what they are called here."""


def found() -> dict[str, Row]:
    """The results with times by the names of their files."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(EXPERIMENTS.glob("speed-*.json"))}
    return {name: result for name, result in results.items() if result["tables"][0]["rows"]}


def time_to_accuracy() -> str:
    """A line for each network and number of threads."""
    lines = []
    for result in found().values():
        for row in result["tables"][0]["rows"]:
            metric, fast = list(row)[5:7]
            shown = [row[column] if row[column] is not None else "" for column in COLUMNS]
            lines.append([_network(result), f"{metric.removesuffix(', dense')} {row[metric]}", row[fast], *shown])
    return table(["network", "dense reaches", "fast at its end", *COLUMNS.values()], lines)


def times_sooner() -> str:
    """A line for each network, the threads beside each other."""
    lines = []
    for result in found().values():
        rows = {row["threads"]: row for row in result["tables"][0]["rows"]}
        first = next(iter(rows.values()))
        metric = list(first)[5]
        sooner = [_with_spread(rows[threads]) if threads in rows else "" for threads in (1, 2)]
        seeds = first["seeds"]
        lines.append([_network(result), f"{metric.removesuffix(', dense')} {first[metric]}", seeds, *sooner])
    return table(["network", "dense reaches", "seeds", "times sooner, 1 thread", "2 threads"], lines, words=2)


def _with_spread(row: Row) -> str:
    if row["times sooner"] is None:
        return "not reached"
    spread = "" if row["spread over seeds"] is None else f" ± {row['spread over seeds']}"
    times = float(row["times sooner"])
    word = "sooner" if times > 1.005 else "later" if times < 0.995 else "level"
    return f"{row['times sooner']}{spread}, {word}"


def curves() -> str:
    """The charts of all networks, one thread and two."""
    lines = []
    for name, result in found().items():
        words = f"{_network(result)}: dense and fast over seconds"
        files = [f"{name}-{number}.svg" for number, _ in enumerate(result["tables"][0]["rows"], 1)]
        lines += [f"![{words}](results/{file})" for file in files]
        lines += ["", *result["tables"][0]["notes"], ""]
    return "\n".join(lines)


def _network(result: Row) -> str:
    settings = next(cell["settings"] for cell in result["cells"] if cell["name"] == "dense-0")
    pixels = f", {settings['pixels']} x {settings['pixels']} pixels" if settings.get("pixels") else ""
    return f"{settings['model']}, width {settings['width']}{pixels}, batch {settings['batch']}"


BLOCKS: dict[str, Maker] = {
    "time-to-accuracy": time_to_accuracy, "times-sooner": times_sooner, "accuracy-over-seconds": curves,
}  # fmt: skip
"""A function for each name of a block."""
