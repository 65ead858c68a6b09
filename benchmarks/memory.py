"""Peak memory of a whole training step against dense PyTorch, pruned or in integers: `./dev bench memory`.

Each way has a process of its own.  The peak is that of the resident memory (VmHWM, set back by /proc/self/clear_refs)
above the memory of model, optimizer and data before the step.  glibc is told to give back at once what is freed, so
live bytes are what is measured.  Workspaces that kernels keep between calls count: the state before the step is taken
without them.  Writes benchmarks/results/memory.json and memory.md.  Linux with glibc only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn

import lograd
from experiments.lab import Session
from experiments.models import CifarResNet, ResNet18
from lograd.ops.sparse_products import release_workspace
from lograd.text import markdown
from lograd.treatments import Backend

from .low_bit.steps import in_integers
from .models import CASES as TIMED
from .models import Case, Encoder, pruned, session_of
from .timing import conditions, progress, versions, write

SPARSITY = 0.85


def four_layers() -> nn.Module:
    """Four layers of BERT-base, one after the other."""
    return nn.Sequential(*(Encoder() for _ in range(4)))


BERT = Case("4 BERT-base layers, 16 x 128", four_layers, (16, 128, 768), last="")


@dataclass(frozen=True)
class Table:
    """Models, with the ways in which each is trained beside "dense"."""

    cases: tuple[Case, ...]
    ways: tuple[str, ...]


TABLES = {
    "rows": Table(
        (*TIMED[:3], BERT, Case("ResNet-20, 16 channels, batch 128", lambda: CifarResNet(20), (128, 3, 32, 32))),
        ("sparse", "auto"),
    ),
    "integer rows": Table(
        (Case("ResNet18, 32x32, batch 128", ResNet18, (128, 3, 32, 32)), BERT),
        ("int8-full", "int6-full", "int4-full", "int4-full, rest at 8 bits", "int4-full, rest at 4 bits"),
    ),
}
"""By the name under which the results are written."""

LIVE_BYTES_ONLY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
"""From 64 KB on memory is mapped, and given back when it is freed; the rest is in one arena."""
MEGABYTE = 2**20


def training(case: Case, way: str, last: bool) -> Session:
    """A model in training, in one of the ways."""
    plan: lograd.Plan | None = None
    backend: Backend = "auto"
    if way.startswith("int"):
        rest = re.search("rest at (.) bits", way)
        more = {"attention": 8, "saved": int(rest[1])} if rest else {}
        plan, backend = in_integers(case, int(way[3]), **more), "integer"
    elif way != "dense":
        plan, backend = pruned(case, SPARSITY), "sparse" if way == "sparse" else "auto"
    torch.manual_seed(0)
    return session_of(case, case.build().train(), plan, last, backend)


def measure(case: Case, way: str, last: bool) -> dict[str, float]:
    """Megabytes of a settled step above the state before it, and of the step in which treated products begin."""
    session = training(case, way, last)
    session.step()  # makes the optimizer's state, and takes the first statistics
    state = _state(session)
    beginning = _peak(session)
    return {"state": state / MEGABYTE, "beginning": (beginning - state) / MEGABYTE, "settled": _settled(session, state)}


def _settled(session: Session, state: int) -> float:
    """Megabytes of a step above the state; what the step before has left in workspaces is part of it."""
    return (_peak(session) - state) / MEGABYTE


def _peak(session: Session) -> int:
    """The peak of one step, in bytes."""
    session.optimizer.zero_grad()
    Path("/proc/self/clear_refs").write_text("5")
    session.step()
    return _status("VmHWM")


def _state(session: Session) -> int:
    """Bytes in memory between steps, without what kernels keep."""
    session.optimizer.zero_grad()
    release_workspace()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_a_process(table: str, case: Case, way: str, last: bool, threads: int) -> dict[str, float]:
    """Measure one way in a process of its own."""
    one = json.dumps([table, TABLES[table].cases.index(case), way])
    command = [sys.executable, "-m", "benchmarks.memory", "--one", one, "--threads", str(threads)]
    command += ["--channels-last" if last else "--no-channels-last"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=os.environ | LIVE_BYTES_ONLY, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Peaks as multiples of the dense one; all rows have the same ways."""
    lines, ways = [], [way for way in rows[0]["ways"] if way != "dense"]
    for row in rows:
        dense = row["ways"]["dense"]["settled"]
        line = {"model": row["model"], "threads": row["threads"], "dense MB": f"{dense:.0f}"}
        for name in ways:
            line[name] = f"{row['ways'][name]['settled'] / dense:.2f}"
            line[f"{name}, first treated step"] = f"{row['ways'][name]['beginning'] / dense:.2f}"
        lines.append(line)
    return markdown(lines, ["model", "threads", "dense MB", *ways, *(f"{name}, first treated step" for name in ways)])


def main(
    threads: int = typer.Option(1, min=1, max=256, help="Threads."),
    channels_last: bool = typer.Option(True, help="The layout of images, in all ways."),
    only: str = typer.Option("", help='Cases whose table and name contain this: "integer", "BERT".'),
    save: bool = typer.Option(True, help="Write benchmarks/results/memory.* (never with --only)."),
    one: str = typer.Option("", hidden=True, help="Table, number of a case, and a way: measure in this process."),
) -> None:
    """Peak memory of training steps, pruned and in integers, over that of dense PyTorch."""
    torch.set_num_threads(threads)
    if one:
        name, number, way = json.loads(one)
        print(json.dumps(measure(TABLES[name].cases[number], way, channels_last)))
        return
    jobs = [(name, case) for name, part in TABLES.items() for case in part.cases if only in f"{name}: {case.name}"]
    if not jobs:
        names = "; ".join(f"{name}: {case.name}" for name, part in TABLES.items() for case in part.cases)
        raise typer.BadParameter(f"no case contains {only!r}; there are: {names}")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in dict.fromkeys(name for name, _ in jobs)}
    for name, case in progress(jobs):
        ways = {way: in_a_process(name, case, way, channels_last, threads) for way in ("dense", *TABLES[name].ways)}
        found[name].append({"model": case.name, "threads": threads, "channels last": channels_last, "ways": ways})
        print(table(found[name][-1:]), file=sys.stderr)
    what = (
        "Peak memory of a training step above the state before it (model, optimizer, data), as a multiple of dense "
        f"PyTorch's in the same layout, images with channels {'last' if channels_last else 'first'}. Sparse and auto: "
        "all layers are pruned to 85 % zeros, but the last of the image models; in the first treated step "
        "backend='auto' times both ways. int4-full and the like: all three products in integers, but those of the "
        "first and the last layer of the image models; the rest at 8 or 4 bits: with attention and with all that other "
        "layers keep for the backward as codes, too. `./dev bench memory` makes these tables."
    )
    text = "\n\n".join(table(rows) for rows in found.values())
    print(text)
    if save and not only:
        write("memory", {"what": what, "versions": versions("torch"), "machine": conditions(), **found}, what, text)


if __name__ == "__main__":
    typer.run(main)
