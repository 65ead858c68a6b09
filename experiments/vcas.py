"""Whole rows in fine-tuning, after VCAS [wang2024]: `python -m experiments.vcas --help`, `./dev reproduce vcas`.

MiniLM on SST-2, CoLA and MRPC through Hugging Face's Trainer, as in `experiments.proof`, whose runs these are: in
float32, with rows dropped at two budgets of noise, with integers, and with both.  "Work of the backward" is the share
of the multiply-adds of dX and dW of all linear layers that was carried out, with rows that were zero as they came.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import typer

from lograd.errors import InvalidValue

from . import proof

RESULTS = Path(__file__).parent / "results" / "vcas"
WAYS = (
    "fp32", "rows-noise0.05", "int6-full-rows+rows-noise0.05", "rows-noise0.02", "int6-full-rows",
)  # fmt: skip
"""In the order in which they are trained."""
STEPS = {"sst2": 300, "cola": 200, "mrpc": 120}
HEADER = (
    "way",
    "seeds",
    "work of the backward",
    "CPU ms of a step",
    "CPU s in all",
    "times FP32",
    "accuracy, %",
    "minus FP32",
)


def runs(task: str, seeds: int, ways: list[str], data: str, work: str, steps: int = 0) -> list[proof.Run]:
    """Return the runs of a task, seed by seed."""
    if task not in STEPS:
        raise InvalidValue(f"{task!r} is not a task; there are {', '.join(STEPS)}.")
    name, length = "minilm" if task == "sst2" else f"minilm-{task}", steps or STEPS[task]
    results = str(Path(work) / "results") if steps else str(RESULTS)
    return [
        proof.Run(name, way, seed, length, 32, 1e-4, min(60, length), data, work, results)
        for seed in range(seeds)
        for way in ways
    ]


def main(
    tasks: list[str] = typer.Option(list(STEPS), "--task", help="sst2, cola, mrpc."),
    ways: list[str] = typer.Option(list(WAYS), "--way", help="fp32 or a recipe."),
    seeds: int = typer.Option(3, help="Seeds 0, 1, ..."),
    data: str = typer.Option("data", help="Folder with sst2/, cola/ and mrpc/."),
    work: str = typer.Option("runs/vcas", help="Folder of journals and checkpoints."),
) -> None:  # fmt: skip
    """Train what is not trained yet; a run that was stopped goes on."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for task in tasks:
        for run in runs(task, seeds, ways, data, work):
            trained(run)


def trained(run: proof.Run) -> dict[str, Any]:
    """Return what a finished run has written; train it, or go on, if it is not finished."""
    if not run.result.exists():
        proof.fine_tune(run)
    found: dict[str, Any] = json.loads(run.result.read_text())
    return found


def finished(results: Path) -> list[dict[str, Any]]:
    """Return all finished runs of a folder."""
    return [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]


def rows(members: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table of one task."""
    dense = {one["seed"]: one for one in members if one["way"] == "fp32"}
    names = list(dict.fromkeys([*WAYS, *(str(one["way"]) for one in members)]))
    return [
        _row(way, chosen, dense)
        for way in names
        if (chosen := sorted((one for one in members if one["way"] == way), key=lambda one: int(one["seed"])))
    ]


def _row(way: str, members: list[dict[str, Any]], dense: dict[int, dict[str, Any]]) -> list[str]:
    pairs = [(one, dense[one["seed"]]) for one in members if one["seed"] in dense]
    percent = [[100 * float(one["final"]["accuracy"]) for one in pair] for pair in pairs]
    step = mean(one["step_median"] for one in members)
    faster = [plain["cpu_seconds"] / one["cpu_seconds"] for one, plain in pairs]
    return [
        way,
        ", ".join(str(one["seed"]) for one in members),
        f"{100 * mean(one.get('backward_work', 1.0) for one in members):.0f} %",
        f"{1e3 * step:.0f}",
        f"{mean(one['cpu_seconds'] for one in members):.0f}",
        f"{mean(faster):.2f}" if faster else "–",
        proof.spread([100 * one["final"]["accuracy"] for one in members]),
        proof.spread([own - plain for own, plain in percent], "+") if way != "fp32" else "",
    ]


if __name__ == "__main__":
    typer.run(main)
