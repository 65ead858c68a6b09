"""Whole training steps with sparse products against dense PyTorch: `./dev bench models`.

Each way trains its own copy of the model on random data: dense in both layouts, of which the faster counts, and pruned
by attach with backend="auto".  The ways take turns, step by step, in one process, after a warm-up in which thresholds
settle and products are timed.  Writes benchmarks/results/models.json and models.md.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import lograd
from experiments.lab import Session, in_turns
from experiments.models import CifarResNet, ResNet18, Vgg
from experiments.models.transformer import Layer
from lograd.engine.backends.choice import SPARSE
from lograd.text import markdown
from lograd.treatments import Backend

from .timing import conditions, progress, versions, write

WARM_UP = 24
"""Statistics are taken in each of the first twenty steps."""
SPARSITIES = (0.85, 0.9)


class Encoder(nn.Module):
    """A layer of BERT-base."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer(768, 12)

    def forward(self, x: Tensor) -> Tensor:
        visible = torch.ones(x.shape[0], 1, 1, x.shape[1], dtype=torch.bool)
        result: Tensor = self.layer(x, visible)
        return result


@dataclass(frozen=True)
class Case:
    """A model with the shape of its batch."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    last: str = "fc"
    """The layer that is kept; none if empty."""

    def data(self) -> tuple[Tensor, Tensor]:
        """One batch of random inputs and targets."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.shape, generator=generator)
        target = x.roll(1, 0) if not self.last else torch.randint(100, (self.shape[0],), generator=generator)
        return x, target


CASES = (
    Case("ResNet18, 32x32, batch 32", ResNet18, (32, 3, 32, 32)),
    Case("VGG16, 32x32, batch 32", Vgg, (32, 3, 32, 32)),
    Case("BERT-base layer, 16 x 128", Encoder, (16, 128, 768), last=""),
    Case("ResNet-8, 16 channels, batch 128", lambda: CifarResNet(8), (128, 3, 32, 32)),
)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The squared error of a layer alone, or the cross-entropy of a classifier."""
    return F.mse_loss(output, target) if output.dim() == 3 else F.cross_entropy(output, target)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with a rate so small that the gradients stay alike."""
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def pruned(case: Case, sparsity: float) -> lograd.Plan:
    """A plan that prunes the gradients of all layers but the last to a sparsity."""
    every = lograd.LayerPlan.of(lograd.treatments.recipe(f"prune{100 * sparsity:.0f}"))
    return lograd.Plan(kept={case.last: "the last layer"} if case.last else {}, every=every)


def session_of(
    case: Case, model: nn.Module, plan: lograd.Plan | None, last: bool, backend: Backend = "auto"
) -> Session:
    """A copy of the model in training on one batch.

    Args:
        case: what the batch is made for.
        model: it stays as it is.
        plan: what is attached; None trains dense.
        last: images have their channels last in memory.
        backend: of the products of treated operands.
    """
    x, target = case.data()
    own = copy.deepcopy(model)
    if last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    attaching: dict[str, Any] = {} if plan is None else {"refresh": "epoch", "backend": backend}
    return Session(own, repeat((x, target)), loss, optimizer(own), plan, **attaching)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Times of backward and step of each way, with the zeros and the products that each has."""
    torch.manual_seed(0)
    model = case.build().train()
    sessions = {
        "dense": session_of(case, model, None, False),
        "dense, channels last": session_of(case, model, None, True),
    }
    sessions |= {f"{sparsity:.0%}": session_of(case, model, pruned(case, sparsity), True) for sparsity in SPARSITIES}
    for session in sessions.values():
        for _ in range(WARM_UP if session.handle is not None else 2):
            session.step()
    handles = {name: session.handle for name, session in sessions.items() if session.handle is not None}
    before = {name: handle.counters().total for name, handle in handles.items()}
    times: dict[str, dict[str, list[float]]] = {part: {name: [] for name in sessions} for part in ("backward", "whole")}
    for turn in in_turns(sessions, repeats):
        times["backward"][turn.name].append(1e3 * turn.session.times.backward)
        times["whole"][turn.name].append(1e3 * turn.session.times.step)
    row: dict[str, Any] = {"model": case.name, "threads": torch.get_num_threads()}
    for part, taken in times.items():
        row[part] = {name: {"min": min(one), "median": median(one)} for name, one in taken.items()}
    row["zeros"], row["sparse layers"] = {}, {}
    for name, handle in handles.items():
        total, earlier = handle.counters().total, before[name]
        row["zeros"][name] = (total.zeros_after - earlier.zeros_after) / (total.elements - earlier.elements)
        choices = [one.choices.get("gradient") for one in handle.layers.values()]
        sparse = sum(one is not None and one.mode == SPARSE for one in choices)
        row["sparse layers"][name] = f"{sparse} of {len(choices)}"
        handle.remove()
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Speed-ups over the better dense layout."""
    lines = []
    for row in rows:
        for name in row["zeros"]:
            line = {"model": row["model"], "threads": row["threads"], "asked": name}
            line["zeros"] = f"{row['zeros'][name]:.1%}"
            line["sparse layers"] = row["sparse layers"][name]
            for part, words in (("backward", "backward"), ("whole", "whole step")):
                times = row[part]
                for kind in ("min", "median"):
                    dense = min(times["dense"][kind], times["dense, channels last"][kind])
                    line[f"{words}, {kind}"] = f"{dense / times[name][kind]:.2f}"
                if part == "whole":
                    line["dense step ms"] = (
                        f"{min(times['dense']['median'], times['dense, channels last']['median']):.0f}"
                    )
            lines.append(line)
    columns = [
        "model", "threads", "asked", "zeros", "sparse layers", "dense step ms", "backward, min", "backward, median",
        "whole step, min", "whole step, median",
    ]  # fmt: skip
    return markdown(lines, columns)


def main(
    repeats: int = typer.Option(7, min=1, help="Turns."),
    threads: int = typer.Option(2, min=1, max=256, help="Measure with 1 thread and with this many."),
    only: str = typer.Option("", help="Cases whose name contains this."),
    save: bool = typer.Option(True, help="Write benchmarks/results/models.* (never with --only)."),
) -> None:
    """Speed-up of whole training steps with pruned gradients over dense PyTorch."""
    cases = [case for case in CASES if only in case.name]
    if not cases:
        raise typer.BadParameter(f"no case contains {only!r}; there are: {', '.join(case.name for case in CASES)}")
    rows = []
    for count, case in progress([(count, case) for count in sorted({1, threads}) for case in cases]):
        torch.set_num_threads(count)
        rows.append(measure(case, repeats))
        print(table(rows[-1:]), file=sys.stderr)
    what = (
        "Speed-up of training with pruned gradients over dense PyTorch in its better layout, of minima and of medians "
        "of steps in turns, in one process; all layers but the last are pruned, and each takes dense or sparse "
        "products, whichever was faster. `./dev bench models` makes this table."
    )
    text = table(rows)
    print(text)
    if save and not only:
        write(
            "models", {"what": what, "versions": versions("torch"), "machine": conditions(), "rows": rows}, what, text
        )


if __name__ == "__main__":
    typer.run(main)
