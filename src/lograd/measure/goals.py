"""From what a profile has measured to the fastest plan within a budget of noise.

Times and noise of each method in each layer (`menus`), how noise travels (`noise`) and its unit (`minibatch`) make a
problem of `theory.frontier`; its choice makes a plan: the treatment of each layer, why others are left alone, and what
is expected.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import final

import numpy as np

from ..errors import InvalidType, InvalidValue, LogradWarning, nearest_name, sentence
from ..laws import Empirical
from ..plan import Evidence, Expected, Forecast, LayerPlan, Plan, predicted
from ..theory import Choice, Option, Problem, Propagation, choose, pruned_options
from ..treatments import BACKWARD, Prune, Statistics
from ..treatments.products import PRODUCTS, check_backend
from .contributions import Contributions
from .menus import Candidate, Menus
from .methods import DENSE, method
from .minibatch import Minibatch
from .noisy import rise_of, statistics_of
from .nonfinite import NonFiniteLoss, refuse_nonfinite
from .planner import keep_patterns, kept_layers
from .records import LayerProfile

PROGRESS = "progress"
WOULD_SAVE = "would save"
"""Words in the reason of a layer that is left alone although a method is faster there."""
MARGIN = 0.02
"""A method must save this share of a layer's time: the least of disturbed times is too good by about as much."""
NEEDED = (
    "needs a profile with measured noise and times; make it with lograd.profile(..., noise=2, times=True), or "
    "lograd profile --noise 2 --times"
)


@final
@dataclass(frozen=True)
class Goal:
    """The goal of a plan: one of two.

    Args:
        noise: at most this added variance, in units of the minibatch's own; as fast as possible.
        objective: "progress", the most progress per second.
    """

    noise: float | None = None
    objective: str | None = None

    def __post_init__(self) -> None:
        if (self.noise is None) == (self.objective is None):
            given = "none" if self.noise is None else "both"
            raise InvalidValue(f"a plan has one goal, noise= or objective='progress'; got {given}.")
        if self.noise is not None and (
            isinstance(self.noise, bool) or not isinstance(self.noise, float | int) or not 0 < self.noise < float("inf")
        ):
            raise InvalidValue(sentence("noise", self.noise, "a positive number, such as 0.2"))
        if self.objective not in (None, PROGRESS):
            raise InvalidValue(
                sentence("objective", self.objective, repr(PROGRESS)) + nearest_name(str(self.objective), [PROGRESS])
            )


@final
@dataclass(frozen=True)
class Measurements:
    """All that a profile must have measured for a goal to be reached by choice.

    Args:
        layers: the observed layers, for their laws.
        menus: seconds and noise of each method.
        names: the layers of `energies`.
        energies: how noise travels, in absolute energy.
        unit: V, the minibatch's own variance.
    """

    layers: Mapping[str, LayerProfile]
    menus: Menus
    names: tuple[str, ...]
    energies: Propagation
    unit: float

    @classmethod
    def of(
        cls,
        layers: Mapping[str, LayerProfile],
        noise: Contributions | None,
        minibatch: Minibatch | None,
        menus: Menus | None,
    ) -> Measurements:
        """Return the measurements of a profile; refuse one that lacks some, with the way to get them."""
        lacking = [
            what
            for what, missing in (
                ("times", menus is None),
                ("noise", noise is None or noise.energies is None),
                ("the minibatch's variance", minibatch is None),
            )
            if missing
        ]
        if menus is None or noise is None or noise.energies is None or minibatch is None:
            raise InvalidValue(f"a plan for noise or progress {NEEDED}; this one lacks {' and '.join(lacking)}.")
        if not minibatch.unit > 0:
            raise InvalidValue("the gradient was the same in all batches of the profile, so noise has no unit.")
        return cls(layers, menus.scaled(), noise.layers, noise.energies, minibatch.unit)

    def among(self, names: Sequence[str]) -> Propagation:
        """Return how noise travels between some of the layers."""
        return self.energies.among([self.names.index(name) for name in names])


@final
@dataclass(frozen=True)
class Restriction:
    """The methods that a plan may use.

    Args:
        methods: names or patterns such as "int8" and "prune*"; None allows all that were timed, and sparsities between.
        backends: ways of computing a treated product; None allows all.
    """

    methods: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None

    @classmethod
    def of(cls, methods: str | Iterable[str] | None, backends: str | Iterable[str] | None) -> Restriction:
        """Return the restriction that a user has given; refuse what is no list of names."""
        return cls(_names("methods", methods, "int8"), _names("backends", backends, "integer"))

    def __post_init__(self) -> None:
        for backend in self.backends or ():
            check_backend(backend)

    def check(self, known: Collection[str]) -> None:
        """Refuse a method that no known name matches."""
        for pattern in self.methods or ():
            if not any(fnmatchcase(name, pattern) for name in known):
                raise InvalidValue(
                    sentence("methods", pattern, f"timed in the profile: {', '.join(known)}")
                    + nearest_name(pattern, known)
                )

    def allows(self, name: str) -> bool:
        """Return True if a method may be used; "dense" always may."""
        if name == DENSE:
            return True
        if self.methods is not None and not any(fnmatchcase(name, pattern) for pattern in self.methods):
            return False
        used = {getattr(method(name).plan, product).backend for product in PRODUCTS} - {"auto", "dense"}
        return self.backends is None or used <= set(self.backends)


