"""Noise that explodes over depth: plans for a MobileNetV3-small, the growth that they predict, and what training does.

    ./dev reproduce explosion

Images are ten random patterns under noise, 64x64, batch 32, so nothing is downloaded; one thread, some five minutes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lograd import Plan, Profile, observe, profile
from lograd.errors import LogradWarning
from lograd.measure import LayerProfile

from ..lab import Diverged, Session, preserved
from ..models.full_size import torchvision_model
from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .result import Result, text

LAST, RATE, CLASSES = 10, 0.02, 10
EARLY = 20
"""First steps in which the growth of energy is measured; later, energies also change because the model has learned."""
WARNING = "noise of pruning explodes"
DENSE = "dense"
CASES: dict[str, dict[str, Any]] = {
    "all layers": {"everywhere": True},
    "layers that gain, uniform": {"allocation": "uniform"},
    "layers that gain (the default)": {},
    "layers that gain, 70 %": {"sparsity": 0.7},
    "all layers, dW only": {"everywhere": True, "products": "weight"},
    "layers that gain, dW only": {"products": "weight"},
}
Batches = list[tuple[Tensor, Tensor]]


@final
@dataclass(frozen=True)
class Explosion(Experiment):
    """Growth of the energy of gradients under plans, at the beginning of training and later.

    Args:
        only: cases whose name holds this text.
        steps: of each training.
        first: dense steps before the second set of plans.
        size: pixels on a side of an image.
    """

    words: ClassVar[str] = "growth of the energy of gradients over the depth of a MobileNetV3, predicted and measured"
    core_hours: ClassVar = 0.1
    presets: ClassVar = {"smoke": {"steps": 2, "first": 1, "size": 32, "only": "layers that gain (the"}, "cpu": {}}

    steps: int = 60
    first: int = 100
    size: int = 64

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        for start in (0, self.first):
            beginning = partial(_beginning, start, self.steps, self.size)
            made: list[_Beginning] = []  # shared by the cells that have to be worked out
            for number, case in self._cases():
                given = {"case": case, "start": start, "steps": self.steps, "size": self.size}
                yield Measured(f"{number}-after-{start}", given, partial(_measure, case, beginning, made), threads=1)

    def draw(self, folder: CellFolder) -> list[Result]:
        rows = []
        for start in (0, self.first):
            for number, case in self._cases():
                if (found := folder.found(f"{number}-after-{start}")) is not None:
                    names = ("layers", "predicted", "growth", "warned", "loss")
                    rows.append([case, start, *(_short(found[name]) for name in names)])
        claim = (
            "Growth of the energy of a gradient under plans for a MobileNetV3-small (54 layers), predicted from "
            f"measured noise and measured as the largest in the first {EARLY} steps, and the mean loss of the last "
            f"{LAST} of {self.steps} steps. What is measured also holds what the weights have changed meanwhile. "
            "`./dev reproduce explosion` makes this table."
        )
        columns = ["plan, 85 %", "dense steps before", "pruned layers", "predicted growth", "measured growth"]
        columns += ["attach warns in step", "loss"]
        return [Result("explosion", "Noise that explodes over depth", claim, columns, rows)]

    def _cases(self) -> list[tuple[int, str]]:
        """The chosen cases with their numbers, of which the dense training is the first."""
        return [(number, case) for number, case in enumerate((DENSE, *CASES)) if self.only in case or case == DENSE]


@dataclass(frozen=True)
class _Beginning:
    """A network after some dense steps, the batches that follow, and its profile there."""

    model: nn.Module
    batches: Batches
    profile: Profile


def _beginning(start: int, steps: int, size: int) -> _Beginning:
    """Make it with random numbers of its own, so that it is the same whichever cell needs it first."""
    with preserved(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LogradWarning)
        torch.manual_seed(0)
        model = torchvision_model("mobilenet_v3_small", CLASSES).train()
        batches = _batches(start + steps, size)
        if start:
            _train(model, batches[:start], None)
        later = batches[start:]
        return _Beginning(model, later, profile(model, later, F.cross_entropy, min(3, steps), noise=2))


def _batches(count: int, size: int) -> Batches:
    generator = torch.Generator().manual_seed(5)
    patterns = F.interpolate(torch.randn(CLASSES, 3, 8, 8, generator=generator), size=size)
    found = []
    for _ in range(count):
        labels = torch.randint(0, CLASSES, (32,), generator=generator)
        found.append((patterns[labels] + 1.5 * torch.randn(32, 3, size, size, generator=generator), labels))
    return found


def _measure(case: str, beginning: partial[_Beginning], made: list[_Beginning]) -> Found:
    """Train with the plan of a case, and return how the energy of gradients has grown."""
    if not made:
        made.append(beginning())
    start = made[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogradWarning)
        plan = None if case == DENSE else start.profile.plan(**{"sparsity": 0.85, **CASES[case]})
    found = _train(copy.deepcopy(start.model), start.batches, plan)
    if plan is None:
        return found | {"layers": None, "predicted": None, "growth": None}
    growth = plan.evidence.growth
    return found | {"layers": len(plan.layers), "predicted": 1.0 if growth is None else growth.factor}


def _train(model: nn.Module, batches: Batches, plan: Plan | None) -> Found:
    """The mean loss of the last steps, the largest growth of energy early on, and the step of attach's warning."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses, warned = list[float](), list[int]()
    with (
        Session(model, batches, F.cross_entropy, optimizer, plan) as session,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", LogradWarning)

        def steps(count: int) -> None:
            for _ in range(count):
                losses.append(session.step())
                if not warned and any(str(one.message).startswith(WARNING) for one in caught):
                    warned.append(session.steps)

        with suppress(Diverged):  # its loss is then that of the last steps before
            with observe(model, 1, weight_gradients=False) as early:
                steps(min(EARLY, len(batches)))
            steps(len(batches) - session.steps)
    pruned = [] if plan is None else [early.layers[name] for name in plan.layers if name in early.layers]
    return {
        "loss": sum(losses[-LAST:]) / max(len(losses[-LAST:]), 1),
        "growth": max(map(_growth, pruned), default=1.0),
        "warned": warned[0] if warned else None,
        "steps": len(losses),
    }


def _growth(layer: LayerProfile) -> float:
    """The largest energy E[g^2] of a layer's gradient over that of the first step."""
    energies = [
        float(record.law.moment(2)) * record.law.count / record.elements
        for record in layer.records
        if record.law is not None
    ]
    return max((energy / energies[0] for energy in energies), default=1.0)


def _short(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else text(value)
