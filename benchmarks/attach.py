"""A training step with a plan attached, against the plain step and QPyTorch: `./dev bench attach`.

ResNet-20 on random images of CIFAR's shape.  Products are dense, so what is measured is what the treatment (or the
profiler) costs, not what it may gain.  The ways take turns, step by step, in one process; each trains its own copy of
the model.  Writes benchmarks/results/attach.json and attach.md.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
import typer
from rich.progress import track
from timing import machine, markdown, versions, write
from torch import nn

import lograd
from lograd.models import CifarResNet

WARM_UP = 100
"""Steps of the attached ways before the clock starts.  Statistics are taken in most of the first forty, and then less
and less often: here in one step of five, later in one of ten."""


def batches(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(size, 3, 32, 32, generator=generator), torch.randint(100, (size,), generator=generator)


class Way:
    """A model with its optimizer and what is attached to it."""

    def __init__(self, name: str, model: nn.Module, prepare: Callable[[nn.Module, ExitStack], Any]) -> None:
        self.name, self.model = name, copy.deepcopy(model)
        self.milliseconds: list[float] = []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.stack = ExitStack()
        self.handle = prepare(self.model, self.stack)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        start = perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if isinstance(self.handle, lograd.Handle):
            self.handle.step()
        self.milliseconds.append(1e3 * (perf_counter() - start))


def attached(plan: lograd.Plan, **options: Any) -> Callable[[nn.Module, ExitStack], Any]:
    return lambda model, stack: stack.enter_context(lograd.attach(model, plan, backend="dense", **options))


def observed(model: nn.Module, stack: ExitStack) -> Any:
    return stack.enter_context(lograd.observe(model))


def qpytorch(exponent: int, mantissa: int, rounding: str) -> Callable[[nn.Module, ExitStack], Any]:
    """QPyTorch's own way: a module behind each layer that leaves the output alone and rounds its gradient."""
    from qtorch import FloatingPoint
    from qtorch.quant import Quantizer

    def prepare(model: nn.Module, stack: ExitStack) -> None:
        number = FloatingPoint(exp=exponent, man=mantissa)
        for module in list(model.modules()):
            if isinstance(module, nn.Conv2d | nn.Linear):
                rounder = Quantizer(None, number, "nearest", rounding)
                module.register_forward_hook(lambda _, __, output, rounder=rounder: rounder(output))

    return prepare


def ways_of(model: nn.Module, size: int, quick: bool) -> dict[str, Callable[[nn.Module, ExitStack], Any]]:
    profile = lograd.profile(model, batches(size), F.cross_entropy, steps=2)
    bits, zeros = profile.plan(bits=6), profile.plan(sparsity=0.85, everywhere=True)
    ways = {
        "plain": lambda model, stack: None,
        "observed, 1 step in 50": observed,
        "identity": attached(lograd.Plan.uniform("identity")),
        "FP6 stochastic": attached(bits),
        "85 % pruned": attached(zeros),
        "85 % pruned, then FP6": attached(profile.plan(sparsity=0.85, bits=6, everywhere=True)),
    }
    if not quick:
        for rounding in ("stochastic", "nearest"):
            ways[f"QPyTorch FP6 {rounding}"] = qpytorch(4, 1, rounding)
    return ways


def main(
    quick: bool = typer.Option(False, help="Half a minute: batches of 16, few steps, no QPyTorch; nothing is written."),
    depth: int = typer.Option(20, help="Layers of the residual network: 8, 14, 20, ..."),
    batch: int = typer.Option(128, min=1, help="Images of a step."),
    steps: int = typer.Option(30, min=1, help="Steps of each way that are measured."),
    threads: int = typer.Option(0, min=0, help="Threads; 0 leaves PyTorch's choice."),
) -> None:
    """Milliseconds of a step, and the ratio to the plain step."""
    if threads:
        torch.set_num_threads(threads)
    batch, steps = (16, 10) if quick else (batch, steps)
    torch.manual_seed(0)
    model = CifarResNet(depth)
    ways = [Way(name, model, prepare) for name, prepare in ways_of(model, batch, quick).items()]
    data = batches(batch)
    jobs: list[tuple[Way, ...]] = [
        (way,) for way in ways for _ in range(WARM_UP if isinstance(way.handle, lograd.Handle) else 3)
    ]
    jobs += [tuple(ways)] * steps
    for turn in track(jobs, "measuring") if sys.stdout.isatty() else jobs:
        images, labels = next(data)
        for way in turn:
            way.step(images, labels)
    rows: list[dict[str, Any]] = []
    for way in ways:
        way.stack.close()
        measured = way.milliseconds[-steps:]
        rows.append({"way": way.name, "ms": median(measured), "mean ms": sum(measured) / steps})
    plain = rows[0]
    for row in rows:
        row |= {"of plain": row["ms"] / plain["ms"], "mean of plain": row["mean ms"] / plain["mean ms"]}
    shown = [
        {"way": row["way"], "ms a step": f"{row['ms']:.0f}", "of the plain step": f"{row['of plain']:.3f}",
         "of its mean": f"{row['mean of plain']:.3f}"}
        for row in rows
    ]  # fmt: skip
    what = (
        f"A training step of ResNet-{depth} with {batch} images of 32x32 on {torch.get_num_threads()} threads, dense "
        f"products: medians of {steps} steps taken in turns. The mean contains the steps that take statistics. "
        "`./dev bench attach` makes this table."
    )
    text = markdown(shown, list(shown[0]))
    print(text)
    if not quick:
        result = {"what": what, "versions": versions("torch", "qtorch"), "machine": machine(), "rows": rows}
        write("attach", result, what, text)


if __name__ == "__main__":
    typer.run(main)
