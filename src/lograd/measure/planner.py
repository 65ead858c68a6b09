"""From a profile to a plan, in one of two ways.

`plan_by_amounts`: so many bits, so many zeros; theory chooses the format and the sparsity of each layer and product.
`plan_by_goal`: a budget of noise, or the most progress per second; for each layer one of the methods that were timed
(`timing`), by measured time and predicted noise (`theory.frontier`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, final, get_args

import numpy as np

from .. import theory
from ..errors import InvalidType, InvalidValue, LogradWarning, nearest_name, sentence
from ..formats import FloatFormat
from ..laws import Empirical, LogNormal
from ..laws.binned import try_binned
from ..plan import Evidence, Expected, Forecast, LayerPlan, Plan, StepWork, check_bits, predicted
from ..theory import Option, Problem, Selection, choose
from ..treatments import BACKWARD, ProductPlan, Prune, Quantize, Sentence, Statistics
from ..treatments.products import check_backward_products
from ..treatments.prune import PruningLaw
from ..treatments.treatment import checked_sparsity
from .prediction import (
    NO_FORMAT,
    NO_TIME,
    forecast,
    recommended_format,
    rise_of,
    six_digits,
    statistics_of,
    without_gain,
)
from .records import LayerProfile, NonFiniteLoss, nonfinite_layers, nonfinite_words, refuse_nonfinite
from .timing import DENSE, Candidate, Menus, method
from .values import LEAST_BATCHES, Minibatch, NoiseFactors

Allocation = Literal["uniform", "cosine", "noise"]
"""How a sparsity is split over layers.  "uniform" gives it to every layer.  The others reach it over all pruned layers
together, each weighted with its operations: "cosine" makes the smallest cosine between a gradient and its pruned copy
as large as possible; "noise" makes the noise that arrives in the weight gradients as small as possible, by factors that
`lograd.profile(noise=...)` measures."""
Bits = int | Literal["recommended"]
RECOMMENDED = "recommended"
PROGRESS = "progress"
ZERO_GRADIENT = "its gradient was zero in the profile"
MOST = 0.995
"""The highest sparsity that an allocation gives to one layer, unless the whole budget is higher."""
MARGIN = 0.02
"""A method must save this share of a layer's time: the least of disturbed times is too good by about as much."""
NEEDED = (
    "needs a profile with measured noise and times; make it with lograd.profile(..., noise=2, times=True), or "
    "lograd profile --noise 2 --times"
)


@dataclass(repr=False)
class Measurements:
    """All that a profile has measured; plans, tables and pages are made from it.

    Attributes:
        layers: the observed layers, by name.
        missed: layers without an observation, each with the reason.
        steps: backward passes, observed or not.
        every: one of so many steps was observed.
        noise: how noise in each layer's gradient reaches the weight gradients; None where that was not measured.
        work: operations of the whole training step, and the part that no plan treats; None where they were not counted.
        loss: the first NaN or infinite loss that `lograd.profile` met; None if all were finite.
        uncounted: the reason why `work` is None.
        minibatch: the variance of the gradient over the batches, the unit of noise; None where it was not measured.
        menus: what each method costs in each layer, and the noise that it brings; None where that was not measured.
    """

    layers: dict[str, LayerProfile] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    every: int = 1
    noise: NoiseFactors | None = None
    work: StepWork | None = None
    loss: NonFiniteLoss | None = None
    uncounted: str = ""
    minibatch: Minibatch | None = None
    menus: Menus | None = None

    @property
    def broken(self) -> str | None:
        """A sentence that names layers and steps of NaN and infinite gradients; None where all were finite."""
        return nonfinite_words(self.layers, self.loss)

    @property
    def unitless(self) -> str | None:
        """A sentence on why noise was measured and its unit, the minibatch's variance, was not; else None."""
        if self.noise is None or self.minibatch is not None:
            return None
        return (
            "The unit of noise, the minibatch's own variance, was not estimated: it takes "
            f"{LEAST_BATCHES} batches whose gradients are finite, and the profile has {self.steps}."
        )


# -- which layers --


