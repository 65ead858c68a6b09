"""Blocks of docs/reproduction.md: for each table and figure of the papers the claim, the paper's numbers and ours.

Numbers come from theory or from the committed results (docs/results) and from nothing else; an entry without any says
so.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from experiments.papers import EXPERIMENTS, THEORY, experiment_of
from experiments.papers.experiment import Experiment
from experiments.papers.result import text

from . import from_results
from .blocks import Maker, table
from .from_results import Row

COMPUTED = {
    "table2": "All ten entries of the paper follow from the exact quantizer of Eq. 2, evaluated near the top of its "
    "ranges of sigma; the printed Eq. 4 cannot give them, as it is infinite without mantissa bits.",
    "fig3a": "Eq. 4 follows simulation with 2^n1 in place of the printed 2^n1 - 1.",
    "fig3b": "The authors' lookup table lies within 0.5 of the switch points of the exact quantizer.",
    "fig3c": "The normal law gets the trend wrong, as the paper says.",
    "fig4": "Thresholds give the sparsity that was asked for; Eq. 8 holds with sqrt(2) sigma in place of the printed "
    "sqrt(2 sigma).",
}
"""Sentences on entries that are computed from theory, checked by tests/experiments/test_papers.py."""
MOST_ROWS = 40
"""Rows of a table on the page; its file has all of them."""


def entries() -> dict[str, type[Experiment]]:
    """Return the experiments that check a claim, by name."""
    return {name: kind for name in EXPERIMENTS if (kind := experiment_of(name)).claim}


def overview() -> str:
    """All names, where their numbers come from, and what the cpu preset costs."""
    lines = [[f"[{name}](#{name})", _words(THEORY[name].__doc__), "computed", "0"] for name in THEORY]
    for name, kind in entries().items():
        lines.append([f"[{name}](#{name})", kind.words, _state(name, kind), _hours(kind)])
    return table(["name", "what it shows", "results", "core-hours, cpu"], lines, words=3)


def sections() -> str:
    """A section for each name: claim, numbers, and what agrees."""
    return "\n\n".join([*map(_computed, THEORY), *(_section(name, kind) for name, kind in entries().items())])


@cache
def _computed(name: str) -> str:
    """Return the section of an entry of theory, whose table is computed now."""
    result = THEORY[name]()
    rows = [list(map(text, row)) for row in result.rows]
    command = f"`./dev reproduce {name}` makes this table, with charts."
    return "\n\n".join(
        [f"## {name}", f"{_words(THEORY[name].__doc__)} {result.claim} {command}", table(result.columns, rows),
         *result.notes, f"**Here.** {COMPUTED[name]}"]
    )  # fmt: skip


def _words(docstring: str | None) -> str:
    return (docstring or "").split("\n")[0]


def _hours(kind: type[Experiment]) -> str:
    """Return the core-hours of the cpu preset, as they were estimated."""
    hours = kind.make({}, "cpu").hours
    return "" if hours is None else f"{hours:.1f}" if hours >= 0.1 else f"{hours:.2f}"


def _exists(label: str) -> bool:
    return (from_results.EXPERIMENTS / f"{label}.json").exists()


def _own(name: str) -> list[str]:
    """Return the labels of committed results of this experiment, whatever its network."""
    found = [path.stem for path in sorted(from_results.EXPERIMENTS.glob(f"{name}*.json"))]
    return [label for label in found if label == name or label.startswith(f"{name}-")]


def _state(name: str, kind: type[Experiment]) -> str:
    if _own(name):
        return "run"
    others = [label for label in kind.committed if _exists(label)]
    return f"in part, by {', '.join(others)}" if others else "not run yet"


def _section(name: str, kind: type[Experiment]) -> str:
    parts = [f"## {name}", f"**Claim.** {kind.claim}"]
    found = [_results(label) for label in _own(name)]
    found += [_committed(label, first) for label, first in kind.committed.items() if _exists(label)]
    if not found:
        cost = f" ({_hours(kind)} core-hours)"
        data = " --data DIR" if kind.needs_data or kind.make({}, "cpu").data_kind else ""
        return "\n\n".join([*parts, f"**Here.** Not run yet: `./dev reproduce {name} --preset cpu{data}`{cost}."])
    if kind.verdict:
        found.append(f"**Here.** {kind.verdict}")
    return "\n\n".join([*parts, *found])


def _results(label: str) -> str:
    """Return all tables of a results file of this experiment, each with the words that say how it was made."""
    parts = []
    for one in from_results.experiment(label)["tables"]:
        if one["rows"]:
            lines = [list(row.values()) for row in one["rows"][:MOST_ROWS]]
            parts.append(
                f"{one['title']} ([numbers](results/{label}.json)). {one['claim']}\n\n{_table(one['rows'], lines)}"
            )
            parts += one["notes"]
    charts = sorted(from_results.EXPERIMENTS.glob(f"{label}-[0-9].svg"))
    if charts:
        parts.append("\n".join(f"![{label}, {path.stem[-1]}](results/{path.name})" for path in charts))
    return "\n\n".join(parts)


def _table(rows: list[Row], lines: list[list[Any]]) -> str:
    return table(list(rows[0]), [["" if cell is None else cell for cell in line] for line in lines])


def _committed(label: str, first: tuple[str, ...]) -> str:
    """Return what another experiment has measured of the claim: the rows whose first cell begins so, or all."""
    name = label.partition("-")[0]
    words = f"By `./dev reproduce {name}` ([numbers](results/{label}.json))"
    if label in OLDER and not first:
        return f"{words}:\n\n{OLDER[label]()}"
    rows = from_results.experiment(label)["tables"][0]["rows"]
    chosen = [row for row in rows if str(next(iter(row.values()))).startswith(first)]
    return f"{words}{_setting(label)}:\n\n{_table(chosen, [list(row.values()) for row in chosen])}"


def _setting(label: str) -> str:
    """Return the settings of a results file of cells, from its first sentence."""
    found = from_results.experiment(label)
    return f", {found['tables'][0]['claim'].split('. ')[0]}" if "tables" in found else ""


OLDER: dict[str, Maker] = {
    "sparsity": from_results.sparsity,
    "learning-resnet18": from_results.learning_resnet18,
    "learning-resnet20": from_results.learning_resnet20,
}
"""Results whose files are older than cells."""
BLOCKS: dict[str, Maker] = {"reproduction": overview, "reproduction-sections": sections}
"""A function for each name of a block."""
