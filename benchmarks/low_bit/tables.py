"""Tables of `./dev bench integer`, from the rows that it writes."""

from __future__ import annotations

from typing import Any

from lograd.text import markdown

from .cases import FP32

Row = dict[str, Any]

TITLES = {
    "products": "Products alone, operands coded before",
    "layers": "Layers, forward and backward, quantizing included",
    "steps": "Whole training steps",
}
NOT_RUNNING = "does not run"


def tables(rows: list[Row]) -> str:
    """All sections, each with its title and the reasons of what does not run."""
    parts = []
    for section, title in TITLES.items():
        found = [row for row in rows if row["section"] == section]
        if found:
            make = _by_way if section == "products" else _by_case
            parts += [f"### {title}", make(found), *_reasons(found)]
    return "\n\n".join(parts)


def _by_case(rows: list[Row]) -> str:
    """A line for each case and number of threads, a column for each way."""
    names = _others(rows)
    lines = []
    for row in rows:
        line = {"case": row["case"], "threads": row["threads"], "FP32 ms": f"{_dense(row):.2f}"}
        lines.append(line | {name: _cell(row, name) for name in names})
    return markdown(lines, ["case", "threads", "FP32 ms", *names])


def _by_way(rows: list[Row]) -> str:
    """A line for each way, a column for each number of threads."""
    names = _others(rows)
    lines = [{"operands": FP32} | {_head(row): f"{_dense(row):.2f} ms" for row in rows}]
    lines += [{"operands": name} | {_head(row): _cell(row, name) for row in rows} for name in names]
    return markdown(lines, ["operands", *map(_head, rows)])


def _head(row: Row) -> str:
    return f"{row['case']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


def _dense(row: Row) -> float:
    """Milliseconds of FP32 in its better layout, by minima."""
    return min((ms for name, ms in row["minimum ms"].items() if name.startswith(FP32)), default=float("nan"))


def _others(rows: list[Row]) -> list[str]:
    """The ways of some rows that are not FP32, ours first."""
    found = dict.fromkeys(name for row in rows for name in (*row["speed-up by minimum"], *row[NOT_RUNNING]))
    others = [name for name in found if not name.startswith(FP32)]
    return sorted(others, key=lambda name: name.startswith(("bfloat16", "torch")))


def _cell(row: Row, name: str) -> str:
    """Speed-ups of minima and of medians."""
    if name in row[NOT_RUNNING]:
        return NOT_RUNNING
    gains = [row[f"speed-up by {kind}"].get(name) for kind in ("minimum", "median")]
    return "" if None in gains else " / ".join(f"{gain:.2f}" for gain in gains)


def _reasons(rows: list[Row]) -> list[str]:
    """A line for each reason why something does not run."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, reason in row[NOT_RUNNING].items():
            names.setdefault(reason, {})[name] = None
    return [f"Does not run: {', '.join(found)} ({reason})." for reason, found in names.items()]
