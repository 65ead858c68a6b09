"""The guard of `attach(..., guard=True)`, and the one warning of a handle without it.

- The noise line: a layer is treated while the guard noise of the plan, predicted from the laws of its gradients, fits a
  budget.  Layers with little noise are let in first.
- The explosion check: now and then no gradient is treated for one step, and the energies E[g^2] of the step after it
  are held against those.  Where one has grown far beyond the prediction, twice in a row, the loudest layer behind it
  falls back.
- Falling back: a layer is treated or dense.  One that fell back waits, each time twice as long, before it may return.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from ..errors import InvalidType, InvalidValue, LogradWarning, plural, sentence
from ..files.checks import MAX_FLOAT, check_number, check_object, check_text, check_whole
from ..treatments import Integers, predict
from ..treatments.verdicts import noise_of
from .refresh import EARLY_STEPS, OperandStatistics

ROOM = 0.7
"""The share of the budget up to which layers are let in; the rest is for laws that change."""
QUIET = 0.25
"""The share of the budget below which energies are not checked, so that a quiet plan has no untreated steps."""
RECENT = 0.25
"""The weight of the last statistics in the noise of a layer: single batches differ much, and few need a reaction."""
EVERY = 50
"""Steps from one check to the next, reached over 1, 2, 4, ...; also the first wait of a layer that fell back."""
SURPRISE = 4.0
"""A growth of energy beyond the predicted one that, twice in a row, is noise and not the difference of two batches."""
LIMIT = 1e5
"""The growth of energy above which a handle without a guard warns.

At 85 % it settles near 1e3 in a ResNet-20 that learns and at 2e5 in one whose weights are held fixed; in a MobileNet-v2
it passes 1e10 within nine steps.  A plan from a profile with measured noise is warned of sooner (`Evidence.growth`).
"""
MEANING = "the noise-to-signal ratio in the worst layer"


@final
@dataclass(frozen=True)
class Guard:
    """The setting of a guard: layers are treated while the noise of the plan fits a budget.

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


class Change(NamedTuple):
    """A change that a guard has made to one layer."""

    step: int
    layer: str
    before: str
    after: str
    cause: str
    """"fits", "noise" or "explosion"."""
    noise: float
    """The guard noise after it."""

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.layer} {self.before} -> {self.after} ({self.cause}; guard noise {self.noise:.2g})"
        )


# -- the noise line --


class Noise(NamedTuple):
    """The predicted noise-to-signal ratios of a gradient's treatments."""

    dx: float
    """In the product for dX, which hands the noise on to every layer in front."""
    dw: float
    """In the product for dW."""