@final
@dataclass(frozen=True)
class PlanProblem:
    """The problem of a profile: layers with a choice, and those without.

    Args:
        names: the layers with a choice.
        problem: their options; the first of each menu is "dense".
        kept: layers that stay dense whatever the goal is, and why.
        dense: seconds of the plain step.
        normalization: seconds that the switch `Plan.normalization` saves, counted in the problem; 0 leaves it off.
    """

    names: tuple[str, ...]
    problem: Problem
    kept: Mapping[str, str]
    dense: float
    normalization: float = 0.0

    def choose(self, goal: Goal) -> Choice:
        """Return the choice for a goal; InvalidValue tells what can be had where a budget is out of reach."""
        return choose(self.problem, noise=goal.noise, progress=goal.noise is None)

    def methods(self, choice: Choice) -> dict[str, str]:
        """Return the chosen method of each layer."""
        return {
            name: menu[place].name
            for name, menu, place in zip(self.names, self.problem.menus, choice.places, strict=True)
        }

    def reasons(self, choice: Choice) -> dict[str, str]:
        """Return why layers stay dense, in words: for each without a choice, and each that was better left alone."""
        found = dict(self.kept)
        seconds, noise = self.problem.exchanges(choice.places)
        for layer, (name, menu) in enumerate(zip(self.names, self.problem.menus, strict=True)):
            if menu[choice.places[layer]].name != DENSE:
                continue
            others = [place for place, option in enumerate(menu) if option.name != DENSE]
            if not others:
                found[name] = f"nothing is faster than dense here ({milliseconds(menu[0].seconds)})"
                continue
            place = min(others, key=lambda place: noise[layer, place] / -seconds[layer, place])
            found[name] = (
                f"{menu[place].name} {WOULD_SAVE} {milliseconds(-seconds[layer, place])} and add "
                f"{noise[layer, place]:.2g} of the minibatch's variance"
            )
        return found


def problem_of(
    found: Measurements, keep: str | Iterable[str], allowed: Restriction, loss: NonFiniteLoss | None = None
) -> PlanProblem:
    """Return the problem of a profile's linear layers and convolutions.

    Args:
        found: what the profile has measured.
        keep: layers that are left alone, as for `Profile.plan`.
        allowed: the methods that may be used.
        loss: the first NaN or infinite loss of the profile.
    """
    layers = _supported(found.layers)
    reasons = kept_layers(layers, keep_patterns(keep))
    refuse_nonfinite(layers, [name for name in layers if name not in reasons], loss)
    for name in layers:
        if name not in found.menus.layers:
            reasons.setdefault(name, "it was not timed")
    menus = found.menus
    allowed.check([name for name in menus.methods if name != DENSE])
    for name in menus.layers:
        if name not in found.names:
            reasons.setdefault(name, "it was not measured how far its noise travels")
    names = tuple(name for name in menus.layers if name not in reasons)
    if not names:
        told = ", ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
        raise InvalidValue(f"a plan needs a layer with a choice of methods; all are left alone ({told}).")
    extra = menus.extras.get("normalization", 0.0)
    extra = extra if extra > MARGIN * menus.step / 2 else 0.0
    fixed = sum(menu[DENSE].seconds for name, menu in menus.layers.items() if name in reasons)
    rest = max(menus.rest + fixed - extra, 0.0)
    energies = found.among(names)
    options = [_worth([one for one in _all(found, name) if allowed.allows(one.name)]) for name in names]
    return PlanProblem(
        names,
        Problem(options, energies, found.unit, rest),
        reasons,
        menus.step,
        extra,
    )


def option_of(candidate: Candidate, layer: LayerProfile | None) -> Option:
    """Return a timed method of a layer as an option, with the rises that the layer's law gives it."""
    noises = (candidate.input_noise, candidate.weight_noise)
    plan = method(candidate.method).plan
    rises = [
        rise_of(plan.site(product, "gradient"), layer, noise) for product, noise in zip(BACKWARD, noises, strict=True)
    ]
    return Option(candidate.method, candidate.seconds, *noises, candidate.penalty, *rises)


def _worth(options: list[Option]) -> list[Option]:
    """Return "dense" first, and the options that are faster by more than chance."""
    dense = next(one for one in options if one.name == DENSE)
    return [dense, *(one for one in options if one.seconds < dense.seconds * (1 - MARGIN))]


