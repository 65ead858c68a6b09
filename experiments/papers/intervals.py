"""Which error of a clipped interval matters: that on all gradients, or that on the large ones?

    ./dev reproduce intervals --data cifar100_20k.npz

A ResNet-8 is trained a little.  At several moments the gradient of each layer is counted, and the error of an interval
on all elements and on the large ones is drawn over its end, gamma, with the choices of several methods.  Then the
network is trained with each of these choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import t as student
from torch import Tensor, nn

from lograd import Handle, InvalidValue, LayerPlan, Plan, theory
from lograd.formats import IntFormat
from lograd.laws import Empirical
from lograd.ops import log_histogram
from lograd.plots import lines
from lograd.treatments import Interval, recipe
from lograd.treatments.products import both

from .. import clipped_intervals
from ..clipped_intervals import ALPHA
from ..lab import Diverged, Session
from ..models import CifarResNet
from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .looking import gradients_of
from .result import Result
from .streams import augmented_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS, FULL = "looks", "float32"
GAMMAS = np.geomspace(0.01, 1.0, 49)
RATE = 0.05
KEEP = ("first", "last")
"""Layers that are trained in full precision, as in the paper.  The few large gradients of the last one are the labels:
an interval that clips them leaves nothing to learn from, whatever it does elsewhere."""


def intervals_of(handle: Handle, bits: int) -> dict[str, dict[str, float]]:
    """Return the interval in force on each gradient with its errors, by the histogram that was taken last.

    Errors are in units of the largest magnitude; gradients without statistics so far are left out.
    """
    found = {}
    for layer, statistics in handle.gradients.items():
        (site,) = statistics.operand.sites.values()
        if statistics.table is None:
            continue
        law = statistics.statistics(1.0).law
        (one,), (numbers,) = site.treatments, site.numbers_and_memory()
        assert isinstance(one, Interval)
        gamma = numbers.get("gamma") or IntFormat(bits).max / numbers["scale"] / float(law.maximum)
        errors = clipped_intervals.interval_errors(law, bits, gamma, ALPHA, one.rounding)
        found[layer] = {
            "step": statistics.step,
            "gamma": float(gamma),
            "gamma_by_law": float(clipped_intervals.optimal_interval(law, bits, ALPHA)),
            "error_all": float(errors.all),
            "error_large": float(errors.large),
            "bound": float(errors.bound),
            "clipped": float(errors.clipped),
        }
    return found


class Choice(NamedTuple):
    """A way to choose the interval."""

    title: str
    recipe: str | None
    """None for an interval whose clipped share is set from the first part of the experiment."""


CHOICES = {
    "minmax": Choice("largest magnitude", "int{bits}"),
    "cosine": Choice("largest cosine (DSGC)", "int{bits}-cosine"),
    "squared": Choice("least squared error", "int{bits}-squared"),
    "interval": Choice("bound on large gradients", "int{bits}-interval"),
    "all": Choice("least error on all", None),
}


@final
@dataclass(frozen=True)
class Intervals(Experiment):
    """Errors of intervals by layer, and what training makes of them.

    Args:
        data: an .npz with images; without one, the digits inside the package, enlarged.
        bits: of the levels.
        width: channels of the first layer of a ResNet-8.
        batch: images of a step.
        steps: of each training; gradients are looked at before the first, after a quarter of them, and after the last.
        seeds: trainings of each choice; 0 trains none.
    """

    words: ClassVar[str] = (
        "the error of clipped gradients on all elements and on the large ones, and what training says"
    )
    core_hours: ClassVar = 0.1
    presets: ClassVar = {"smoke": {"width": 4, "batch": 16, "steps": 4, "seeds": 1}, "cpu": {}}

    bits: int = 4
    width: int = 16
    batch: int = 64
    steps: int = 200
    seeds: int = 2

    def __post_init__(self) -> None:
        if self.steps < 4:
            raise InvalidValue(f"steps must be at least 4; got {self.steps}.")

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        given = {
            "data": None if self.data is None else self.data.name,
            **{name: getattr(self, name) for name in ("bits", "width", "batch", "steps")},
        }
        yield Measured(LOOKS, given, self.look, threads=1)
        looks = folder.found(LOOKS)
        assert looks is not None
        share = float(looks["clipped for all"])
        for seed in range(self.seeds):
            for name in (FULL, *CHOICES):
                settings = given | {"seed": seed, "keep": list(KEEP)}
                yield Measured(f"{name}-{seed}", settings, partial(self._train, name, seed, share), 1)

    def draw(self, folder: CellFolder) -> list[Result]:
        looks = folder.found(LOOKS)
        if looks is None:
            return []
        return [self._choices(folder, looks), self._layers(looks)]

    # -- cells --

    def look(self) -> Found:
        """Train densely; at several moments look at the gradients of all layers."""
        session, model, batches = self._session(0, None)
        moments, looks = (0, self.steps // 4, self.steps), dict[str, Any]()
        for step in range(self.steps + 1):
            if step in moments:
                gradients = gradients_of(model, next(batches)).neural
                looks[str(step)] = {name: self._measured(g) for name, g in gradients.items()}
            if step < self.steps:
                session.step()
        last = looks[str(self.steps)].values()
        return {"looks": looks, "clipped for all": median(one["choices"]["all"]["clipped"] for one in last)}

    def _measured(self, g: Tensor) -> Found:
        """The curves of a gradient by its law, and the errors of each choice, on its elements."""
        law = log_histogram(g).law()
        curve = clipped_intervals.interval_errors(law, self.bits, GAMMAS)
        choices = {}
        for name, gamma in self._gammas(law).items():
            found = clipped_intervals.measured_interval_errors(g, self.bits, gamma)
            by_law = clipped_intervals.interval_errors(law, self.bits, gamma)
            scale = (2 ** (self.bits - 1) - 1) / (gamma * float(law.maximum))
            choices[name] = {
                **{field: float(value) for field, value in found._asdict().items()},
                "all by law": float(by_law.all),
                "large by law": float(by_law.large),
                "cosine": float(theory.rounding_cosine(law, self._format, scale, "stochastic")),
            }
        return {
            "elements": g.numel(),
            "curve": {name: getattr(curve, name).tolist() for name in ("all", "large", "bound")},
            "best for large": float(clipped_intervals.best_interval(law, self.bits)),
            "choices": choices,
        }

    @property
    def _format(self) -> IntFormat:
        return IntFormat(self.bits, symmetric=True)

    def _gammas(self, law: Empirical) -> dict[str, float]:
        """The interval of each choice, by the law of a gradient."""
        largest = float(law.maximum)
        squared, cosine = (
            self._format.max / float(theory.best_scale(law, self._format, criterion)) / largest
            for criterion in ("squared", "cosine")
        )
        return {
            "minmax": 1.0,
            "cosine": min(cosine, 1.0),
            "squared": min(squared, 1.0),
            "interval": float(clipped_intervals.optimal_interval(law, self.bits)),
            "all": float(clipped_intervals.best_interval(law, self.bits, 1.0)),
        }

    def _train(self, name: str, seed: int, share: float) -> Found:
        """Train with one choice; the loss over the last quarter, and the interval of each layer at the end."""
        session, _, _ = self._session(seed, self._plan(name, share))
        losses = list[float]()
        try:
            for _ in range(self.steps):
                losses.append(session.step())
        except Diverged:
            return {"loss": None, "steps": len(losses), "intervals": {}}
        intervals = {} if session.handle is None else intervals_of(session.handle, self.bits)
        session.close()
        return {
            "loss": mean(losses[-max(self.steps // 4, 1) :]),
            "steps": len(losses),
            "intervals": intervals,
        }

    def _plan(self, name: str, share: float) -> Plan | None:
        if name == FULL:
            return None
        text = CHOICES[name].recipe
        if text is not None:
            return Plan(every=LayerPlan.of(recipe(text.format(bits=self.bits))), keep=KEEP)
        alpha = min(share * (2**self.bits - 1), 1.0 - 1e-9)  # this much of it is clipped
        return Plan(every=LayerPlan.of(both(Interval(self.bits, max(alpha, 1e-9)))), keep=KEEP)

    def _session(self, seed: int, plan: Plan | None) -> tuple[Session, nn.Module, Iterator[Any]]:
        torch.manual_seed(seed)
        model = CifarResNet(8, 100, self.width)
        batches = augmented_images(self.data, self.batch, seed)
        attaching: dict[str, Any] = {} if plan is None else {"seed": seed}
        return Session(model, batches, F.cross_entropy, _optimizer(model), plan, **attaching), model, batches

    # -- tables --

    def _choices(self, folder: CellFolder, looks: Found) -> Result:
        last = rounded_layers(looks)
        losses = {name: self._losses(folder, name) for name in (FULL, *CHOICES)}
        rows: list[list[object]] = [["float32", *[None] * 5, *_loss_cells(losses[FULL], {})]]
        for name, choice in CHOICES.items():
            rows.append([
                choice.title,
                *error_cells(last, name),
                *_loss_cells(losses[name], losses[FULL]),
            ])  # fmt: skip
        columns = [
            "interval", "gamma", "clipped", "error on all", "error on large", "cosine", "loss", "to float32", "spread",
        ]  # fmt: skip
        notes = [*_verdict(last, losses), *self._diverged(folder), *_notes(looks)]
        return Result("intervals", "Clipped intervals of gradients", self._claim(), columns, rows, notes=notes)

    def _losses(self, folder: CellFolder, name: str) -> dict[int, float]:
        found = {seed: folder.found(f"{name}-{seed}") for seed in range(self.seeds)}
        return {seed: one["loss"] for seed, one in found.items() if one is not None and one["loss"] is not None}

    def _diverged(self, folder: CellFolder) -> list[str]:
        """Name the runs without a loss: means and pairs are of the others, and look better than they are."""
        names = [f"{choice}-{seed}" for choice in (FULL, *CHOICES) for seed in range(self.seeds)]
        found = {name: folder.found(name) for name in names}
        diverged = [name for name, one in found.items() if one is not None and one["loss"] is None]
        return [f"Diverged, and in no mean or pair: {', '.join(diverged)}."] if diverged else []

    def _claim(self) -> str:
        return (
            f"ResNet-8, {self.width} channels, {self.source}, batch {self.batch}, gradients at {self.bits} bits, "
            f"stochastic rounding; the first and the last layer are trained in full precision, as in the paper. "
            "The interval ends at gamma times the largest magnitude; errors are means of "
            f"|Q(g) - g| on all elements and on the largest {ALPHA:.1%}, relative to those of the whole range, medians "
            f"over the layers after {self.steps} dense steps. Loss: the mean over the last quarter of {self.steps} "
            "steps with each interval, over the seeds; differences are those of runs of the same seed. The paper "
            "claims that the error on the large gradients decides, and not that on all. "
            f"`./dev reproduce intervals{' --data FILE' if self.data else ''}` makes this table and its figures."
        )

    def _layers(self, looks: Found) -> Result:
        rows: list[list[object]] = []
        for when, layers in looks["looks"].items():
            for name, layer in layers.items():
                shown = [layer["choices"][choice] for choice in CHOICES]
                rows.append([
                    name, int(when), *(f"{one['gamma']:.3f}" for one in shown), f"{layer['best for large']:.3f}",
                    *(f"{one['large']:.4f}" for one in shown), f"{layer['choices']['interval']['bound']:.4f}",
                ])  # fmt: skip
        columns = ["layer", "step", *(f"gamma, {name}" for name in CHOICES), "gamma, least on large"]
        columns += [*(f"large, {name}" for name in CHOICES), "bound, interval"]
        claim = (
            "By layer and moment: the gamma of each choice and the mean error of the large gradients there, in units "
            "of the largest magnitude. Figures: both errors over gamma by the law of the gradient after the last step, "
            "with the choices as measured on its elements."
        )
        figures = [_figure(name, layer) for name, layer in looks["looks"][str(self.steps)].items()]
        return Result("intervals-layers", "Errors by layer", claim, columns, rows, figures)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE, momentum=0.9)


def rounded_layers(looks: Found) -> list[Found]:
    """Return what was found at the last look, of the layers that are rounded in training: all but first and last."""
    last = list(looks["looks"].values())[-1]
    return list(last.values())[1:-1]


def error_cells(layers: list[Found], name: str) -> list[object]:
    """Return gamma, the clipped share, the errors on all and on large gradients over those of min-max, and the cosine.

    All are medians over the layers.
    """
    found = [layer["choices"][name] for layer in layers]
    pairs = [(layer["choices"][name], layer["choices"]["minmax"]) for layer in layers]
    return [
        f"{median(one['gamma'] for one in found):.3f}",
        f"{median(one['clipped'] for one in found):.2%}",
        *(f"{_ratio(pairs, what):.2f}" for what in ("all", "large")),
        f"{median(one['cosine'] for one in found):.3f}",
    ]


def _ratio(pairs: list[tuple[Found, Found]], what: str) -> float:
    """The median over layers of an error over another, of layers where the other is not zero."""
    return float(median(one[what] / other[what] for one, other in pairs if other[what] > 1e-9))


def _loss_cells(own: dict[int, float], base: dict[int, float]) -> list[object]:
    """The mean loss, and mean and spread of its difference to float32."""
    differences = [loss - base[seed] for seed, loss in own.items() if seed in base]
    return [
        f"{mean(own.values()):.3f}" if own else None,
        f"{mean(differences):+.3f}" if differences else None,
        f"{stdev(differences):.3f}" if len(differences) > 1 else None,
    ]


def _verdict(layers: list[Found], losses: dict[str, dict[int, float]]) -> list[str]:
    """How often the better of two intervals, by one measure, trains to the lower loss, where the seeds can tell."""
    told: list[tuple[str, str]] = []
    pairs = list(combinations([name for name in CHOICES if losses[name]], 2))
    for a, b in pairs:
        differences = [losses[a][seed] - losses[b][seed] for seed in losses[a] if seed in losses[b]]
        if len(differences) > 1 and abs(mean(differences)) > 2 * stdev(differences) / len(differences) ** 0.5:
            told.append((a, b) if mean(differences) < 0 else (b, a))
    if not pairs:
        return []

    def agreeing(what: str, sign: int) -> int:
        middle = {name: median(layer["choices"][name][what] for layer in layers) for name in CHOICES}
        return sum(sign * (middle[better] - middle[worse]) < 0 for better, worse in told)

    seeds = min(len(losses[name]) for name in CHOICES if losses[name])
    chance = len(pairs) * 2 * float(student.sf(2.0, seeds - 1)) if seeds > 1 else 0.0
    decided = "" if len(told) > 2 * chance and told else " So these runs do not decide the claim about training."
    return [
        f"In {len(told)} of {len(pairs)} pairs of intervals the losses differ by more than two standard errors of the "
        f"paired differences; chance alone would give about {chance:.1f}. The lower loss goes with the lower error on "
        f"large gradients in {agreeing('large', 1)} of them, with the lower error on all gradients in "
        f"{agreeing('all', 1)}, and with the larger cosine in {agreeing('cosine', -1)}.{decided}"
    ]


def _notes(looks: Found) -> list[str]:
    """How far the law is from the elements, and the interval of the paper from the best one."""
    layers = [layer for moment in looks["looks"].values() for layer in moment.values()]
    off = [abs(one[f"{what} by law"] / one[what] - 1) for layer in layers for one in layer["choices"].values()
           for what in ("all", "large") if one[what]]  # fmt: skip
    inside = sum(one["large"] <= one["bound"] * (1 + 1e-9) for layer in layers for one in layer["choices"].values())
    ratio = [layer["choices"]["interval"]["gamma"] / layer["best for large"] for layer in layers]
    return [
        f"Errors by the law of a gradient differ from those of its elements by {median(off):.1%} (median).",
        f"The bound holds in {inside} of {sum(len(layer['choices']) for layer in layers)} cases.",
        f"The gamma of the paper is {median(ratio):.2f} of the one with the least error on large gradients (median; "
        f"{min(ratio):.2f} to {max(ratio):.2f}).",
    ]


def _figure(name: str, layer: Found) -> Figure:
    """Draw both errors over gamma, with the choices on them."""
    curve, choices = layer["curve"], layer["choices"]
    series: dict[str, Any] = {
        "large gradients": (GAMMAS, curve["large"]), "bound on large": (GAMMAS, curve["bound"]),
        "all gradients": (GAMMAS, curve["all"]),
    }  # fmt: skip
    for choice, one in CHOICES.items():
        found = choices[choice]
        series[one.title] = ([found["gamma"]] * 2, [found["large"], found["all"]])
    style = {"bound on large": "--"} | {one.title: "o" for one in CHOICES.values()}
    x, y = "gamma, the end of the interval", "mean error, of the largest magnitude"
    return lines(series, name, x, y, log="xy", style=style)
