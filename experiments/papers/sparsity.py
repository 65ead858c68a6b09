"""Sparsity asked and got, error predicted and measured, on real gradients: ResNet-8 on images.

    ./dev reproduce sparsity --data cifar100_20k.npz

Trains the same network with stochastic pruning attached, once for each law and target, and compares the share of zeros
in each layer with the target.  Then it takes the gradients of one step of the trained network, and compares what the
empirical law predicts for several treatments with what they do to these gradients.  Every layer is treated, the last
one too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lograd import FloatFormat, IntFormat, InvalidValue, LayerPlan, Plan, profile
from lograd.errors import sentence
from lograd.ops import log_histogram
from lograd.treatments import Prune, Quantize, Statistics, Treatment, apply, numbers_of, predict
from lograd.treatments.prune import PruningLaw

from ..lab import Session
from ..models import CifarResNet
from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .result import Result
from .streams import augmented_images

LAWS: tuple[PruningLaw, ...] = ("empirical", "lognormal", "normal")
TARGETS = (0.5, 0.8, 0.9, 0.95)
SKIPPED = 20
"""First steps that are not counted: the loss falls by the step there, and attach passes the first one through."""
ERRORS = "errors"


@final
@dataclass(frozen=True)
class Sparsity(Experiment):
    """Zeros asked and got while training; error predicted and measured.

    Args:
        data: an .npz with images; without one, the digits inside the package, enlarged.
        steps: of each training.
        batch: images of a step.
        depth: layers of the network; 8, 14, 20, ...
    """

    words: ClassVar[str] = "zeros asked and got by each law, errors predicted and measured, on real gradients"
    presets: ClassVar = {"smoke": {"steps": 22, "batch": 4}, "cpu": {}}

    steps: int = 300
    batch: int = 128
    depth: int = 8

    def __post_init__(self) -> None:
        if self.steps <= SKIPPED:
            raise InvalidValue(sentence("steps", self.steps, f"more than {SKIPPED}, which are not counted"))

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        source = None if self.data is None else self.data.name
        given = {"data": source, "steps": self.steps, "batch": self.batch, "depth": self.depth}
        yield Measured(ERRORS, given, self._errors)
        for law, target in product(LAWS, TARGETS):
            yield Measured(f"{law}-{target}", given | {"law": law, "asked": target}, partial(self._asked, law, target))

    def draw(self, folder: CellFolder) -> list[Result]:
        rows = []
        for law, target in product(LAWS, TARGETS):
            if (found := folder.found(f"{law}-{target}")) is not None:
                got = found["got"]
                worst = max(got, key=lambda name: abs(got[name] - target))
                difference = abs(got[worst] - target)
                least, most = min(got.values()), max(got.values())
                rows.append([law, f"{target:.2f}", f"{least:.3f}", f"{most:.3f}", f"{difference:.3f}", worst])
        columns = ["law", "asked", "least got", "most got", "largest difference", "layer of it"]
        drawn = [Result("sparsity", "Sparsity asked and got", self._claim(), columns, rows)]
        if (found := folder.found(ERRORS)) is not None:
            drawn.append(_drawn_errors(found["rows"]))
        return drawn

    def _claim(self) -> str:
        return (
            f"ResNet-{self.depth}, 16 channels, {self.source}, batch {self.batch}, {self.steps} steps; all layers are "
            f"treated. The share of zeros handed to the products of each layer, over the steps from {SKIPPED} on, with "
            "statistics every 10 steps. `./dev reproduce sparsity --data FILE` makes these tables."
        )

    def _train(self, plan: Plan) -> tuple[CifarResNet, dict[str, float]]:
        """The trained network, and the share of zeros that each layer's products were handed."""
        model = CifarResNet(self.depth)
        batches = augmented_images(self.data, self.batch)
        # Dense products: with "auto" the last bits, and after some steps the zeros, would differ from run to run.
        with Session(model, batches, F.cross_entropy, _optimizer(model), plan, backend="dense") as session:
            assert session.handle is not None
            for _ in range(SKIPPED):
                session.step()
            before = session.handle.counters().layers
            for _ in range(self.steps - SKIPPED):
                session.step()
            after = session.handle.counters().layers
        return model, {
            name: (count.zeros_after - before[name].zeros_after) / max(count.elements - before[name].elements, 1)
            for name, count in after.items()
        }

    def _asked(self, law: PruningLaw, target: float) -> Found:
        return {"got": self._train(Plan(every=LayerPlan.of((Prune(target, law),))))[1]}

    def _errors(self) -> Found:
        """Prediction by the empirical law and measurement, for each treatment, layer by layer."""
        model, _ = self._train(Plan.uniform("identity"))
        batches = augmented_images(self.data, self.batch, seed=1)
        looked = profile(model, batches, F.cross_entropy, steps=1, sample=2**24)
        rows = []
        for name, layer in looked.layers.items():
            gradient = torch.from_numpy(layer.sample)
            statistics = Statistics(log_histogram(gradient).law())
            for title, treatments in _sentences().items():
                numbers = numbers_of(treatments, statistics)
                predicted = predict(treatments, statistics, numbers)
                assert predicted is not None
                measured = _measure(treatments, numbers, gradient)
                rows.append({"layer": name, "treatment": title, "elements": gradient.numel(),
                             "predicted": predicted.to_json(), "measured": measured})  # fmt: skip
        return {"rows": rows}


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def _sentences() -> dict[str, tuple[Treatment, ...]]:
    """Treatments by their title in the table."""
    found: dict[str, tuple[Treatment, ...]] = {f"prune {target}": (Prune(target),) for target in TARGETS}
    for exponent, mantissa in ((3, 0), (4, 0), (4, 1), (5, 2)):
        format = FloatFormat(exponent, mantissa)
        found[f"FP{format.bits} {format}"] = (Quantize(format),)
    found["INT8"] = (Quantize(IntFormat(8)),)
    found["prune 0.85, then 1-4-1"] = (Prune(0.85), Quantize(FloatFormat(4, 1)))
    return found


def _measure(treatments: tuple[Treatment, ...], numbers: list[dict[str, float]], g: Tensor) -> dict[str, float]:
    """Sparsity, cosine and relative error of the treated gradient, means over eight draws."""
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


def _drawn_errors(found: list[dict[str, Any]]) -> Result:
    """Means over the layers, and the largest relative difference of any layer."""
    claim = (
        "Prediction by the empirical law against the treatment of the gradients of one step of the trained network: "
        "means over the layers, and the largest relative difference of any layer."
    )
    rows: list[list[object]] = []
    for title in dict.fromkeys(row["treatment"] for row in found):
        cells: list[object] = [title]
        for number in ("cosine", "relative_error"):
            pairs = [(row["predicted"][number], row["measured"][number]) for row in found if row["treatment"] == title]
            predicted, measured = zip(*pairs, strict=True)
            worst = max(abs(p / m - 1) for p, m in pairs)
            cells += [f"{np.mean(predicted):.4f}", f"{np.mean(measured):.4f}", f"{worst:.2%}"]
        rows.append(cells)
    names = [f"{what}, {kind}" for what in ("cosine", "relative error")
             for kind in ("predicted", "measured", "largest difference")]  # fmt: skip
    return Result("sparsity-errors", "Error predicted and measured", claim, ["treatment", *names], rows)
