"""How much noise pruning brings into the weight gradients, by sparsity and by how it is split over the layers.

    ./dev reproduce noise --data cifar100_20k.npz

Measures how noise travels between the layers of a ResNet-20, once near the beginning of training and once later, and
predicts from it (`theory.Propagation`) what each plan brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lograd import Plan, Profile, profile
from lograd.measure.passes import on_gradient
from lograd.ops import log_histogram
from lograd.theory import threshold
from lograd.treatments import Prediction

from ..lab import Config
from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .pruned import Maker, Predicted, begun, cosine, everything, noise, split, uniform
from .result import Result
from .streams import Batch

SPARSITIES = (0.80, 0.85, 0.90)
SPLITS: dict[str, Maker] = {"uniform": uniform, "common cosine": cosine, "least noise": noise, "the same, split": split}
WEIGHED = "and dW weighed by input norms"


@final
@dataclass(frozen=True)
class Noise(Experiment):
    """Predicted noise of pruning, near the beginning of training and later.

    Args:
        data: an .npz with images.
        model: a built-in model of images.
        width: channels of the first layer; None takes the usual number of the model.
        batch: images of a step.
        early: steps of training before the first measurement.
        late: steps before the second one.
    """

    needs_data: ClassVar[bool] = True
    words: ClassVar[str] = "noise that pruning brings into the weight gradients, by sparsity and by its split"
    presets: ClassVar = {
        "smoke": {"model": "resnet8", "width": 8, "batch": 16, "early": 1, "late": 2},
        "cpu": {},
    }  # fmt: skip

    model: str = "resnet20"
    width: int | None = None
    batch: int = 64
    early: int = 2
    late: int = 100

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        config = Config(
            self.model, str(self._data()), width=self.width, batch=self.batch, lr=0.05, augment=False, steps=self.late
        )  # fmt: skip
        for steps in (self.early, self.late):
            given = {"model": self.model, "width": self.width, "batch": self.batch, "steps": steps}
            given["data"] = self._data().name
            yield Measured(f"after-{steps}", given, partial(_measure, config, steps))

    def draw(self, folder: CellFolder) -> list[Result]:
        finished = {steps: found for steps in (self.early, self.late) if (found := folder.found(f"after-{steps}"))}
        plans = [
            [row["split"], steps, f"{row['sparsity']:.0%}", f"{row['noise']:.3g}", f"{row['growth']:.3g}"]
            for steps, found in finished.items()
            for row in found["plans"]
        ]
        columns = ["split", "steps before", "sparsity", "noise in dW", "growth of energy"]
        drawn = [Result("noise", "Noise of pruning", self._words(), columns, plans)]
        if found := finished.get(self.late):
            formats = {"layer": "", "sigma": ".2f", "cosine": ".3f", "work": ".1%", "won by keeping it": ".1%"}
            layers = [[format(row[name], form) for name, form in formats.items()] for row in found["layers"]]
            drawn.append(Result("noise-layers", "Noise by layer", self._words_on_layers(), list(formats), layers))
        return drawn

    def _words(self) -> str:
        return (
            f"Noise that pruning is predicted to bring into the weight gradients of a {self.model}, the sum over "
            "layers of |error of dW|² / |dW|², and the largest factor by which it multiplies the energy of a gradient, "
            "from factors that were measured after so many steps of training; the last layer is kept. Weighed by input "
            "norms: what would arrive if an element were kept in proportion to |g| |x|; the own noise of each dW is "
            "then lower by a factor that was measured on the same gradients, and nothing else changes; lograd does not "
            "do so. `./dev reproduce noise --data FILE` makes this page."
        )

    def _words_on_layers(self) -> str:
        return (
            f"Which layers cost it: uniform 85 %, the last layer included, after {self.late} steps. Sigma is the "
            "natural one of |g|; the cosine is that of the pruned gradient with the gradient; work is the share of the "
            "multiply-adds of both products; what is won is the share of all noise that is gone if this layer alone is "
            "kept."
        )


def _measure(config: Config, steps: int) -> Found:
    """The predicted noise of each plan, and of each layer under one of them, after some steps of training."""
    model, batch = begun(config, steps)
    measured = profile(model, [batch], F.cross_entropy, noise=2)
    plans: list[dict[str, Any]] = []
    for sparsity in SPARSITIES:
        for name, make in SPLITS.items():
            plan = make(measured, sparsity)
            plans.append({"sparsity": sparsity, "split": name, **Predicted.of(measured, plan).numbers()})
        left = _weighed(model, batch, plan)
        row = {"sparsity": sparsity, "split": WEIGHED, "left": left}
        plans.append(row | Predicted.of(measured, plan, left).numbers())
    return {"plans": plans, "layers": _by_layer(measured, everything(measured, 0.85))}


def _for_weight(plan: Plan, name: str) -> Prediction:
    """The prediction of the plan for a layer's gradient in the product for dW."""
    found = plan.layers[name].predicted_weight_gradient
    assert found is not None
    return found


def _weighed(model: nn.Module, batch: Batch, plan: Plan) -> dict[str, float]:
    """By layer, the share of the noise in its own dW that is left if the norms of inputs decide as well.

    An element g that meets the input row or patch x is kept in proportion to |g| |x|, and not to |g|.
    """
    found: dict[str, float] = {}

    def ran(name: str, module: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        def arrived(g: Tensor) -> None:
            found[name] = _left(g, _norms(module, inputs[0].detach()), _for_weight(plan, name).sparsity)

        on_gradient(output, arrived)

    hooks = [model.get_submodule(name).register_forward_hook(partial(ran, name)) for name in plan.layers]
    loss: Any = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()  # without a session: no weight is changed here
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
    """The share that is left of the noise, the sum of (a |g| - g^2) |x|^2 over the elements below the threshold a."""
    weights = g.abs() * norms
    by_weight = _cut(weights, sparsity) * weights - weights.square()
    plain = (_cut(g, sparsity) * g.abs() - g.square()) * norms.square()
    return float(by_weight.clamp(min=0).sum(dtype=torch.float64) / plain.clamp(min=0).sum(dtype=torch.float64))


def _cut(x: Tensor, sparsity: float) -> float:
    return float(threshold(log_histogram(x).law(), sparsity))


def _by_layer(profile: Profile, plan: Plan) -> list[dict[str, Any]]:
    """For each layer, its noise and its work."""
    brought = Predicted.of(profile, plan)
    whole = sum(sum(work) for work in plan.evidence.work.values())
    return [
        {
            "layer": name,
            "sigma": profile.layers[name].sigma,
            "cosine": _for_weight(plan, name).cosine,
            "work": sum(plan.evidence.work[name]) / whole,
            "won by keeping it": brought.won_by_keeping(place),
        }
        for place, name in enumerate(plan.layers)
    ]
