"""Peak memory of a whole training step with sparse products against dense PyTorch: `./dev bench memory`.

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
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn

from lograd.models import CifarResNet
from lograd.ops.sparse_products import release_workspace
from lograd.report.environment import machine
from lograd.report.markdown import markdown
from lograd.training import Session
from lograd.treatments import Backend

from .models import CASES as TIMED
from .models import Case, Encoder, session_of
from .timing import progress, versions, write

SPARSITY = 0.85


def four_layers() -> nn.Module:
    """Four layers of BERT-base, one after the other."""
    return nn.Sequential(*(Encoder() for _ in range(4)))


CASES = (
    *TIMED[:3],
    Case("4 BERT-base layers, 16 x 128", four_layers, (16, 128, 768), last=""),
    Case("ResNet-20, 16 channels, batch 128", lambda: CifarResNet(20), (128, 3, 32, 32)),
)
WAYS: dict[str, Backend | None] = {"dense": None, "sparse": "sparse", "auto": "auto"}
LIVE_BYTES_ONLY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
"""From 64 KB on memory is mapped, and given back when it is freed; the rest is in one arena."""
MEGABYTE = 2**20


def measure(case: Case, backend: Backend | None, last: bool) -> dict[str, float]:
    """Megabytes of a settled step above the state before it, and of the step in which sparse products begin."""
    torch.manual_seed(0)
    way = session_of(case, case.build().train(), None if backend is None else SPARSITY, last, backend or "auto")
    way.step()  # makes the optimizer's state, and takes the first statistics
    state = _state(way)
    beginning = _peak(way)
    return {"state": state / MEGABYTE, "beginning": (beginning - state) / MEGABYTE, "settled": _settled(way, state)}


def _settled(way: Session, state: int) -> float:
    """Megabytes of a step above the state; what the step before has left in workspaces is part of it."""
    return (_peak(way) - state) / MEGABYTE


def _peak(way: Session) -> int:
    """The peak of one step, in bytes."""
    way.optimizer.zero_grad()
    Path("/proc/self/clear_refs").write_text("5")
    way.step()
    return _status("VmHWM")


def _state(way: Session) -> int:
    """Bytes in memory between steps, without what kernels keep."""
    way.optimizer.zero_grad()
    release_workspace()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_a_process(case: Case, way: str, last: bool, threads: int) -> dict[str, float]:
    """Measure one way in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.memory",
        "--one",
        f"{CASES.index(case)} {way}",
        "--threads",
        str(threads),
    ]
    command += ["--channels-last" if last else "--no-channels-last"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=os.environ | LIVE_BYTES_ONLY, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Peaks as multiples of the dense one."""
    lines = []
    for row in rows:
        dense = row["ways"]["dense"]["settled"]
        line = {"model": row["model"], "threads": row["threads"], "dense MB": f"{dense:.0f}"}
        for name in ("sparse", "auto"):
            line[name] = f"{row['ways'][name]['settled'] / dense:.2f}"
            line[f"{name}, first treated step"] = f"{row['ways'][name]['beginning'] / dense:.2f}"
        lines.append(line)
    columns = [
        "model",
        "threads",
        "dense MB",
        "sparse",
        "auto",
        "sparse, first treated step",
        "auto, first treated step",
    ]
    return markdown(lines, columns)


def main(
    threads: int = typer.Option(1, min=1, max=256, help="Threads."),
    channels_last: bool = typer.Option(True, help="The layout of images, in all ways."),
    only: str = typer.Option("", help="Cases whose name contains this."),
    save: bool = typer.Option(True, help="Write benchmarks/results/memory.* (never with --only)."),
    one: str = typer.Option("", hidden=True, help="Number of a case, and a way: measure in this process."),
) -> None:
    """Peak memory of training steps with pruned gradients over that of dense PyTorch."""
    torch.set_num_threads(threads)
    if one:
        number, way = one.split()
        print(json.dumps(measure(CASES[int(number)], WAYS[way], channels_last)))
        return
    cases = [case for case in CASES if only in case.name]
    if not cases:
        raise typer.BadParameter(f"no case contains {only!r}; there are: {', '.join(case.name for case in CASES)}")
    rows = []
    for case in progress(cases):
        ways = {way: in_a_process(case, way, channels_last, threads) for way in WAYS}
        rows.append({"model": case.name, "threads": threads, "channels last": channels_last, "ways": ways})
        print(table(rows[-1:]), file=sys.stderr)
    what = (
        "Peak memory of a training step above the state before it (model, optimizer, data), as a multiple of dense "
        f"PyTorch's in the same layout, images with channels {'last' if channels_last else 'first'}; all layers are "
        "pruned to 85 % zeros, but the last of the image models. In the first treated step backend='auto' times both "
        "ways. `./dev bench memory` makes this table."
    )
    text = table(rows)
    print(text)
    if save and not only:
        write("memory", {"what": what, "versions": versions("torch"), "machine": machine(), "rows": rows}, what, text)


if __name__ == "__main__":
    typer.run(main)
