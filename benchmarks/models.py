"""Whole training steps with sparse products against dense PyTorch: `./dev bench models`.

Each way trains its own copy of the model on random data: dense in both layouts, of which the faster counts, and pruned
by attach with backend="auto".  The ways take turns, step by step, in one process, after a warm-up in which thresholds
settle and products are timed.  Writes benchmarks/results/models.json and models.md.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
import typer
from rich.progress import track
from timing import machine, markdown, versions, write
from torch import Tensor, nn

import lograd
from lograd.engine.multiply import Backend
from lograd.models import CifarResNet, ResNet18, Vgg
from lograd.models.transformer import Layer

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
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    last: str = "fc"
    """The layer that is kept; none if empty."""

    def data(self) -> tuple[Tensor, Tensor]:
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


class Way:
    """A model on its way."""

    def __init__(
        self, case: Case, model: nn.Module, sparsity: float | None, last: bool, backend: Backend = "auto"
    ) -> None:
        x, self.target = case.data()
        format = torch.channels_last if last and x.dim() == 4 else torch.contiguous_format
        self.model, self.x = copy.deepcopy(model), x.contiguous(memory_format=format)
        if last and x.dim() == 4:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.handle: lograd.Handle | None = None
        if sparsity is not None:
            every = lograd.LayerPlan.of(lograd.treatments.recipe(f"prune{100 * sparsity:.0f}"))
            plan = lograd.Plan(kept={case.last: "the last layer"} if case.last else {}, every=every)
            self.handle = lograd.attach(self.model, plan, refresh="epoch", backend=backend)
        self.backward: list[float] = []
        self.whole: list[float] = []

    def step(self) -> None:
        start = perf_counter()
        self.optimizer.zero_grad()
        y = self.model(self.x)
        loss: Any = F.mse_loss(y, self.target) if y.dim() == 3 else F.cross_entropy(y, self.target)
        middle = perf_counter()
        loss.backward()
        self.backward.append(1e3 * (perf_counter() - middle))
        self.optimizer.step()
        if self.handle is not None:
            self.handle.step()
        self.whole.append(1e3 * (perf_counter() - start))


def measure(case: Case, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = case.build().train()
    ways = {"dense": Way(case, model, None, False), "dense, channels last": Way(case, model, None, True)}
    ways |= {f"{sparsity:.0%}": Way(case, model, sparsity, True) for sparsity in SPARSITIES}
    for way in ways.values():
        for _ in range(WARM_UP if way.handle is not None else 2):
            way.step()
        way.backward, way.whole = [], []
    before = {name: way.handle.counters().total for name, way in ways.items() if way.handle is not None}
    for _ in range(repeats):
        for way in ways.values():
            way.step()
    row: dict[str, Any] = {"model": case.name, "threads": torch.get_num_threads()}
    for part in ("backward", "whole"):
        times = {name: getattr(way, part) for name, way in ways.items()}
        row[part] = {name: {"min": min(one), "median": median(one)} for name, one in times.items()}
    row["zeros"], row["sparse layers"] = {}, {}
    for name, way in ways.items():
        if way.handle is not None:
            total, earlier = way.handle.counters().total, before[name]
            row["zeros"][name] = (total.zeros_after - earlier.zeros_after) / (total.elements - earlier.elements)
            choices = [one.products["both"].choice for one in way.handle.layers.values()]
            sparse = sum(one is not None and one.mode == lograd.engine.multiply.SPARSE for one in choices)
            row["sparse layers"][name] = f"{sparse} of {len(choices)}"
            way.handle.remove()
    return row


def table(rows: list[dict[str, Any]]) -> str:
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
        write("models", {"what": what, "versions": versions("torch"), "machine": machine(), "rows": rows}, what, text)


def progress(jobs: list[Any]) -> Iterable[Any]:
    return track(jobs, "measuring") if sys.stdout.isatty() else jobs


if __name__ == "__main__":
    typer.run(main)
