"""The tables of `./dev bench guard`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from statistics import mean, median, quantiles
from typing import Any

from lograd.report.markdown import markdown

from .band import Values, limits, steps_outside

Row = dict[str, Any]
NEVER = "never"


def tables(rows: Sequence[Row]) -> str:
    """Return the tables of all finished parts."""
    makers = {"planted": planted_cells, "quiet": quiet_cells, "cost": cost_cells, "noise": noise_cells}
    found = {part: [cell for row in rows if row["part"] == part for cell in make(row)] for part, make in makers.items()}
    columns = {part: list(dict.fromkeys(name for cell in cells for name in cell)) for part, cells in found.items()}
    return "\n\n".join(markdown(cells, columns[part]) for part, cells in found.items() if cells)


def settings_in_words(row: Row) -> str:
    """Return how long and how large the runs of a row were."""
    what = f"images of {PurePath(row['data']).name}" if row.get("data") else "digits"
    return (
        f"{row['steps']} steps a run, {what} of {row['size']} x {row['size']} pixels, in planted cases "
        f"{row['seeds']} dense runs and {row['treated']} of each mode"
    )


def planted_cells(row: Row) -> list[Row]:
    """Return a row for each mode of a planted case, with all of its seeds."""
    dense = row["dense runs that leave the band of the others"]
    first = {
        "planted": row["name"], "network": row["network"], "plan": "dense", "loss left the band at step":
        f"{sum(one is not None for one in dense)} of {len(dense)} leave that of the others",
    }  # fmt: skip
    return [first, *(_mode_cells(row, mode) for mode in dict.fromkeys(run["mode"] for run in row["runs"]))]


def _mode_cells(row: Row, mode: str) -> Row:
    runs = [run for run in row["runs"] if run["mode"] == mode]
    cells = {
        "planted": row["name"], "network": row["network"], "plan": f"{row['recipe']}, {mode}",
        "loss left the band at step": ", ".join(_left(run, limits(row["dense"])) for run in runs),
        "first warning": "; ".join(first_words(run["said"]) for run in runs),
    }  # fmt: skip
    if mode == "no guard":
        return cells
    waits = [run["waiting"] for run in runs]
    return cells | {
        "layers waiting, mean and at the end": ", ".join(
            f"{mean(one):.0f} and {one[-1]} of {run['layers']}" for one, run in zip(waits, runs, strict=True)
        ),
        "falls, first at step": ", ".join(fallen(run["changes"]) for run in runs),
        "returned at step": ", ".join(returned(run["changes"]) for run in runs),
        "untreated steps": ", ".join(str(run["references"]) for run in runs),
    }


def _left(run: Row, ends: Values) -> str:
    if run["left"] is None:
        return NEVER
    return f"{run['left']} ({steps_outside(run['losses'], ends)} of {len(ends)} steps outside)"


def first_words(said: Sequence[str]) -> str:
    """Return the step and the layer of the first warning of a run.

    >>> first_words(["step 50: the gradient of 'conv1' has another size."])
    'step 50, conv1'
    """
    for text in said:
        if found := re.match(r"step (\d+): the gradient of '([^']+)'", text):
            return f"step {found[1]}, {found[2]}"
        if found := re.search(r"by step (\d+) the energy of the gradient of '([^']+)'", text):
            return f"step {found[1]}, {found[2]}"
    return "none"


def fallen(changes: Sequence[Row]) -> str:
    """Return how many times layers fell back, and the first step."""
    steps = [change["step"] for change in changes if change["cause"] != "fits"]
    return f"{len(steps)}, {steps[0]}" if steps else "0"


def returned(changes: Sequence[Row]) -> str:
    """Return the first step at which a layer that fell back was treated as before."""
    gone: dict[str, str] = {}
    for change in changes:
        if change["cause"] != "fits":
            gone.setdefault(change["layer"], change["before"])
        elif gone.get(change["layer"]) == change["after"]:
            return f"{change['step']}, {change['layer']}"
    return NEVER if gone else ""


def quiet_cells(row: Row) -> list[Row]:
    """Return what the guard did in a quiet run."""
    return [
        {
            "quiet run": row["network"], "plan": row["recipe"],
            "layers waiting at the end": f"{row['waiting']} of {row['layers']}",
            f"changes up to step {row['released']}": row["changes before"],
            "changes after it": row["changes after"], "warnings": len(row["said"]),
            "untreated steps before and after": f"{row['references before']}, {row['references after']}",
            "steps after it that are those of a run without guard, to the bit":
            f"{row['equal']} of {row['steps after']}",
        }
    ]  # fmt: skip


def cost_cells(row: Row) -> list[Row]:
    """Return the times of a step, in the first steps and in settled ones."""
    return [_cost_cells(row, row[phase]) for phase in ("first", "settled") if phase in row]


def _cost_cells(row: Row, phase: Row) -> Row:
    low, _, high = quantiles(phase["ratios"], n=4)
    times, means, taken = phase["milliseconds"], phase["mean milliseconds"], phase["statistics"]
    return {
        "cost of a step": row["network"], "plan": row["recipe"], "steps": "{} to {}".format(*phase["steps"]),
        "without, ms": f"{times['without']:.2f}", "with, ms": f"{times['with']:.2f}",
        "with / without": f"{median(phase['ratios']):.3f} ({low:.3f} to {high:.3f})",
        "ratio of means": f"{means['with'] / means['without']:.3f}",
        "steps with statistics, without and with": f"{taken['without']}, {taken['with']}",
    }  # fmt: skip


def noise_cells(row: Row) -> list[Row]:
    """Return the noise that the guard states beside the measured one."""
    return [
        {
            "noise at fixed weights": row["network"], "plan": row["recipe"],
            "layers treated": f"{row['inside']} of {row['layers']}",
            "guard's bound": f"{row['bound']:.3g}", "guard's figure": f"{row['stated']:.3g}",
            "measured, worst tensor": f"{row['worst rho']:.3g}",
            "measured, all": f"{row['rho']:.3g} ± {row['error']:.1g}",
            "figure / worst": f"{row['stated'] / row['worst rho']:.2f}" if row["worst rho"] else "",
        }
    ]  # fmt: skip
