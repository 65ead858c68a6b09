"""Python's share of an attached layer: `./dev bench overhead`.

A layer so small that its kernels take next to nothing runs forward and backward, plain and attached, in turns.  The
difference of the smallest times is what a layer of any size costs on top of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import typer
from torch import Tensor, nn

import lograd
from lograd.engine.stopwatch import seconds
from lograd.treatments import Backend

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear(64, 64), 8 rows": (lambda: nn.Linear(64, 64), (8, 64)),
    "Conv2d(8, 8, 3), 1 image of 4 x 4": (lambda: nn.Conv2d(8, 8, 3, padding=1), (1, 8, 4, 4)),
}


def main(
    recipes: list[str] = typer.Argument(None, help="Recipes to attach."),
    turns: int = typer.Option(40, help="Turns; each runs 50 steps of every layer."),
) -> None:
    """Print microseconds of forward and backward on top of the plain layer."""
    torch.set_num_threads(1)
    for name, (build, shape) in LAYERS.items():
        torch.manual_seed(0)
        x = torch.randn(shape, requires_grad=True)
        runs = {"plain": _run(build(), x)}
        for recipe in recipes or ["int8-full", "int6-full", "prune85"]:
            layer = nn.Sequential(build())
            backend: Backend = "integer" if "full" in recipe else "auto"
            lograd.attach(layer, lograd.Plan.uniform(recipe, keep=()), backend=backend).step()
            runs[recipe] = _run(layer, x)
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(turns):
            for key, run in runs.items():
                best[key] = min(best[key], run())
        print(f"{name}: plain {best.pop('plain'):.0f} us", end="")
        print(*(f"; {key} {spent:.0f} us" for key, spent in best.items()), sep="")


def _run(layer: nn.Module, x: Tensor) -> Callable[[], float]:
    """Return a function that gives the microseconds of one forward and backward."""

    def run(steps: int = 50) -> float:
        g = torch.ones_like(layer(x))
        start = seconds()
        for _ in range(steps):
            layer(x).backward(g)
        return (seconds() - start) / steps * 1e6

    return run


if __name__ == "__main__":
    typer.run(main)
