"""Noise that would spoil a training: the guard of `attach(..., guard=True)`, and the warnings of a handle without it.

A guard is for pruned gradients, the noise of which adds up over the layers of a deep network.

- The noise line: a layer is treated while the guard noise of the plan, predicted from the laws of its gradients, fits a
  budget.  Layers with little noise are let in first.
- The explosion check: now and then no gradient is treated for one step, and the energies E[g^2] of later steps are held
  against those of that step.  Where one has grown far beyond the prediction, the loudest layer behind it falls back.
- Falling back: a layer is treated or dense.  One that fell back waits, each time twice as long, before it may return.

Without a guard, a handle warns once of noise that has exploded.  It also warns once where rounding loses too much of
the forward's outputs, which is no noise but bias, and keeps a network from learning at any step size.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from ..errors import InvalidType, InvalidValue, LogradWarning, plural, sentence
from ..files import MAX_FLOAT, check_number
from ..treatments.verdicts import noise_of
from .refresh import EARLY_STEPS, OperandStatistics

ROOM = 0.7
"""The share of the budget up to which layers are let in; the rest is for laws that change."""
EVERY = 50
"""Steps from one untreated step to the next; also the first wait of a layer that fell back."""
SURPRISE = 10.0
"""A growth of energy beyond the predicted one that is noise, and not the difference of two batches."""
LIMIT = 1e5
"""The growth of energy above which a handle without a guard warns.

At 85 % it settles near 1e3 in a ResNet-20 that learns and at 2e5 in one whose weights are held fixed; in a MobileNet-v2
it passes 1e10 within nine steps.  A plan from a profile with measured noise is warned of sooner (`Evidence.growth`).
"""
MOST_LOST = 0.1
"""The relative squared error of a layer's output by rounding its operands above which a handle warns.

Largest in MiniLM, fine-tuned on SST-2: 0.45 with 4 bits, which never learned, and 0.021 with 6 bits by row, which
learned as float32 did (docs/accelerate.md).
"""
MEANING = "the noise-to-signal ratio in the worst layer"


@final
@dataclass(frozen=True)
class Guard:
    """The setting of a guard: pruned gradients are treated while the noise of the plan fits a budget.

    Args:
        budget: the most guard noise, the noise-to-signal ratio in the worst layer.
    """

    budget: float = 1.0

    def __post_init__(self) -> None:
        if not check_number("budget of a guard", self.budget, 0, MAX_FLOAT):
            raise InvalidValue(sentence("budget of a guard", self.budget, "above 0"))


def check_guard(guard: bool | Guard | None) -> Guard | None:
    """Return the guard that was asked for: True is `Guard()`, False and None are none."""
    if isinstance(guard, Guard):
        return guard
    if guard is None or isinstance(guard, bool):
        return Guard() if guard else None
    raise InvalidType(sentence("guard", guard, "True, False or a Guard"))


class GuardChange(NamedTuple):
    """A change that a guard has made to one layer."""

    step: int
    layer: str
    treated: bool
    """True if the layer is treated from then on."""
    cause: str
    """"fits", "noise" or "explosion"."""
    noise: float
    """The guard noise after it."""

    def __str__(self) -> str:
        what = "treated" if self.treated else "left dense"
        return f"step {self.step}: {self.layer} {what} ({self.cause}; guard noise {self.noise:.2g})"


# -- the noise line --


class Noise(NamedTuple):
    """The predicted noise-to-signal ratios of a gradient's treatments."""

    dx: float
    """In the product for dX, which hands the noise on to every layer in front."""
    dw: float
    """In the product for dW."""


