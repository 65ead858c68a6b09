"""Sparsity asked and got, error predicted and measured, on real gradients: ResNet-8 on CIFAR-100.

    .venv/bin/python experiments/sparsity.py --data ../shared/data/cifar100_20k.npz

Trains the same network with stochastic pruning attached, once for each law and target, and compares the share of zeros
in each layer with the target.  Then it takes the gradients of one step of the trained network, and compares what the
empirical law predicts for several treatments with what they do to these gradients.  Every layer is treated, the last
one too.  Writes experiments/results/sparsity.json and sparsity.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.progress import track

import lograd
from lograd.models import CifarResNet
from lograd.treatments import Prune, Quantize, Statistics, apply, numbers_of, predict
from lograd.treatments.prune import PruningLaw
from lograd.treatments.treatment import Treatment

RESULTS = Path(__file__).parent / "results"
LAWS: tuple[PruningLaw, ...] = ("empirical", "lognormal", "normal")
TARGETS = (0.5, 0.8, 0.9, 0.95)
SKIPPED = 20
"""First steps that are not counted: the loss falls by the step there, and attach passes the first one through."""


class Cifar:
    """Batches of shuffled training images, normalised, with random flips and shifts."""

    def __init__(self, path: Path, batch: int, seed: int = 0) -> None:
        with np.load(path, allow_pickle=False) as data:
            images, labels = data["train_images"], data["train_labels"]
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.27).contiguous()
        self.labels = torch.from_numpy(labels).long()
        self.batch, self.generator = batch, torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            order = torch.randperm(len(self.labels), generator=self.generator)
            for chosen in torch.split(order, self.batch):
                images = F.pad(self.images[chosen], (4, 4, 4, 4))
                top, left = torch.randint(9, (2,), generator=self.generator).tolist()
                images = images[:, :, top : top + 32, left : left + 32]
                flip = torch.rand(len(chosen), 1, 1, 1, generator=self.generator) < 0.5
                yield torch.where(flip, images.flip(3), images), self.labels[chosen]


def train(data: Cifar, steps: int, plan: lograd.Plan | None, depth: int) -> tuple[CifarResNet, dict[str, float]]:
    """The trained network, and the share of zeros that each layer's products were handed."""
    torch.manual_seed(0)
    model = CifarResNet(depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    before: dict[str, Any] = {}
    with lograd.attach(model, plan or lograd.Plan.uniform("identity")) as handle:
        for step, (images, labels) in zip(range(steps), data, strict=False):
            if step == SKIPPED:
                before = handle.counters().layers
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            handle.step()
        after = handle.counters().layers
    got = {
        name: (count.zeros_after - before[name].zeros_after) / max(count.elements - before[name].elements, 1)
        for name, count in after.items()
    }
    return model, got


def predicted_and_measured(path: Path, batch: int, steps: int, depth: int) -> list[dict[str, Any]]:
    """Relative differences between prediction and measurement, layer by layer, for the empirical law."""
    model, _ = train(Cifar(path, batch), steps, None, depth)
    profile = lograd.profile(model, Cifar(path, batch, seed=1), F.cross_entropy, steps=1, sample=2**24)
    sentences: dict[str, tuple[Treatment, ...]] = {f"prune {target}": (Prune(target),) for target in TARGETS}
    for exponent, mantissa in ((3, 0), (4, 0), (4, 1), (5, 2)):
        format = lograd.FloatFormat(exponent, mantissa)
        sentences[f"FP{format.bits} {format}"] = (Quantize(format),)
    sentences["INT8"] = (Quantize(lograd.IntFormat(8)),)
    sentences["prune 0.85, then 1-4-1"] = (Prune(0.85), Quantize(lograd.FloatFormat(4, 1)))
    rows = []
    for name, layer in profile.layers.items():
        gradient = torch.from_numpy(layer.sample)
        statistics = Statistics(lograd.ops.log_histogram(gradient).law())
        for title, treatments in sentences.items():
            numbers = numbers_of(treatments, statistics)
            predicted = predict(treatments, statistics, numbers)
            assert predicted is not None
            measured = measure(treatments, numbers, gradient)
            rows.append({"layer": name, "treatment": title, "elements": gradient.numel(),
                         "predicted": predicted.to_json(), "measured": measured})  # fmt: skip
    return rows


def measure(treatments: tuple[Treatment, ...], numbers: list[dict[str, float]], g: torch.Tensor) -> dict[str, float]:
    """Means over eight draws."""
    x, draws = g.double(), []
    for seed in range(8):
        y = apply(treatments, g, seed, numbers=numbers).result.double()
        nonzero = x != 0
        draws.append((
            float((y == 0).double().mean()), float(x @ y / (x.norm() * y.norm())),
            float((y[nonzero] / x[nonzero] - 1).abs().mean()),
        ))  # fmt: skip
    sparsity, cosine, error = np.mean(draws, axis=0).tolist()
    return {"sparsity": sparsity, "cosine": cosine, "relative_error": error}


def tables(asked: list[dict[str, Any]], errors: list[dict[str, Any]]) -> str:
    lines = [
        "| law | asked | least got | most got | largest difference | layer of it |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in asked:
        worst = max(row["got"], key=lambda name: abs(row["got"][name] - row["asked"]))
        got = row["got"].values()
        lines.append(f"| {row['law']} | {row['asked']:.2f} | {min(got):.3f} | {max(got):.3f} | "
                     f"{abs(row['got'][worst] - row['asked']):.3f} | {worst} |")  # fmt: skip
    columns = ("cosine, predicted", "measured", "largest difference", "relative error, predicted")
    lines += ["", f"| treatment | {' | '.join((*columns, *columns[1:3]))} |", "|---|" + "---:|" * 6]
    for title in dict.fromkeys(row["treatment"] for row in errors):
        rows = [row for row in errors if row["treatment"] == title]
        cells = []
        for number in ("cosine", "relative_error"):
            predicted = [row["predicted"][number] for row in rows]
            measured = [row["measured"][number] for row in rows]
            worst = max(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))
            cells += [f"{np.mean(predicted):.4f}", f"{np.mean(measured):.4f}", f"{worst:.2%}"]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    data: Path = typer.Option(..., exists=True, dir_okay=False, help="cifar100_20k.npz, or a file with its keys."),
    steps: int = typer.Option(300, min=SKIPPED + 1, help="Training steps of each run."),
    batch: int = typer.Option(128, min=1, help="Images of a step."),
    depth: int = typer.Option(8, help="Layers: 8, 14, 20, ..."),
) -> None:
    """Sparsity asked and got; error predicted and measured."""
    asked: list[dict[str, Any]] = []
    errors = predicted_and_measured(data, batch, steps, depth)
    what = (
        f"ResNet-{depth}, 16 channels, {data.name}, batch {batch}, {steps} steps; all layers are treated. "
        f"First the share of zeros handed to the products of each layer, over the steps from {SKIPPED} on, with "
        "statistics every 10 steps. Then prediction by the empirical law against the treatment of the gradients of one "
        "step of the trained network: means over the layers, and the largest relative difference of any layer. "
        "`experiments/sparsity.py --data FILE` makes these tables."
    )
    jobs = [(law, target) for law in LAWS for target in TARGETS]
    for law, target in track(jobs, "training") if sys.stdout.isatty() else jobs:
        every = lograd.LayerPlan.of((Prune(target, law),))
        _, got = train(Cifar(data, batch), steps, lograd.Plan(every=every), depth)
        asked.append({"law": law, "asked": target, "got": got})
        # Written after each run: a long one that is stopped has shown something.
        text = tables(asked, errors)
        RESULTS.mkdir(exist_ok=True)
        versions = {"lograd": lograd.__version__, "torch": torch.__version__}
        result = {"what": what, "versions": versions, "asked": asked, "errors": errors}
        (RESULTS / "sparsity.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "sparsity.md").write_text(f"{what}\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
