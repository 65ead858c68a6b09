"""How much noise pruning brings into the weight gradients, by sparsity and by how it is split: ResNet-20 on CIFAR-100.

    .venv/bin/python experiments/noise.py --data ../shared/data/cifar100_20k.npz

Measures how noise travels between the layers, once near the beginning of training and once later, and predicts from it
(`theory.Propagation`) what each plan brings.  Writes experiments/results/noise.json and noise.md.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from learning import RESULTS, Experiment, Maker, cosine, noise, split, uniform

import lograd
from lograd.plan import Plan
from lograd.theory import Propagation
from lograd.training import Config

BEGINNINGS = (2, 100)
SPARSITIES = (0.80, 0.85, 0.90)
SPLITS: dict[str, Maker] = {"uniform": uniform, "common cosine": cosine, "least noise": noise, "the same, split": split}
NORMS = 2 / 3
"""What would be left of the noise in a layer's own dW if elements were kept by the norms of their inputs as well."""


def arriving(profile: lograd.Profile, plan: Plan, own: float = 1.0) -> dict[str, float]:
    """The predicted sum over layers of |error of dW|^2 / |dW|^2, and the largest growth of a gradient's energy."""
    assert profile.noise is not None
    names = list(plan.layers)
    found = profile.noise.among(names)
    factors = Propagation(own * found.own, found.passed, found.transfer)
    input, weight = (
        np.array([1 / getattr(plan.layers[name], side).cosine ** 2 - 1 for name in names])
        for side in ("predicted_input", "predicted_weight")
    )
    input *= np.array([plan.work[name][0] > 0 for name in names])
    return {"noise": factors.total(input, weight), "growth": float(factors.growth(input).max())}


def main(
    data: Annotated[Path, typer.Option(help="An .npz with train_images, train_labels and the same of test.")],
) -> None:
    """Measure and predict."""
    base = Config("resnet20", str(data), batch=64, lr=0.05, augment=False)
    rows: list[dict[str, Any]] = []
    for steps in BEGINNINGS:
        with tempfile.TemporaryDirectory() as folder:
            profile = Experiment(Path(folder), base, steps).profile()
        for sparsity in SPARSITIES:
            for name, make in SPLITS.items():
                plan = make(profile, sparsity)
                rows.append({"steps": steps, "sparsity": sparsity, "split": name, **arriving(profile, plan)})
            weighed = arriving(profile, plan, NORMS)
            rows.append({"steps": steps, "sparsity": sparsity, "split": "and dW weighed by input norms", **weighed})
    lines = ["| steps before | sparsity | split | noise in dW | growth of energy |", "|---:|---:|---|---:|---:|"]
    lines += [
        f"| {row['steps']} | {row['sparsity']:.0%} | {row['split']} | {row['noise']:.3g} | {row['growth']:.3g} |"
        for row in rows
    ]
    words = (
        "Noise that pruning is predicted to bring into the weight gradients of a ResNet-20, the sum over layers of "
        "|error of dW|² / |dW|², and the largest factor by which it multiplies the energy of a gradient, from factors "
        "that were measured after so many steps of training; the last layer is kept. Weighed by input norms: if the "
        "own noise of each dW were a third lower; that is not built. `experiments/noise.py --data FILE` makes this "
        "table.\n\n"
    )
    (RESULTS / "noise.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "noise.md").write_text(words + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    typer.run(main)
