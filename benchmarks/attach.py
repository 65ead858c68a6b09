"""A training step with a plan attached, against the plain step and QPyTorch: `./dev bench attach`.

ResNet-20 on random images of CIFAR's shape.  Products are dense, so what is measured is what the treatment (or the
profiler) costs, not what it may gain.  The ways take turns, step by step, in one process; each trains its own copy of
the model.  Writes benchmarks/results/attach.json and attach.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import lograd
from experiments.lab import Session, in_turns
from experiments.models import CifarResNet
from lograd.text import markdown

from .timing import conditions, versions, write

WARM_UP = 100
"""Steps of the attached ways before the clock starts.  Statistics are taken in most of the first forty, and then less
and less often: here in one step of five, later in one of ten."""


Prepare = Callable[[nn.Module, ExitStack], object]
"""Hooks something into a model, which goes with the stack."""


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random images with random labels."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(size, 3, 32, 32, generator=generator), torch.randint(100, (size,), generator=generator)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """SGD as a ResNet is trained with."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def observed(model: nn.Module, stack: ExitStack) -> object:
    """Let the profiler look at the training."""
    return stack.enter_context(lograd.observe(model))


def qpytorch(exponent: int, mantissa: int, rounding: str) -> Prepare:
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


def ways_of(model: nn.Module, size: int, quick: bool) -> dict[str, lograd.Plan | Prepare | None]:
    """By name, the plan that a way attaches to the model, or the hook that it puts in."""
    profile = lograd.profile(model, batches(size), F.cross_entropy, steps=2)
    ways: dict[str, lograd.Plan | Prepare | None] = {
        "plain": None,
        "observed, 1 step in 50": observed,
        "identity": lograd.Plan.uniform("identity"),
        "FP6 stochastic": profile.plan(bits=6),
        "85 % pruned": profile.plan(sparsity=0.85, everywhere=True),
        "85 % pruned, then FP6": profile.plan(sparsity=0.85, bits=6, everywhere=True),
    }
    if not quick:
        for rounding in ("stochastic", "nearest"):
            ways[f"QPyTorch FP6 {rounding}"] = qpytorch(4, 1, rounding)
    return ways


def measure(model: nn.Module, batch: int, steps: int, quick: bool) -> list[dict[str, Any]]:
    """The milliseconds of a step of each way, with their ratios to the plain one."""
    with ExitStack() as stack:
        sessions = {}
        for name, way in ways_of(model, batch, quick).items():
            plan = way if isinstance(way, lograd.Plan) else None
            own = copy.deepcopy(model)
            attaching: dict[str, Any] = {} if plan is None else {"backend": "dense"}
            session = Session(own, batches(batch), F.cross_entropy, optimizer(own), plan, **attaching)
            sessions[name] = stack.enter_context(session)
            if callable(way):
                way(sessions[name].model, stack)
            for _ in range(3 if plan is None else WARM_UP):
                sessions[name].step()
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for turn in in_turns(sessions, steps):
            times[turn.name].append(1e3 * turn.session.times.step)
    rows: list[dict[str, Any]] = [
        {"way": name, "ms": median(taken), "mean ms": sum(taken) / steps} for name, taken in times.items()
    ]
    for row in rows:
        row |= {"of plain": row["ms"] / rows[0]["ms"], "mean of plain": row["mean ms"] / rows[0]["mean ms"]}
    return rows


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
    rows = measure(CifarResNet(depth), batch, steps, quick)
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
        result = {"what": what, "versions": versions("torch", "qtorch"), "machine": conditions(), "rows": rows}
        write("attach", result, what, text)


if __name__ == "__main__":
    typer.run(main)