def predicted_noise(statistics: OperandStatistics, loss_scale: float) -> Noise:
    """Return the noise of a gradient's treatments by the law of its last histogram, with the numbers in force.

    Where scales belong to rows or blocks, the law does not tell: as many bits with one scale for the tensor are taken,
    which have more noise.
    """
    known = statistics.bounds(loss_scale) | {
        name: one for name, one in statistics.predictions(loss_scale).items() if one is not None
    }
    found = {}
    for name, site in statistics.operand.sites.items():
        prediction = known.get(name)
        if prediction is None:
            bits = min((one.element_bits for one in site.treatments if one.element_bits is not None), default=8.0)
            levels = Integers(max(int(bits), 2), rounding="stochastic")
            prediction = predict((levels,), statistics.statistics(loss_scale))
        assert prediction is not None
        found[id(site)] = min(noise_of(prediction.cosine), MAX_FLOAT)
    at = statistics.operand.at
    return Noise(*(found.get(id(at[product]), 0.0) for product in ("input_gradient", "weight_gradient")))


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

    name: str
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

    @property
    def status(self) -> str:
        return "treated" if self.treated else "dense" if self.falls else "waiting"

    def follow(self, found: Noise) -> None:
        before = self.noise or found
        self.noise = Noise(*(old + RECENT * (new - old) for old, new in zip(before, found, strict=True)))

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
        self.changes: list[Change] = []
        """All changes, in order; they are few, as waits double."""
        self.references = 0
        """Steps in which no gradient was treated, to measure the energies without noise."""
        self._layers = [_Layer(name, one) for name, one in layers.items()]
        self._next, self._interval = 0, 1
        """The step of the next reference, and the steps from a check to the one after it."""
        self._untreated, self._compared = True, -1
        """True if no gradient is treated in the running step; the step that is held against an untreated one."""
        self._suspected = self._warned = False
        """True if the last check found too much growth; True once that was warned of."""
        for layer in self._layers:
            layer.let(False)

    def __repr__(self) -> str:
        return f"ActiveGuard({self.summary()})"

    @property
    def noise(self) -> float:
        """The guard noise of the layers that are treated: the noise-to-signal ratio in the worst layer."""
        return guard_noise(self._noise())

    def _noise(self, besides: _Layer | None = None) -> list[Noise]:
        """Return the noise of each layer as it is treated now, and of one layer `besides` as if it were."""
        inside = (one.noise if one.treated or one is besides else None for one in self._layers)
        return [noise or Noise(0.0, 0.0) for noise in inside]

    @property
    def waiting(self) -> list[str]:
        """The layers that are not treated now."""
        return [layer.name for layer in self._layers if not layer.treated]

    def summary(self) -> str:
        """Return one line for people."""
        count, falls = len(self._layers), sum(layer.falls for layer in self._layers)
        text = (
            f"{count - len(self.waiting)} of {plural(count, 'layer')} treated; guard noise {self.noise:.2g} "
            f"({MEANING}), budget {self.budget:g}"
        )
        text += f"; {plural(self.references, 'untreated step')} as reference" if self.references else ""
        return text + (f"; fell back {plural(falls, 'time')}" if falls else "")

    def words(self, layer: str) -> str:
        """Return why the guard keeps a layer as it is, for people; empty where it does not."""
        found = next((one for one in self._layers if one.name == layer and not one.treated), None)
        if found is None:
            return ""
        known = "its noise is not known yet" if found.noise is None else f"own noise {found.loudness:.2g} of its energy"
        return f"guard: {found.status}, {known}" + (f", until step {found.earliest}" if found.falls else "")

    def hold(self) -> None:
        """Keep the layers as they are that are not let in."""
        for layer in self._layers:
            layer.statistics.be_ready()

    def judge(self, step: int, loss_scale: float) -> None:
        """Decide by the statistics that a step has delivered."""
        fresh = [layer for layer in self._layers if layer.statistics.step == step]
        for layer in fresh:
            layer.follow(predicted_noise(layer.statistics, loss_scale))
        if self._untreated:
            for layer in self._layers:
                layer.reference = layer.statistics.energy if layer in fresh else 0.0
        elif step == self._compared:
            self._check(step, fresh)
        while self.noise > self.budget:
            loudest = max((one for one in self._layers if one.treated), key=lambda one: one.loudness)
            self._fall_back(step, loudest, "noise")
        for layer in sorted(self._layers, key=lambda one: one.loudness):
            if layer.treated or layer.noise is None or step < layer.earliest:
                continue
            if guard_noise(self._noise(besides=layer)) <= ROOM * self.budget:
                self._change(step, layer, True, "fits")

    def prepare(self, step: int) -> None:
        """Make the next step a reference where one is due, and let it take statistics where energies are compared."""
        after_untreated, noise = self._untreated, self.noise
        checks = noise > QUIET * self.budget or (noise > 0 and self._suspected)
        reference = checks and not after_untreated and step >= self._next
        compared = checks and after_untreated
        if reference:
            self.references += 1
            self._next = step + 1 + self._interval
        for layer in self._layers:
            if reference:
                layer.statistics.operand.set_ready(False)
            elif after_untreated:
                layer.statistics.be_ready()
            if reference or compared:
                layer.statistics.collect()
        self._compared = step if compared else -1
        self._untreated = reference or not any(layer.statistics.operand.ready for layer in self._layers)

    def _check(self, step: int, fresh: Collection[_Layer]) -> None:
        """Let the loudest layer fall back that is behind one whose energy has grown beyond the prediction."""
        arriving = dict(zip((layer.name for layer in self._layers), growths(self._noise()), strict=True))
        reached = {name: growth for name, growth in arriving.items() if growth > 1}
        found = grown_most({one.name: one.statistics.energy / one.reference for one in fresh if one.reference}, reached)
        surprised = found is not None and found[1] > SURPRISE * reached[found[0]]
        self._interval = 1 if surprised else min(2 * self._interval, EVERY)
        self._next = step + self._interval
        suspected, self._suspected = self._suspected, surprised
        if found is None or not (surprised and suspected):
            return
        name, factor = found
        behind = self._layers[list(arriving).index(name) + 1 :]
        loudest = max((one for one in behind if one.treated), key=lambda one: one.loudness)
        self._fall_back(step, loudest, "explosion")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"step {step}: the energy of the gradient of {name!r} had grown {factor:.2g} times, where "
                f"{reached[name]:.2g} times was predicted; the guard keeps {loudest.name!r} as it is until step "
                f"{loudest.earliest}, and handle.guard.changes has what follows.",
                LogradWarning,
                stacklevel=5,
            )

    def _fall_back(self, step: int, layer: _Layer, cause: str) -> None:
        layer.earliest = step + EVERY * 2**layer.falls
        layer.falls += 1
        self._change(step, layer, False, cause)

    def _change(self, step: int, layer: _Layer, treats: bool, cause: str) -> None:
        before = layer.status
        layer.let(treats)
        self.changes.append(Change(step, layer.name, before, layer.status, cause, self.noise))

    # -- saving --

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, as plain values."""
        return {
            "schedule": [self._next, self._interval, self._compared, self.references],
            "flags": [int(self._untreated), int(self._suspected), int(self._warned)],
            "changes": [list(change) for change in self.changes],
            "layers": {
                one.name: [int(one.treated), one.falls, one.earliest, one.reference, *(one.noise or ())]
                for one in self._layers
            },
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another; layers that it does not have wait for their statistics."""
        self._next, self._interval, self._compared, self.references = state["schedule"]
        self._untreated, self._suspected, self._warned = map(bool, state["flags"])
        self.changes = [Change(*change) for change in state["changes"]]
        for layer in self._layers:
            if layer.name in state["layers"]:
                treats, layer.falls, layer.earliest, layer.reference, *noise = state["layers"][layer.name]
                layer.noise = Noise(*noise) if noise else None
                layer.let(bool(treats))
            if self._untreated:
                layer.statistics.operand.set_ready(False)


