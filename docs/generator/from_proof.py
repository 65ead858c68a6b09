"""Blocks about trainings to an accuracy worth having, from the committed results of `./dev proof`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from experiments import proof

from .blocks import Maker, table

NAMES = {
    "resnet": "ResNet18, width 32, CIFAR-100 at 16 x 16, batch 64",
    "resnet64": "ResNet18, width 64, CIFAR-100 at 16 x 16, batch 64",
    "chars": "character transformer, 6 layers, width 384",
    "minilm": "MiniLM on SST-2 through Trainer, batch 32",
}
"""Tasks in words."""
SETS = {"avx2": "AVX2 alone", "avx512vnni": "VNNI"}
"""Instruction sets in words."""


def found(folder: Path) -> list[dict[str, Any]]:
    """Return the results in a folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def trainings() -> str:
    """Accuracies of all runs, a table for each task and length."""
    return proof.tables(found(proof.RESULTS))


def time_to_accuracy() -> str:
    """Seconds to FP32's accuracy, for each task, instruction set and number of threads."""
    return proof.computed(found(proof.RESULTS), found(proof.TIMES))


def times_sooner() -> str:
    """A line for each task: accuracies, and how many times sooner each instruction set gets there on one thread."""
    timed = found(proof.TIMES)
    kinds = sorted(
        {(one["isa"], one["machine"]["threads"]) for one in timed}, key=lambda kind: (kind[0] == "avx2", kind)
    )
    lines = []
    for members in proof.grouped(found(proof.RESULTS)):
        rows = {(line[2], int(line[1])): line for line in proof.sooner(members, timed)}
        if not rows:
            continue
        dense, ours = ([one for one in members if one["way"] == way] for way in ("fp32", "accelerate"))
        ends = [proof.spread([100 * one["final"]["accuracy"] for one in runs]) for runs in (dense, ours)]
        first = members[0]
        steps = f"{NAMES[first['task']]}, {first['steps']} steps"
        lines.append([steps, *ends, *(cell(rows[kind]) if kind in rows else "" for kind in kinds)])
    columns = [f"{SETS.get(isa, isa)}, {count} thread{'s' * (count > 1)}" for isa, count in kinds]
    where = sorted({one["machine"]["cpu"] for one in timed})
    notes = f"Made by `./dev proof` on {', '.join(where)}; accuracies are mean ± half the range of the seeds, in %."
    return f"{table(['training', 'FP32', 'accelerated', *columns], lines)}\n\n{notes}"


def cell(line: list[str]) -> str:
    """Return the mean of times sooner, and how many seeds never got there."""
    each = line[-1].split(", ")
    reached = [float(one) for one in each if one != "not reached"]
    if not reached:
        return "not reached"
    missing = f" ({len(reached)} of {len(each)} seeds)" if len(reached) < len(each) else ""
    return f"{mean(reached):.2f}{missing}"


BLOCKS: dict[str, Maker] = {
    "trainings": trainings, "time-to-accuracy": time_to_accuracy, "times-sooner": times_sooner,
}  # fmt: skip
"""A function for each name of a block."""