def predicted_noise(statistics: OperandStatistics, loss_scale: float) -> Noise:
    """Return the noise of a gradient's treatments by the law of its last histogram, with the numbers in force.

    Where scales belong to rows or blocks, the law tells a bound.  Noise of which it tells nothing is the largest
    number, so that such a layer is never let in.
    """
    known = statistics.bounds(loss_scale) | {
        name: one for name, one in statistics.predictions(loss_scale).items() if one is not None
    }
    sites = statistics.operand.sites
    ratios = {
        id(site): min(noise_of(known[name].cosine), MAX_FLOAT) if name in known else MAX_FLOAT
        for name, site in sites.items()
    }
    at = statistics.operand.at
    return Noise(*(ratios.get(id(at[product]), 0.0) for product in ("input_gradient", "weight_gradient")))


def growths(noise: Sequence[Noise]) -> list[float]:
    """Return the growth of the energy that arrives at each layer: the product of 1 + n over the layers behind it.

    This is the growth if layers stand in one row, in the order in which they run, and noise travels as the gradient.

    >>> growths([Noise(0.5, 0.5), Noise(1.0, 0.0), Noise(0.25, 0.25)])
    [2.5, 1.25, 1.0]
    """
    found = [1.0]
    for one in reversed(noise[1:]):
        found.append(found[-1] * (1 + one.dx))
    return found[::-1] if noise else []


def guard_noise(noise: Sequence[Noise]) -> float:
    """Return the largest noise-to-signal ratio that arrives in dW of a layer, with what its own treatment adds.

    >>> guard_noise([Noise(0.5, 0.5), Noise(1.0, 0.0), Noise(0.25, 0.25)])
    2.75
    """
    arrives = (growth * (1 + one.dw) - 1 for growth, one in zip(growths(noise), noise, strict=True))
    return min(max(arrives, default=0.0), MAX_FLOAT)


# -- at work --


@dataclass(eq=False)
class _Layer:
    """One layer under a guard."""

    statistics: OperandStatistics
    noise: Noise | None = None
    """None until there are statistics."""
    reference: float = 0.0
    """The energy in the last untreated step; 0 if it is not known."""
    falls: int = 0
    earliest: int = 0
    """How often the layer fell back, and the step before which it does not return."""

    @property
    def treated(self) -> bool:
        return self.statistics.treats

    @property
    def loudness(self) -> float:
        return max(self.noise or (0.0,))

    def let(self, treats: bool) -> None:
        self.statistics.treats = treats
        self.statistics.be_ready()