def _all(found: Measurements, name: str) -> list[Option]:
    """Return the timed methods of a layer, and pruned ones at sparsities between those that were timed."""
    menu = found.menus.layers[name]
    layer = found.layers.get(name)
    options = {one.method: option_of(one, layer) for one in menu.values()}
    pruned = {
        sparsity: one
        for one in menu.values()
        if (sparsity := method(one.method).sparsity) and _percent(sparsity) == one.method
    }
    law = None if layer is None else layer.law
    if law is None or len(pruned) < 2:
        return list(options.values())
    between = _between(law, pruned)
    # The forward in integers changes neither the pruned gradient nor the products of the backward.
    joint = [
        (one, other)
        for sparsity, other in pruned.items()
        for one in menu.values()
        if one.method.endswith(f"+{_percent(sparsity)}")
    ]
    for sparsity, seconds, noise in between:
        plain = _percent(sparsity)
        rise = rise_of((Prune(sparsity),), layer, noise)
        options.setdefault(plain, Option(plain, seconds, noise, noise, 0.0, rise, rise))
        for one, other in joint:
            both = one.method.removesuffix(other.method) + plain
            shifted = max(one.seconds + seconds - other.seconds, one.forward)
            options.setdefault(both, Option(both, shifted, noise, noise, one.penalty, rise, rise))
    return list(options.values())


def _between(law: Empirical, pruned: Mapping[float, Candidate]) -> list[tuple[float, float, float]]:
    """Return sparsities, seconds and noise of a pruned layer, at and between the sparsities that were timed.

    The law is that of one step.  Noise over all steps is known at the sparsities that were timed; its ratio to the
    noise of that step changes slowly from one to the next.
    """
    zeros, seconds = float(law.zero_share), {sparsity: one.seconds for sparsity, one in pruned.items()}
    shares = {
        sparsity: pruned[sparsity].weight_noise / noise
        for sparsity, _, noise in pruned_options(law, zeros, seconds, sorted(pruned))
        if noise > 0
    }
    found = pruned_options(law, zeros, seconds)
    if not shares:
        return found
    over = np.interp([one for one, _, _ in found], list(shares), list(shares.values())).tolist()
    return [(sparsity, time, noise * share) for (sparsity, time, noise), share in zip(found, over, strict=True)]


def _percent(sparsity: float) -> str:
    return f"prune{100 * sparsity:g}"


def plan_for(found: Measurements, task: PlanProblem, goal: Goal) -> Plan:
    """Return the plan that reaches a goal, with the evidence for it.

    A plan that leaves all layers alone says why: nothing is faster, or the noise is not worth it.
    """
    layers = _supported(found.layers)
    choice = task.choose(goal)
    statistics = {name: one for name, layer in layers.items() if (one := statistics_of(layer)) is not None}
    chosen = {name: used for name, used in task.methods(choice).items() if used != DENSE}
    plans = {name: _layer(chosen[name], layers[name], statistics.get(name)) for name in layers if name in chosen}
    reasons = task.reasons(choice)
    growth = _growth(task, choice)
    if growth is not None and growth.explodes:
        warnings.warn(growth.warning(), LogradWarning, stacklevel=3)
    return Plan(
        plans,
        {name: reasons[name] for name in layers if name in reasons},
        normalization=task.normalization > 0 and bool(plans),
        evidence=Evidence(
            {name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in layers.items()},
            growth=growth,
            expected=_expected(found, task, choice if plans else replace(choice, seconds=task.dense)),
            statistics=statistics,
        ),
    )


def _supported(layers: Mapping[str, LayerProfile]) -> dict[str, LayerProfile]:
    return {name: layer for name, layer in layers.items() if layer.flops_weight is not None}


def _layer(name: str, layer: LayerProfile, statistics: Statistics | None) -> LayerPlan:
    """Return a method's plan with what theory predicts of the layer's gradient."""
    plan = method(name).plan
    dX, dW = plan.input_gradient.gradient, plan.weight_gradient.gradient
    return replace(
        plan,
        elements=layer.elements,
        masked=statistics.masked if statistics is not None else 0.0,
        predicted_input_gradient=predicted(dX, statistics) if dX else None,
        predicted_weight_gradient=predicted(dW, statistics) if dW else None,
    )


def _growth(task: PlanProblem, choice: Choice) -> Forecast | None:
    """Return the growth of the gradient that noise multiplies most; None where no layer hands noise on."""
    noise = [menu[place].input_noise for menu, place in zip(task.problem.menus, choice.places, strict=True)]
    handing_on = sum(one > 0 for one in noise)
    if not handing_on:
        return None
    growth = 1 + task.problem.levels(choice.places)
    worst = int(np.argmax(growth))
    return Forecast(task.names[worst], _digits(max(float(growth[worst]), 1.0)), True, handing_on)


def _expected(found: Measurements, task: PlanProblem, choice: Choice) -> Expected:
    rho, unit, penalty, seconds, dense = (
        _digits(min(value, 1e300)) for value in (choice.noise, found.unit, choice.penalty, choice.seconds, task.dense)
    )
    return Expected(
        rho,
        unit,
        penalty=penalty,
        seconds=seconds,
        dense_seconds=dense,
    )


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def milliseconds(seconds: float) -> str:
    """Return a time in words.

    >>> milliseconds(0.00041)
    '0.41 ms'
    """
    return f"{1e3 * seconds:.2f} ms" if seconds < 0.01 else f"{1e3 * seconds:.1f} ms"


def _names(what: str, given: str | Iterable[str] | None, example: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidType(sentence(what, given, f"a name such as {example!r}, or a list of them"))
    return tuple(str(name) for name in names)
