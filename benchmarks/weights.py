"""Bytes and time of training with weights in low precision, against FP32 and torch's bfloat16: `./dev bench weights`.

A layer of BERT-base, trained by SGD with momentum and by AdamW.  Bytes of weights, gradients and optimizer state are
those of the tensors that are alive after a step.  Peaks are those of the resident memory, each way in a process of its
own, as in `./dev bench memory`; times are those of whole steps, taken in turns in one process.  Writes
benchmarks/results/weights.json and weights.md.  Linux with glibc only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import lograd
from lograd.text import markdown
from lograd.weights import LowPrecisionTensor

from .memory import LIVE_BYTES_ONLY, MEGABYTE
from .models import Encoder
from .timing import conditions, progress, turns, versions, write

SHAPE = (8, 128, 768)
OPTIMIZERS = ("SGD, momentum", "AdamW")


@dataclass(frozen=True)
class Way:
    """How weights are stored."""

    name: str
    format: str = ""
    """The format in which weights are stored; empty for weights as they are."""
    dtype: torch.dtype = torch.float32


WAYS = (
    Way("FP32"),
    Way("torch, bfloat16 model", dtype=torch.bfloat16),
    Way("bfloat16", "bfloat16"),
    Way("int8", "int8"),
    Way("FP8 (e4m3fn)", "e4m3fn"),
)


class Training:
    """One layer of BERT-base in training on one batch."""

    def __init__(self, way: Way, optimizer: str) -> None:
        torch.manual_seed(0)
        self.model = Encoder().to(way.dtype)
        self.x = torch.randn(SHAPE).to(way.dtype)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, lr=1e-4)
            if optimizer == "AdamW"
            else torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
        )
        if way.format:
            lograd.low_precision_weights(self.model, way.format, optimizer=self.optimizer)

    def step(self) -> None:
        """Forward, backward and the optimizer's step."""
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def backward(self) -> None:
        """Forward and backward alone."""
        torch.autograd.backward(F.mse_loss(self.model(self.x), self.x.roll(1, 0)))


def stored_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors as they are stored."""
    found = 0
    for one in tensors:
        if isinstance(one, LowPrecisionTensor):
            found += one.bytes
        elif isinstance(one, Tensor):
            found += one.untyped_storage().nbytes()
    return found


def measure(way: Way, optimizer: str) -> dict[str, float]:
    """Bytes for each parameter, and the peaks of a step and of its optimizer part in megabytes."""
    training = Training(way, optimizer)
    training.step()
    training.step()
    parameters = list(training.model.parameters())
    count = sum(one.numel() for one in parameters)
    state = [value for one in training.optimizer.state.values() for value in one.values()]
    found = {
        "weights": stored_bytes(parameters) / count,
        "gradients": stored_bytes(one.grad for one in parameters) / count,
        "state": stored_bytes(state) / count,
    }
    training.optimizer.zero_grad()
    rest = _resident()
    training.backward()
    before = _resident()
    _forget_peak()
    training.optimizer.step()
    found["optimizer peak MB"] = (_status("VmHWM") - before) / MEGABYTE
    _resident()
    _forget_peak()
    training.step()
    return found | {"step peak MB": (_status("VmHWM") - rest) / MEGABYTE, "parameters": count}


def _resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_a_process(way: Way, optimizer: str, threads: int) -> dict[str, float]:
    """Measure the memory of one way in a process of its own."""
    one = json.dumps([WAYS.index(way), optimizer])
    command = [sys.executable, "-m", "benchmarks.weights", "--one", one, "--threads", str(threads)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=os.environ | LIVE_BYTES_ONLY, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def times(optimizer: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of whole steps of each way, in turns."""
    cases = {way.name: Training(way, optimizer).step for way in WAYS}
    for case in cases.values():
        case()
    return turns(cases, repeats)


def table(rows: list[dict[str, Any]]) -> str:
    """Bytes, peaks and times of all ways."""
    lines = []
    for row in rows:
        total = row["weights"] + row["gradients"] + row["state"]
        lines.append({
            "optimizer": row["optimizer"], "stored as": row["way"],
            **{f"{name}, bytes": f"{row[name]:.2f}" for name in ("weights", "gradients", "state")},
            "together": f"{total:.2f}", "peak of a step, MB": f"{row['step peak MB']:.0f}",
            "peak of the optimizer, MB": f"{row['optimizer peak MB']:.0f}",
            "time / FP32": f"{row['time / FP32']:.2f}",
        })  # fmt: skip
    return markdown(lines, list(lines[0]))


def main(
    threads: int = typer.Option(1, min=1, max=256, help="Threads."),
    repeats: int = typer.Option(9, min=1, max=1000, help="Timed steps of each way."),
    save: bool = typer.Option(True, help="Write benchmarks/results/weights.*."),
    one: str = typer.Option("", hidden=True, help="Number of a way, and an optimizer: measure in this process."),
) -> None:
    """Bytes of weights, gradients and optimizer state, peaks of memory and time of steps."""
    torch.set_num_threads(threads)
    if one:
        number, optimizer = json.loads(one)
        print(json.dumps(measure(WAYS[number], optimizer)))
        return
    rows = []
    for optimizer in progress(list(OPTIMIZERS)):
        taken = times(optimizer, repeats)
        for way in WAYS:
            found: dict[str, Any] = {"optimizer": optimizer, "way": way.name, "threads": threads}
            found |= in_a_process(way, optimizer, threads)
            ratios = [mine / other for mine, other in zip(taken[way.name], taken["FP32"], strict=True)]
            rows.append(found | {"ms": taken[way.name], "time / FP32": median(ratios)})
    what = (
        "Training of a layer of BERT-base on 8 sequences of 128 tokens: bytes for each parameter of weights, gradients "
        "and optimizer state between steps, biases and normalisation in float32 included; peak memory of a step above "
        "the memory before it without gradients, and of the optimizer's part alone; and the time of a step over that "
        "of FP32, the median of steps taken in turns. `./dev bench weights` makes this table."
    )
    text = table(rows)
    print(text)
    if save:
        write(
            "weights", {"what": what, "versions": versions("torch"), "machine": conditions(), "rows": rows}, what, text
        )


if __name__ == "__main__":
    typer.run(main)