@final
class ActiveGuard:
    """A guard at work: `handle.guard`.

    Args:
        guard: the setting.
        layers: the statistics of the gradients, by layer, in the order in which the layers run.
    """

    def __init__(self, guard: Guard, layers: Mapping[str, OperandStatistics]) -> None:
        self.budget = guard.budget
        self.changes: list[GuardChange] = []
        """All changes, in order; they are few, as waits double."""
        self._layers = {name: _Layer(one) for name, one in layers.items() if _is_pruned(one)}
        if not self._layers:
            raise InvalidValue("a guard is for plans that prune gradients, and this plan prunes none; leave guard out.")
        self._next = EVERY
        """The step of the next reference."""
        self._untreated = True
        """True if no gradient is treated in the running step."""
        for layer in self._layers.values():
            layer.let(False)

    def __repr__(self) -> str:
        return f"ActiveGuard({self.summary()})"

    @property
    def noise(self) -> float:
        """The guard noise of the layers that are treated: the noise-to-signal ratio in the worst layer."""
        return guard_noise(self._noise())

    def _noise(self, besides: _Layer | None = None) -> list[Noise]:
        """Return the noise of each layer as it is treated now, and of one layer `besides` as if it were."""
        inside = (one.noise if one.treated or one is besides else None for one in self._layers.values())
        return [noise or Noise(0.0, 0.0) for noise in inside]

    @property
    def waiting(self) -> list[str]:
        """The layers that are not treated now."""
        return [name for name, layer in self._layers.items() if not layer.treated]

    def summary(self) -> str:
        """Return one line for people."""
        count, falls = len(self._layers), sum(layer.falls for layer in self._layers.values())
        text = (
            f"{count - len(self.waiting)} of {plural(count, 'layer')} treated; guard noise {self.noise:.2g} "
            f"({MEANING}), budget {self.budget:g}"
        )
        return text + (f"; fell back {plural(falls, 'time')}" if falls else "")

    def words(self, name: str) -> str:
        """Return why the guard keeps a layer as it is, for people; empty where it does not."""
        layer = self._layers.get(name)
        if layer is None or layer.treated:
            return ""
        known = "noise not known yet" if layer.noise is None else f"own noise {layer.loudness:.2g} of its energy"
        return f"guard: dense, {known}" + (f", until step {layer.earliest}" if layer.falls else "")

    def hold(self) -> None:
        """Keep the layers as they are that are not let in."""
        for layer in self._layers.values():
            layer.statistics.be_ready()

    def judge(self, step: int, loss_scale: float) -> None:
        """Decide by the statistics that a step has delivered."""
        fresh = {name: one for name, one in self._layers.items() if one.statistics.step == step}
        for layer in fresh.values():
            layer.noise = predicted_noise(layer.statistics, loss_scale)
        if self._untreated:
            for layer in self._layers.values():
                layer.reference = layer.statistics.energy if layer in fresh.values() else 0.0
        else:
            self._check(step, fresh)
        while self.noise > self.budget:
            self._fall_back(step, self._loudest(self._layers), "noise")
        for name, layer in sorted(self._layers.items(), key=lambda pair: pair[1].loudness):
            fits = guard_noise(self._noise(besides=layer)) <= ROOM * self.budget
            if layer.noise is not None and not layer.treated and step >= layer.earliest and fits:
                self._change(step, name, True, "fits")

    def prepare(self, step: int) -> None:
        """Leave the next step untreated where a reference is due, and take its statistics and those after it."""
        after_untreated = self._untreated
        reference = step >= self._next and not after_untreated
        if reference:
            self._next = step + EVERY
        for layer in self._layers.values():
            if reference:
                layer.statistics.operand.set_ready(False)
            elif after_untreated:
                layer.statistics.be_ready()
            if reference or after_untreated:
                layer.statistics.collect()
        self._untreated = not any(layer.statistics.operand.ready for layer in self._layers.values())

    def _check(self, step: int, fresh: Mapping[str, _Layer]) -> None:
        """Let the loudest layer fall back that is behind one whose energy has grown beyond the prediction."""
        arriving = dict(zip(self._layers, growths(self._noise()), strict=True))
        reached = {name: growth for name, growth in arriving.items() if growth > 1}
        ratios = {name: one.statistics.energy / one.reference for name, one in fresh.items() if one.reference}
        found = grown_most(ratios, reached)
        if found is None or found[1] <= SURPRISE * reached[found[0]]:
            return
        name, factor = found
        names = list(self._layers)
        loudest = self._loudest(names[names.index(name) + 1 :])
        self._fall_back(step, loudest, "explosion")
        self._next = step + 1  # later energies are held against a new reference
        if [change.cause for change in self.changes].count("explosion") == 1:
            warnings.warn(
                f"step {step}: the energy of the gradient of {name!r} had grown {factor:.2g} times, where "
                f"{reached[name]:.2g} times was predicted; the guard keeps {loudest!r} as it is until step "
                f"{self._layers[loudest].earliest}, and handle.guard.changes has what follows.",
                LogradWarning,
                stacklevel=5,
            )

    def _loudest(self, names: Sequence[str] | Mapping[str, _Layer]) -> str:
        treated = [name for name in names if self._layers[name].treated]
        return max(treated, key=lambda name: self._layers[name].loudness)

    def _fall_back(self, step: int, name: str, cause: str) -> None:
        layer = self._layers[name]
        layer.earliest = step + EVERY * 2**layer.falls
        layer.falls += 1
        self._change(step, name, False, cause)

    def _change(self, step: int, name: str, treated: bool, cause: str) -> None:
        self._layers[name].let(treated)
        self.changes.append(GuardChange(step, name, treated, cause, self.noise))

    # -- saving --

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, as plain values."""
        return {
            "next": self._next,
            "untreated": self._untreated,
            "changes": [list(change) for change in self.changes],
            "layers": {
                name: [one.treated, one.falls, one.earliest, one.reference, *(one.noise or (-1.0, -1.0))]
                for name, one in self._layers.items()
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from the `state` of another; layers that it does not have wait for their statistics."""
        self._next, self._untreated = state["next"], state["untreated"]
        self.changes = [GuardChange(*change) for change in state["changes"]]
        for name, layer in self._layers.items():
            if name in state["layers"]:
                treats, layer.falls, layer.earliest, layer.reference, *noise = state["layers"][name]
                layer.noise = Noise(*noise) if noise[0] >= 0 else None
                layer.let(treats)
            if self._untreated:
                layer.statistics.operand.set_ready(False)


