"""Noise that explodes over depth: plans for a MobileNetV3-small, the growth that they predict, and what training does.

    .venv/bin/python experiments/explosion.py

Images are ten random patterns under noise, 64x64, batch 32, so nothing is downloaded; one thread, some five minutes.
Writes experiments/results/explosion.json and explosion.md.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lograd
from lograd.profiles import Profile

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from timing import markdown

RESULTS = Path(__file__).parent / "results"
STEPS, FIRST, LAST, RATE = 60, 100, 10, 0.02
CASES: dict[str, dict[str, Any]] = {
    "all layers": {"everywhere": True},
    "layers that gain, uniform": {"allocation": "uniform"},
    "layers that gain (the default)": {},
    "layers that gain, 70 %": {"sparsity": 0.7},
    "all layers, dW only": {"everywhere": True, "products": "weight"},
    "layers that gain, dW only": {"products": "weight"},
}
Batches = list[tuple[Tensor, Tensor]]


def batches(count: int) -> Batches:
    generator = torch.Generator().manual_seed(5)
    patterns = F.interpolate(torch.randn(10, 3, 8, 8, generator=generator), size=64)
    found = []
    for _ in range(count):
        labels = torch.randint(0, 10, (32,), generator=generator)
        found.append((patterns[labels] + 1.5 * torch.randn(32, 3, 64, 64, generator=generator), labels))
    return found


def train(model: nn.Module, data: Batches, plan: lograd.Plan | None) -> tuple[float, float, str]:
    """The mean loss of the last steps, the largest growth of energy in the first twenty, and the step of a warning."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    handle = None if plan is None else lograd.attach(model, plan)
    losses, growth = [], 1.0
    for images, labels in data:
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if handle is not None:
            handle.step()
            energies = [one.energy / one.first_energy for one in handle._gradients.values() if one.first_energy]
            growth = max([growth, *energies]) if handle.steps <= 20 else growth
    if handle is not None:
        handle.remove()
    warned = "" if handle is None or handle._growth is None else f"in step {handle._growth.step}"
    return sum(losses[-LAST:]) / LAST, growth, warned


def rows(start: int, model: nn.Module, data: Batches, profile: Profile) -> list[list[Any]]:
    dense, _, _ = train(copy.deepcopy(model), data, None)
    found: list[list[Any]] = [["dense", start, None, None, None, "", dense]]
    for name, choice in CASES.items():
        plan = profile.plan(**{"sparsity": 0.85, **choice})
        loss, growth, warned = train(copy.deepcopy(model), data, plan)
        predicted = 1.0 if plan.growth is None else plan.growth.factor
        found.append([name, start, len(plan.layers), predicted, growth, warned, loss])
        print(found[-1], flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", lograd.errors.LogradWarning)
    model, data = mobilenet(), batches(FIRST + STEPS)
    found = rows(0, model, data[:STEPS], lograd.profile(model, data, F.cross_entropy, 3, noise=2))
    train(model, data[:FIRST], None)
    later = data[FIRST:]
    found += rows(FIRST, model, later, lograd.profile(model, later, F.cross_entropy, 3, noise=2))
    columns = [
        "plan, 85 %",
        "dense steps before",
        "pruned layers",
        "predicted growth",
        "measured growth",
        "attach warns",
        "loss",
    ]
    cells = [dict(zip(columns, map(_cell, row), strict=True)) for row in found]
    words = (
        f"Growth of the energy of a gradient under plans for a MobileNetV3-small (54 layers), predicted from measured "
        f"noise and measured as the largest in the first twenty steps, and the mean loss of the last {LAST} of {STEPS} "
        "steps. What is measured also holds what the weights have changed meanwhile. `experiments/explosion.py` makes "
        "this page."
    )
    result = [dict(zip(columns, row, strict=True)) for row in found]
    (RESULTS / "explosion.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "explosion.md").write_text(f"{words}\n\n{markdown(cells, columns)}\n")


def mobilenet() -> nn.Module:
    try:
        models: Any = import_module("torchvision.models")
    except RuntimeError:  # its compiled operators are missing where its build does not fit torch's; none is needed
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        models = import_module("torchvision.models")
    network: nn.Module = models.mobilenet_v3_small(num_classes=10)
    return network.train()


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