def matching_layers(layers: Sequence[str], keep: tuple[str, ...]) -> dict[str, str]:
    """Return the layers that a user wants to leave alone, with reasons; refuse a pattern that matches none.

    Args:
        layers: names in the order in which they run.
    """
    reasons: dict[str, str] = {}
    ends = {"first": layers[:1], "last": layers[-1:]}
    for pattern in keep:
        found = ends[pattern] if pattern in ends else [name for name in layers if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidValue(
                sentence("keep", pattern, "'first', 'last' or a pattern of layer names, such as 'layer1.*'")
                + nearest_name(str(pattern), [*ends, *layers])
            )
        for name in found:
            reasons.setdefault(name, f"the {pattern} layer" if pattern in ends else f"it matches {pattern!r}")
    return reasons


def keep_patterns(keep: str | Iterable[str]) -> tuple[str, ...]:
    """Return what is to be left alone as a tuple of "first", "last" and patterns; refuse what is no text."""
    patterns = (keep,) if isinstance(keep, str) else tuple(keep) if isinstance(keep, Iterable) else (keep,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidType(sentence("keep", keep, "'first', 'last', a pattern of layer names, or a list of these"))
    return patterns


def _supported(profile: Measurements) -> dict[str, LayerProfile]:
    """Return the linear layers and convolutions of a profile, without other observed modules."""
    layers = {name: layer for name, layer in profile.layers.items() if layer.flops_weight is not None}
    if not layers:
        raise InvalidValue("a plan needs a profile of a linear layer or convolution; this one has none.")
    return layers


def _kept(profile: Measurements, layers: Mapping[str, LayerProfile], keep: str | Iterable[str]) -> dict[str, str]:
    """Return the layers that are left alone, with reasons; refuse gradients that are not finite in the others."""
    broken = nonfinite_layers(layers)
    zero = [name for name, layer in layers.items() if layer.law is None and name not in broken]
    kept = matching_layers(list(layers), keep_patterns(keep)) | dict.fromkeys(zero, ZERO_GRADIENT)
    refuse_nonfinite(layers, [name for name in layers if name not in kept], profile.loss)
    return kept


def _check_any(treated: Mapping[str, object], kept: Mapping[str, str], layers: Mapping[str, LayerProfile]) -> None:
    """Refuse a plan without layers, with advice that follows from the reasons why they are kept."""
    if treated:
        return
    advice = "keep fewer: keep=() or --keep none"
    if all(reason == ZERO_GRADIENT for reason in kept.values()):
        advice = "profile with a loss that depends on them, on batches where it does not vanish"
    reasons = ", ".join(f"{name}: {reason}" for name, reason in list(kept.items())[:3])
    raise InvalidValue(f"a plan must treat at least one layer; all {len(layers)} are kept ({reasons}); {advice}.")


def _work(layers: Mapping[str, LayerProfile]) -> dict[str, tuple[int, int]]:
    return {name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in layers.items()}


def _warn_of(growth: Forecast | None) -> None:
    if growth is not None and growth.explodes:
        warnings.warn(growth.warning(), LogradWarning, stacklevel=4)


# -- so many bits, so many zeros --


def plan_by_amounts(
    profile: Measurements,
    bits: Bits | None,
    sparsity: float | None,
    *,
    allocation: Allocation | None = None,
    law: PruningLaw = "empirical",
    keep: str | Iterable[str] = ("last",),
    products: str | Iterable[str] = BACKWARD,
    split: bool = False,
    everywhere: bool = False,
) -> Plan:
    """Return a plan that rounds and prunes gradients; the arguments are explained at `Profile.plan`."""
    _check_bits(bits, sparsity)
    Prune(0.5, law)  # refuses an unknown law, also where nothing is pruned
    sides = check_backward_products(products)
    allocation = _allocation(profile, sparsity, allocation, split, sides)
    layers = _supported(profile)
    if sparsity is not None:
        checked_sparsity(sparsity)
        theory.pruning.check_sparsity(sparsity)
    kept = _kept(profile, layers, keep)
    treated = {name: layer for name, layer in layers.items() if name not in kept}
    _check_any(treated, kept, layers)
    unpruned = _unpruned(treated, sparsity, sides, everywhere)
    statistics = {name: found for name, layer in layers.items() if (found := statistics_of(layer)) is not None}
    work = _work(layers)
    shares: dict[tuple[str, str], float] = {}
    if sparsity is not None:
        pruned = {name: statistics[name] for name in treated if name not in unpruned}
        counted = {
            name: [work[name][place] * (side in sides) for place, side in enumerate(BACKWARD)] for name in pruned
        }
        shares = _allocated(profile, sparsity, allocation, split, pruned, counted)
    plans = {}
    for name in treated:
        found = statistics[name]
        format = None if bits is None else _format(found.law, bits, law)
        sentences: dict[str, Sentence] = dict.fromkeys(BACKWARD, ())
        for side in sides:
            prune = (Prune(shares[name, side], law),) if (name, side) in shares else ()
            sentences[side] = prune if format is None else (*prune, Quantize(format, "max", "stochastic"))
        if not any(sentences.values()):
            kept[name] = NO_FORMAT if bits is not None else unpruned[name]
            continue
        plans[name] = LayerPlan(
            input_gradient=ProductPlan(gradient=sentences["input_gradient"]),
            weight_gradient=ProductPlan(gradient=sentences["weight_gradient"]),
            elements=layers[name].elements,
            masked=found.masked,
            predicted_input_gradient=predicted(sentences["input_gradient"], found),
            predicted_weight_gradient=predicted(sentences["weight_gradient"], found),
        )
    kept = {name: kept[name] for name in layers if name in kept}
    _check_any(plans, kept, layers)
    growth = forecast(plans, profile.noise)
    _warn_of(growth)
    rounded_only = {} if sparsity is None else {name: why for name, why in unpruned.items() if name in plans}
    return Plan(plans, kept, evidence=Evidence(work, None, growth, rounded_only, statistics=statistics))


def _check_bits(bits: Bits | None, sparsity: float | None) -> None:
    if bits is None and sparsity is None:
        raise InvalidValue("a plan needs bits=, sparsity= or both, or a goal: noise= or objective=; got neither.")
    if isinstance(bits, str) and bits != RECOMMENDED:
        raise (InvalidType if bits.isdigit() else InvalidValue)(
            sentence("bits", bits, "a whole number from 2 to 8, or 'recommended'") + nearest_name(bits, (RECOMMENDED,))
        )
    if bits is not None and bits != RECOMMENDED:
        check_bits(bits)


def _allocation(
    profile: Measurements, sparsity: float | None, asked: Allocation | None, split: bool, sides: Sequence[str]
) -> Allocation:
    """Return how the sparsity is split; refuse a combination that makes no sense."""
    chosen: Allocation = asked or ("uniform" if profile.noise is None or sparsity is None else "noise")
    if chosen not in get_args(Allocation):
        raise InvalidValue(
            sentence("allocation", chosen, "'uniform', 'cosine' or 'noise'")
            + nearest_name(str(chosen), get_args(Allocation))
        )
    if not isinstance(split, bool):
        raise InvalidType(sentence("split", split, "True or False"))
    if split and (chosen != "noise" or len(sides) < 2):
        raise InvalidValue(f"split=True needs allocation='noise' and both products; got {chosen!r} and {sides}.")
    if chosen == "noise" and profile.noise is None:
        raise InvalidValue(
            "allocation='noise' needs a profile in which noise was measured; make it with "
            "lograd.profile(..., noise=2), or lograd profile --noise 2."
        )
    return chosen


def _unpruned(
    layers: Mapping[str, LayerProfile], sparsity: float | None, sides: tuple[str, ...], everywhere: bool
) -> dict[str, str]:
    """Return the layers that are not pruned, with reasons: those in which zeros save no time."""
    if sparsity is None:
        return dict.fromkeys(layers, "no sparsity was asked for")
    left_out = {} if everywhere else without_gain(layers, sides)
    if len(left_out) < len(layers):
        return left_out
    name, reason = next(iter(left_out.items()))
    warnings.warn(
        f"zeros save no time in any layer of this plan (such as {name!r}, {reason.removeprefix(NO_TIME + ': ')}), so "
        "all are pruned as asked: it shows what zeros do to training; everywhere=True asks for that and is silent.",
        LogradWarning,
        stacklevel=4,
    )
    return {}


def _allocated(
    profile: Measurements,
    sparsity: float,
    allocation: Allocation,
    split: bool,
    found: Mapping[str, Statistics],
    work: Mapping[str, list[int]],
) -> dict[tuple[str, str], float]:
    """Return the sparsity of each layer in each product.

    The budget counts operations.  A layer without any takes no part in it and gets the sparsity of the budget itself.
    """
    shares = dict.fromkeys(((name, side) for name in found for side in BACKWARD), sparsity)
    names = [name for name in found if any(work[name])]
    if allocation == "uniform" or not names:
        return shares
    laws, most = [found[name].law for name in names], max(MOST, sparsity)
    by_side = np.array([work[name] for name in names], dtype=np.float64).T
    if allocation == "noise":
        noise = profile.noise
        assert noise is not None
        for name in names:
            if name not in noise.layers:
                raise InvalidValue(f"noise was not measured for layer {name!r}; keep it, or profile it again.")
        parts = theory.allocate_by_noise(
            laws, (by_side[0], by_side[1]), sparsity, noise.among(names), split=split,
            max_sparsity=most,
        )  # fmt: skip
        # Without split one pruned copy serves both products.  A product without work gets 0, hence the maximum.
        both = np.maximum(*parts)
        input, weight = parts if split else (both, both)
    else:
        input = weight = theory.allocate(laws, by_side.sum(axis=0), sparsity, allocation, max_sparsity=most)
    for side, values, counts in zip(BACKWARD, (input, weight), by_side, strict=True):
        # Four digits are easy to review in a plan file, and the budget is met to as many digits.
        shares |= {
            (name, side): min(max(round(float(value), 4), 0.0001), 0.9999)
            for name, value, count in zip(names, values, counts, strict=True)
            if count or not split
        }
    return shares


def _format(data: Empirical, bits: Bits, law: PruningLaw) -> FloatFormat | None:
    """Return the best format for the histogram at its scale, or for a fitted lognormal law, as in the paper."""
    if isinstance(bits, str):
        return recommended_format(data)
    fitted = try_binned(LogNormal, data).law if law == "lognormal" else None
    return theory.best_format(data, bits, scale="max") if fitted is None else theory.best_format(fitted, bits)


# -- a goal --


@final
@dataclass(frozen=True)
class GoalProblem:
    """The choice that a goal has: layers with several methods, and those without.

    Args:
        names: the layers with a choice.
        problem: their options; the first of each menu is "dense".
        kept: layers that stay dense whatever the goal is, and why.
        dense: seconds of the plain step.
    """

    names: tuple[str, ...]
    problem: Problem
    kept: Mapping[str, str]
    dense: float

    def methods(self, choice: Selection) -> dict[str, str]:
        """Return the chosen method of each layer that is not left dense."""
        chosen = zip(self.names, self.problem.menus, choice.places, strict=True)
        return {name: menu[place].name for name, menu, place in chosen if menu[place].name != DENSE}

    def reasons(self, choice: Selection) -> dict[str, str]:
        """Return why layers stay dense, in words: for each without a choice, and each that was better left alone."""
        found = dict(self.kept)
        seconds, noise = self.problem.exchanges(choice.places)
        for layer, (name, menu) in enumerate(zip(self.names, self.problem.menus, strict=True)):
            others = [place for place, option in enumerate(menu) if option.name != DENSE]
            if menu[choice.places[layer]].name != DENSE:
                continue
            if not others:
                found[name] = f"nothing is faster than dense here ({_milliseconds(menu[0].seconds)})"
                continue
            place = min(others, key=lambda place: noise[layer, place] / -seconds[layer, place])
            found[name] = (
                f"{menu[place].name} would save {_milliseconds(-seconds[layer, place])} and add "
                f"{noise[layer, place]:.2g} of the minibatch's variance"
            )
        return found


def plan_by_goal(
    profile: Measurements,
    *,
    noise: float | None = None,
    objective: str | None = None,
    keep: str | Iterable[str] = (),
    methods: str | Iterable[str] | None = None,
) -> Plan:
    """Return the fastest plan within a budget of noise, or the one with the most progress per second.

    A plan that leaves all layers alone says why: nothing is faster, or the noise is not worth it.  The arguments are
    explained at `Profile.plan`.
    """
    _check_goal(noise, objective)
    task = goal_problem(profile, keep, methods)
    choice = choose(task.problem, noise=noise, progress=noise is None)
    layers, chosen = _supported(profile), task.methods(choice)
    statistics = {name: one for name, layer in layers.items() if (one := statistics_of(layer)) is not None}
    plans = {name: _planned(chosen[name], layers[name], statistics.get(name)) for name in layers if name in chosen}
    reasons = task.reasons(choice)
    growth = _growth(task, choice)
    _warn_of(growth)
    seconds = choice.seconds if plans else task.dense
    expected = Expected(
        six_digits(choice.noise),
        six_digits(task.problem.unit),
        penalty=six_digits(choice.penalty),
        seconds=six_digits(seconds),
        dense_seconds=six_digits(task.dense),
    )
    return Plan(
        plans,
        {name: reasons[name] for name in layers if name in reasons},
        evidence=Evidence(_work(layers), growth=growth, expected=expected, statistics=statistics),
    )


def _check_goal(noise: float | None, objective: str | None) -> None:
    if noise is not None and objective is not None:
        raise InvalidValue("a plan has one goal, noise= or objective='progress'; got both.")
    if noise is not None and (
        isinstance(noise, bool) or not isinstance(noise, float | int) or not 0 < noise < float("inf")
    ):
        raise InvalidValue(sentence("noise", noise, "a positive number, such as 0.2"))
    if objective not in (None, PROGRESS):
        raise InvalidValue(sentence("objective", objective, repr(PROGRESS)) + nearest_name(str(objective), [PROGRESS]))


def goal_problem(
    profile: Measurements, keep: str | Iterable[str] = (), methods: str | Iterable[str] | None = None
) -> GoalProblem:
    """Return the problem of a profile's linear layers and convolutions; refuse a profile that lacks a measurement."""
    menus, noise, minibatch = profile.menus, profile.noise, profile.minibatch
    if menus is None or noise is None or noise.energies is None or minibatch is None:
        lacking = {
            "times": menus is None,
            "noise": noise is None or noise.energies is None,
            "the minibatch's variance": minibatch is None,
        }
        missing = " and ".join(name for name, missed in lacking.items() if missed)
        raise InvalidValue(f"a plan for noise or progress {NEEDED}; this one lacks {missing}.")
    if not minibatch.unit > 0:
        raise InvalidValue("the gradient was the same in all batches of the profile, so noise has no unit.")
    layers = _supported(profile)
    kept = _kept(profile, layers, keep)
    patterns = _method_patterns(methods, [name for name in menus.methods if name != DENSE])
    kept |= {name: "it was not timed" for name in layers if name not in menus.layers and name not in kept}
    for name in menus.layers:
        if name not in noise.layers:
            kept.setdefault(name, "it was not measured how far its noise travels")
    names = tuple(name for name in menus.layers if name not in kept)
    if not names:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in list(kept.items())[:3])
        raise InvalidValue(f"a plan needs a layer with a choice of methods; all are left alone ({reasons}).")
    fixed = sum(menu[DENSE].seconds for name, menu in menus.layers.items() if name in kept)
    options = [
        _worth([option_of(one, layers[name]) for one in menus.layers[name].values()], patterns) for name in names
    ]
    energies = noise.energies.among(noise.places(names))
    return GoalProblem(names, Problem(options, energies, minibatch.unit, menus.rest + fixed), kept, menus.step)


def _method_patterns(given: str | Iterable[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of the methods that a plan may use; refuse one that no timed method matches."""
    if given is None:
        return ("*",)
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not patterns or not all(isinstance(one, str) for one in patterns):
        raise InvalidType(sentence("methods", given, "a name such as 'int8-full', or a list of them"))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InvalidValue(
                sentence("methods", pattern, f"timed in the profile: {', '.join(known)}") + nearest_name(pattern, known)
            )
    return patterns


def _worth(options: Sequence[Option], patterns: Sequence[str]) -> list[Option]:
    """Return "dense" first, and the options that are allowed and faster by more than chance."""
    dense = next(one for one in options if one.name == DENSE)
    allowed = [one for one in options if any(fnmatchcase(one.name, pattern) for pattern in patterns)]
    return [dense, *(one for one in allowed if one.seconds < dense.seconds * (1 - MARGIN))]


def option_of(candidate: Candidate, layer: LayerProfile | None) -> Option:
    """Return a timed method of a layer as an option, with the rises that the layer's law gives it."""
    noises = (candidate.input_noise, candidate.weight_noise)
    plan = method(candidate.method).plan
    rises = [
        rise_of(plan.site(product, "gradient"), layer, noise) for product, noise in zip(BACKWARD, noises, strict=True)
    ]
    return Option(candidate.method, candidate.seconds, *noises, candidate.penalty, *rises)


def _planned(name: str, layer: LayerProfile, statistics: Statistics | None) -> LayerPlan:
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


def _growth(task: GoalProblem, choice: Selection) -> Forecast | None:
    """Return the growth of the gradient that noise multiplies most; None where no layer hands noise on."""
    noise = [menu[place].input_noise for menu, place in zip(task.problem.menus, choice.places, strict=True)]
    handing_on = sum(one > 0 for one in noise)
    if not handing_on:
        return None
    growth = 1 + task.problem.levels(choice.places)
    worst = int(np.argmax(growth))
    return Forecast(task.names[worst], six_digits(max(float(growth[worst]), 1.0)), handing_on)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 0.01 else f"{1e3 * seconds:.1f} ms"