# -- growth of energies --


def grown_most(ratios: Mapping[str, float], predicted: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the layer whose energy has grown most beyond the prediction, and its growth; None where none is known.

    A loss that grows is no noise: it is in all layers, also in the last one, which no noise reaches, so the least
    growth is taken out.

    Args:
        ratios: the energy of each layer over that without noise.
        predicted: the growth by noise, for the layers that it reaches.
    """
    known = [name for name in ratios if name in predicted]
    if not known:
        return None
    name = max(known, key=lambda one: ratios[one] / predicted[one])
    return name, ratios[name] / max(min(ratios.values()), 1.0)


def exploded(layers: Mapping[str, OperandStatistics], step: int, first: int) -> str:
    """Return the warning of a handle without a guard; empty where nothing has exploded.

    The energies of the first histograms, which were taken before any gradient was pruned, are held against later ones.
    Only steps soon after the first are judged: later, energies also change because the model learns.

    Args:
        layers: the statistics of gradients, by layer.
        step: the step that is judged.
        first: the first step that took statistics.
    """
    pruned = {name: one for name, one in layers.items() if _is_pruned(one, "input_gradient", biased=False)}
    ratios = {name: layer.energy / layer.first_energy for name, layer in pruned.items() if layer.first_energy}
    grown = grown_most(ratios, dict.fromkeys(ratios, 1.0))
    if step > first + EARLY_STEPS or grown is None or grown[1] <= LIMIT:
        return ""
    layer, factor = grown
    return (
        f"noise of pruning explodes over the {len(pruned)} layers that are pruned in the product for dX: by step "
        f"{step} the energy of the gradient of {layer!r} had grown {factor:.0e} times; prune the product for dW only "
        "(products='weight_gradient' of a profile's plan), where nothing adds up, ask for less sparsity in fewer "
        "layers, or attach with guard=True"
    )


def _is_pruned(layer: OperandStatistics, product: str | None = None, biased: bool = True) -> bool:
    """Return True if a gradient is pruned, in a product or in any; without `biased`, only unbiased pruning counts."""
    sites = layer.operand.sites.values() if product is None else [layer.operand.at[product]]
    return any(
        one.makes_zeros and (biased or one.unbiased) for site in sites if site is not None for one in site.sentence
    )


# -- errors of the forward --


def warn_of_lossy_forward(errors: Mapping[str, float], stacklevel: int) -> None:
    """Warn of layers whose output loses more than `MOST_LOST` by the rounding of its operands.

    Args:
        errors: relative squared errors of outputs, by layer.
        stacklevel: of the warning.
    """
    worst = sorted((name for name in errors if errors[name] > MOST_LOST), key=lambda name: -errors[name])
    if not worst:
        return
    named = ", ".join(f"{name!r} {errors[name]:.2g}" for name in worst[:3])
    warnings.warn(
        f"rounding loses too much of the output of {len(worst)} of {plural(len(errors), 'layer')} for a network to "
        f"learn: relative squared errors are {named}{', ...' if len(worst) > 3 else ''}, and up to 0.02 is safe; take "
        "ranges by row ('int6-full-rows'), more bits ('int8-full'), or lograd.accelerate(model), which chooses both.",
        LogradWarning,
        stacklevel=stacklevel,
    )