def check_state(state: Any, layers: Container[str]) -> None:
    """Refuse what is no state of a guard over these layers, in one sentence."""
    what = "the guard of a handle's state"
    check_object(what, state, ("schedule", "flags", "changes", "layers"))
    for name, least, most, count in (("schedule", -1, 2**62, 4), ("flags", 0, 1, 3)):
        for value in _listed(f"{name} of {what}", state[name], count):
            check_whole(f"{name} of {what}", value, least, most)
    for change in _listed(f"changes of {what}", state["changes"]):
        values = _listed(f"a change of {what}", change, len(Change._fields))
        check_whole(f"the step of a change of {what}", values[0])
        for text in values[1:5]:
            check_text(f"a change of {what}", text)
        check_number(f"the noise of a change of {what}", values[5], 0)
    if not isinstance(state["layers"], dict):
        raise InvalidValue(sentence(f"layers of {what}", state["layers"], "an object with layer names"))
    for name, values in state["layers"].items():
        if name not in layers:
            raise InvalidValue(f"{what} has a layer {str(name)[:60]!r}, and no layer of that name is treated.")
        values = _listed(f"layer {name!r} of {what}", values, 4, 6)
        for value, most in zip(values[:3], (1, 2**62, 2**62), strict=True):
            check_whole(f"layer {name!r} of {what}", value, 0, most)
        for value in values[3:]:
            check_number(f"layer {name!r} of {what}", value, 0)


def _listed(what: str, value: Any, *counts: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or (counts and len(value) not in counts):
        raise InvalidValue(sentence(what, value, " or ".join(map(str, counts)) + " values" if counts else "a list"))
    return value


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


class Growth(NamedTuple):
    """How the energy has grown in the layer where it has most, beyond what it has in every layer."""

    layer: str
    factor: float
    step: int
    pruned: int
    """Layers whose noise goes on to others."""

    def __str__(self) -> str:
        return (
            f"noise of pruning explodes over the {self.pruned} layers that are pruned in the product for dX: by step "
            f"{self.step} the energy of the gradient of {self.layer!r} had grown {self.factor:.0e} times; prune "
            "the product for dW only (products='weight_gradient' of a profile's plan), where nothing adds up, or ask "
            "for less sparsity in fewer layers; a later start, attach(start=100), helps where profile(noise=2), taken "
            "at that step, predicts less growth"
        )


def exploded(layers: Mapping[str, OperandStatistics], step: int, first: int) -> Growth | None:
    """Return the growth of which a handle without a guard warns; None if there is none.

    The energies of the first histograms, which were taken before any gradient was pruned, are held against later ones.
    Only steps soon after the first are judged: later, energies also change because the model learns.

    Args:
        layers: the statistics of gradients, by layer.
        step: the step that is judged.
        first: the first step that took statistics.
    """
    pruned = {name: layer for name, layer in layers.items() if _hands_noise_on(layer)}
    ratios = {name: layer.energy / layer.first_energy for name, layer in pruned.items() if layer.first_energy}
    grown = grown_most(ratios, dict.fromkeys(ratios, 1.0))
    if step > first + EARLY_STEPS or grown is None or grown[1] <= LIMIT:
        return None
    return Growth(*grown, step, len(pruned))


def _hands_noise_on(layer: OperandStatistics) -> bool:
    """Return True if the gradient is pruned without bias in the product for dX, which goes on to other layers."""
    site = layer.operand.at["input_gradient"]
    return site is not None and any(one.makes_zeros and one.unbiased for one in site.sentence)
