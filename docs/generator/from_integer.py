"""Blocks about integer products: speed of products, layers and steps, and memory of steps, from committed results."""

from __future__ import annotations

from .blocks import Maker, table
from .from_results import Row, benchmark, machine_of, where

FP32 = "FP32"


def _rows(section: str, threads: int | None = None) -> list[Row]:
    """The rows of one table of `./dev bench integer`, with any number of threads or with one that is given."""
    rows = [row for row in benchmark("integer")["rows"] if row["section"] == section]
    return [row for row in rows if threads in (None, row["threads"])]


def _dense(row: Row) -> float:
    """Milliseconds of FP32 in its better layout, by medians."""
    return min(float(ms) for name, ms in row["median ms"].items() if name.startswith(FP32))


def _gain(row: Row, way: str) -> str:
    """How many times faster than FP32, by minima and by medians."""
    if way in row["does not run"]:
        return "does not run"
    gains = [row[f"speed-up by {kind}"].get(way) for kind in ("minimum", "median")]
    return "" if None in gains else " / ".join(f"{gain:.1f}" for gain in gains)


def _held() -> tuple[str, ...]:
    """Return the ways that are left out: bfloat16, where oneDNN was kept from instructions that the CPU has for it."""
    held = "ONEDNN_MAX_CPU_ISA" in benchmark("integer")["machine"]["environment"]
    return ("bfloat16",) if held else ()


def _ways(rows: list[Row]) -> list[str]:
    """The ways that rows are measured in, ours first."""
    found = dict.fromkeys(name for row in rows for name in (*row["speed-up by minimum"], *row["does not run"]))
    others = [name for name in found if not name.startswith((FP32, *_held()))]
    return sorted(others, key=lambda name: name.startswith(("bfloat16", "torch")))


def products() -> str:
    """Speed-ups of products alone: a line for each pair of operands, the threads beside each other."""
    rows = _rows("products")
    columns = [f"{row['threads']} thread{'s' * (row['threads'] > 1)}" for row in rows]
    lines = [[way, *(_gain(row, way) for row in rows)] for way in _ways(rows)]
    return table(["operands", *columns], lines)


def _by_case(section: str, threads: int | None = None) -> str:
    rows = _rows(section, threads)
    ways = [way for way in _ways(rows) if "NCHW" not in way]
    lines = [[row["case"], row["threads"], f"{_dense(row):.1f}", *(_gain(row, way) for way in ways)] for row in rows]
    return f"{table(['case', 'threads', 'FP32, ms', *ways], lines)}\n\n{where('integer')}"


def layers() -> str:
    """Speed-ups of layers, forward and backward, quantizing included."""
    return _by_case("layers", 1)


def steps() -> str:
    """Speed-ups of whole training steps."""
    return _by_case("steps")


def summary() -> str:
    """One sentence on the steps of larger models at six bits, by medians."""
    gains: dict[str, list[str]] = {}
    for row in _rows("steps")[:4]:
        gain, threads = row["speed-up by median"]["int6-full, auto"], row["threads"]
        gains.setdefault(row["case"], []).append(f"{gain:.1f} on {threads} thread{'s' * (threads > 1)}")
    steps = "; ".join(f"{case}, {' and '.join(each)}" for case, each in gains.items())
    where = machine_of(benchmark("integer"))
    return (
        f"A whole step with int6-full, times faster than FP32 by medians (`./dev bench integer` on {where}): {steps}."
    )


def memory() -> str:
    """Peak memory of steps in integers against FP32."""
    lines = []
    rows = benchmark("memory")["integer rows"]
    ways = [way for way in rows[0]["ways"] if way != "dense"]
    for row in rows:
        dense = row["ways"]["dense"]["settled"]
        lines.append([row["model"], f"{dense:.0f}", *(f"{row['ways'][way]['settled'] / dense:.2f}" for way in ways)])
    return table(["model", "FP32, MB", *ways], lines)


BLOCKS: dict[str, Maker] = {
    "integer-products": products,
    "integer-layers": layers,
    "integer-steps": steps,
    "integer-memory": memory,
    "integer-summary": summary,
}
"""A function for each name of a block."""
