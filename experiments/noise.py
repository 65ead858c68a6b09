"""How much noise pruning brings into the weight gradients, by sparsity and by how it is split: ResNet-20 on CIFAR-100.

    .venv/bin/python experiments/noise.py --data ../shared/data/cifar100_20k.npz

Measures how noise travels between the layers, once near the beginning of training and once later, and predicts from it
(`theory.Propagation`) what each plan brings.  Writes experiments/results/noise.json and noise.md.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from learning import RESULTS, Experiment, Maker, Predicted, cosine, everything, noise, split, uniform
from timing import markdown
from torch import Tensor, nn

import lograd
from lograd.ops import log_histogram
from lograd.plan import Plan
from lograd.profiles.layers import on_gradient
from lograd.theory import threshold
from lograd.training import Config
from lograd.treatments import Prediction

BEGINNINGS = (2, 100)
SPARSITIES = (0.80, 0.85, 0.90)
SPLITS: dict[str, Maker] = {"uniform": uniform, "common cosine": cosine, "least noise": noise, "the same, split": split}


def for_weight(plan: Plan, name: str) -> Prediction:
    """What the plan predicts of a layer's gradient in the product for dW."""
    found = plan.layers[name].predicted_weight_gradient
    assert found is not None
    return found


def weighed(model: nn.Module, batch: tuple[Tensor, Tensor], plan: Plan) -> dict[str, float]:
    """What is left of the noise in a layer's own dW if elements are kept by the norms of their inputs as well.

    An element g that meets the input row or patch x is kept in proportion to |g| |x|, and not to |g|.
    """
    found: dict[str, float] = {}

    def ran(name: str, module: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        def arrived(g: Tensor) -> None:
            found[name] = _left(g, _norms(module, inputs[0].detach()), for_weight(plan, name).sparsity)

        on_gradient(output, arrived)

    hooks = [model.get_submodule(name).register_forward_hook(partial(ran, name)) for name in plan.layers]
    loss: Any = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    for hook in hooks:
        hook.remove()
    return found


def _norms(module: nn.Conv2d | nn.Linear, x: Tensor) -> Tensor:
    """|x| of each row or patch, in the shape of the gradient but for its channels."""
    if isinstance(module, nn.Linear):
        rows: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return rows
    ones = torch.ones(1, 1, *module.kernel_size)
    squares = F.conv2d(x.square().sum(1, keepdim=True), ones, None, module.stride, module.padding, module.dilation)
    return squares.sqrt()


def _left(g: Tensor, norms: Tensor, sparsity: float) -> float:
    """Of the noise sum (a |g| - g^2) |x|^2 over the elements below the threshold a."""
    weights = g.abs() * norms
    by_weight = _cut(weights, sparsity) * weights - weights.square()
    plain = (_cut(g, sparsity) * g.abs() - g.square()) * norms.square()
    return float(by_weight.clamp(min=0).sum(dtype=torch.float64) / plain.clamp(min=0).sum(dtype=torch.float64))


def _cut(x: Tensor, sparsity: float) -> float:
    return float(threshold(log_histogram(x).law(), sparsity))


def by_layer(profile: lograd.Profile, plan: Plan) -> list[dict[str, Any]]:
    """Of each layer what it costs and what it skips."""
    brought = Predicted.of(profile, plan)
    whole = sum(sum(work) for work in plan.work.values())
    return [
        {
            "layer": name,
            "sigma": profile.layers[name].sigma,
            "cosine": for_weight(plan, name).cosine,
            "work": sum(plan.work[name]) / whole,
            "won by keeping it": brought.won_by_keeping(place),
        }
        for place, name in enumerate(plan.layers)
    ]


def main(
    data: Annotated[Path, typer.Option(help="An .npz with train_images, train_labels and the same of test.")],
) -> None:
    """Measure and predict."""
    base = Config("resnet20", str(data), batch=64, lr=0.05, augment=False)
    rows: list[dict[str, Any]] = []
    for steps in BEGINNINGS:
        model, batch = Experiment(Path(), base, steps).begun()
        profile = lograd.profile(model, [batch], F.cross_entropy, noise=2)
        for sparsity in SPARSITIES:
            for name, make in SPLITS.items():
                plan = make(profile, sparsity)
                found = Predicted.of(profile, plan).numbers()
                rows.append({"steps": steps, "sparsity": sparsity, "split": name, **found})
            left = weighed(model, batch, plan)
            row = {"steps": steps, "sparsity": sparsity, "split": "and dW weighed by input norms", "left": left}
            rows.append(row | Predicted.of(profile, plan, left).numbers())
    layers = by_layer(profile, everything(profile, 0.85))
    text = words() + table(rows) + words_on_layers(steps) + layer_table(layers)
    (RESULTS / "noise.json").write_text(json.dumps({"plans": rows, "layers": layers}, indent=1) + "\n")
    (RESULTS / "noise.md").write_text(text)
    print(text)


def words() -> str:
    return (
        "Noise that pruning is predicted to bring into the weight gradients of a ResNet-20, the sum over layers of "
        "|error of dW|² / |dW|², and the largest factor by which it multiplies the energy of a gradient, from factors "
        "that were measured after so many steps of training; the last layer is kept. Weighed by input norms: what "
        "would arrive if an element were kept in proportion to |g| |x|; the own noise of each dW is then lower by a "
        "factor that was measured on the same gradients, and nothing else changes; lograd does not do so. "
        "`experiments/noise.py --data FILE` makes this page.\n\n"
    )


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        {
            "split": row["split"],
            "steps before": row["steps"],
            "sparsity": f"{row['sparsity']:.0%}",
            "noise in dW": f"{row['noise']:.3g}",
            "growth of energy": f"{row['growth']:.3g}",
        }
        for row in rows
    ]
    return markdown(lines, list(lines[0])) + "\n"


def words_on_layers(steps: int) -> str:
    return (
        f"\nWhich layers cost it: uniform 85 %, the last layer included, after {steps} steps. Sigma is the natural one "
        "of |g|; the cosine is that of the pruned gradient with the gradient; work is the share of the multiply-adds "
        "of both products; what is won is the share of all noise that is gone if this layer alone is kept.\n\n"
    )


def layer_table(layers: list[dict[str, Any]]) -> str:
    formats = {"layer": "", "sigma": ".2f", "cosine": ".3f", "work": ".1%", "won by keeping it": ".1%"}
    lines = [{name: format(row[name], form) for name, form in formats.items()} for row in layers]
    return markdown(lines, list(formats)) + "\n"


if __name__ == "__main__":
    typer.run(main)
