"""Makes a plan from a profile: the format and the sparsity of each layer and product, chosen by theory."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, final, get_args

import numpy as np

from .. import theory
from ..errors import InvalidType, InvalidValue, LogradWarning, nearest_name, sentence
from ..formats import FloatFormat
from ..laws import Empirical, LogNormal
from ..laws.binned import try_binned
from ..plan import Evidence, LayerPlan, Plan, check_bits, predicted
from ..treatments import BACKWARD, ProductPlan, Prune, Quantize, Sentence, Statistics
from ..treatments.products import check_backward_products
from ..treatments.prune import PruningLaw
from ..treatments.treatment import checked_sparsity
from .contributions import Contributions, forecast
from .noisy import statistics_of
from .nonfinite import NonFiniteLoss, nonfinite_layers, refuse_nonfinite
from .precision import NO_FORMAT, recommended_format
from .records import LayerProfile
from .sparsity import NO_TIME, without_gain

Allocation = Literal["uniform", "cosine", "noise", "floors"]
"""How a sparsity is split over layers.  "uniform" gives it to every layer.  The others reach it over all pruned layers
together, each weighted with its operations: "cosine" makes the smallest cosine between a gradient and its pruned copy
as large as possible; "noise" makes the noise that arrives in the weight gradients as small as possible, by factors that
`lograd.profile(noise=...)` measures; "floors" is the heterogeneous rule of [chmiel2021], in which layers with a floor
are pruned until their cosine falls to it, and the others make up for the rest."""
Rounding = Literal["stochastic", "nearest"]
Bits = int | Literal["recommended"]
RECOMMENDED = "recommended"
ZERO_GRADIENT = "its gradient was zero in the profile"
WITHOUT_GOAL = {
    "bits": None, "sparsity": None, "allocation": None, "floors": None, "law": "empirical", "scale": "max",
    "rounding": "stochastic", "products": BACKWARD, "split": False, "everywhere": False,
}  # fmt: skip
"""Arguments of a plan without a goal, with their defaults."""
MOST = 0.995
"""The highest sparsity that an allocation gives to one layer, unless the whole budget is higher."""


@final
@dataclass(frozen=True)
class Budget:
    """A sparsity, and how it is split over layers; the fields are arguments of `Profile.plan`."""

    sparsity: float | None
    allocation: Allocation
    floors: Mapping[str, float] | None
    split: bool
    noise: Contributions | None
    everywhere: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.split, bool):
            raise InvalidType(sentence("split", self.split, "True or False"))
        if self.floors is not None and not isinstance(self.floors, Mapping):
            raise InvalidType(sentence("floors", self.floors, "cosines by pattern, such as {'layer3.*': 0.98}"))
        if self.allocation not in get_args(Allocation):
            raise InvalidValue(
                sentence("allocation", self.allocation, "'uniform', 'cosine', 'noise' or 'floors'")
                + nearest_name(str(self.allocation), get_args(Allocation))
            )
        if (self.allocation == "floors") != bool(self.floors):
            raise InvalidValue(
                "allocation='floors' and floors={'PATTERN': COSINE} go together; got "
                + ("no floors." if self.allocation == "floors" else f"floors with allocation={self.allocation!r}.")
            )
        if self.split and self.allocation != "noise":
            raise InvalidValue(f"split=True needs allocation='noise'; got {self.allocation!r}.")
        if self.allocation == "noise" and self.noise is None:
            raise InvalidValue(
                "allocation='noise' needs a profile in which noise was measured; make it with "
                "lograd.profile(..., noise=2), or lograd profile --noise 2."
            )

    def factors(self, names: list[str]) -> theory.Propagation:
        """Return the factors by which noise travels between the named layers; refuse a layer without."""
        assert self.noise is not None
        for name in names:
            if name not in self.noise.layers:
                raise InvalidValue(f"noise was not measured for layer {name!r}; keep it, or profile it again.")
        return self.noise.among(names)


def build(
    layers: Mapping[str, LayerProfile],
    bits: Bits | None,
    budget: Budget,
    law: PruningLaw,
    keep: str | Iterable[str],
    scale: str,
    rounding: Rounding,
    products: str | Iterable[str],
    loss: NonFiniteLoss | None = None,
) -> Plan:
    """Return the plan for the layers of a profile; the arguments are explained at `Profile.plan`.

    Observed modules that are neither linear layers nor convolutions are left out.
    """
    _check_bits(bits, budget)
    _check_words(law, scale, rounding)
    sides = check_backward_products(products)
    if budget.split and len(sides) < 2:
        raise InvalidValue(f"split=True needs both products, and products is {sides[0]!r} alone.")
    layers = {name: layer for name, layer in layers.items() if layer.flops_weight is not None}
    if not layers:
        raise InvalidValue("a plan needs a profile of a linear layer or convolution; this one has none.")
    kept = kept_layers(layers, keep_patterns(keep))
    if budget.sparsity is not None:
        checked_sparsity(budget.sparsity)
    statistics = {name: found for name, layer in layers.items() if (found := statistics_of(layer)) is not None}
    work = {name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in layers.items()}
    treated = {name: layer for name, layer in layers.items() if name not in kept}
    _check_any(treated, kept, layers)
    refuse_nonfinite(layers, list(treated), loss)
    unpruned = _without_gain(treated, budget, sides)
    pruned = {name: statistics[name] for name in treated if name not in unpruned}
    shares = _allocate(budget, pruned, {name: _counted(work[name], sides) for name in pruned})
    plans = {}
    for name in treated:
        found = statistics[name]
        format = None if bits is None else _format(found.law, bits, law, scale, rounding)
        sentences: dict[str, Sentence] = dict.fromkeys(BACKWARD, ())
        for side in sides:
            prune = (Prune(shares[name, side], law),) if (name, side) in shares else ()
            sentences[side] = prune if format is None else (*prune, Quantize(format, scale, rounding))
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
    growth = forecast(plans, budget.noise)
    if growth is not None and growth.explodes:
        warnings.warn(growth.warning(), LogradWarning, stacklevel=3)
    rounded_only = {} if budget.sparsity is None else {name: why for name, why in unpruned.items() if name in plans}
    return Plan(plans, kept, evidence=Evidence(work, None, growth, rounded_only, statistics=statistics))


def has_goal(goals: Sequence[object], choices: Sequence[object], others: Sequence[object]) -> bool:
    """Return True if arguments of `Profile.plan` set a goal; refuse a mixture of both kinds of plans.

    Args:
        goals: noise and objective.
        choices: methods and backends.
        others: the arguments of a plan without a goal, in the order of `WITHOUT_GOAL`.
    """
    if all(one is None for one in goals):
        if any(one is not None for one in choices):
            raise InvalidValue("methods= and backends= say what to choose from for noise= or objective=.")
        return False
    given = [
        f"{name}="
        for (name, usual), value in zip(WITHOUT_GOAL.items(), others, strict=True)
        if value is not usual and value != usual
    ]
    if given:
        raise InvalidValue(
            f"noise= and objective= choose bits and sparsities themselves, so {' and '.join(given)} cannot be "
            "given with them; methods= and backends= say what to choose from."
        )
    return True


def _check_bits(bits: Bits | None, budget: Budget) -> None:
    if bits is None and budget.sparsity is None:
        raise InvalidValue("a plan needs bits=, sparsity= or both; got neither.")
    if isinstance(bits, str) and bits != RECOMMENDED:
        raise (InvalidType if bits.isdigit() else InvalidValue)(
            sentence("bits", bits, "a whole number from 2 to 8, or 'recommended'") + nearest_name(bits, (RECOMMENDED,))
        )
    if bits is not None and bits != RECOMMENDED:
        check_bits(bits)


def _check_any(treated: Mapping[str, object], kept: Mapping[str, str], layers: Mapping[str, LayerProfile]) -> None:
    """Refuse a plan without layers, with advice that follows from the reasons why they are kept."""
    if treated:
        return
    advice = "keep fewer: keep=() or --keep none"
    if all(reason == ZERO_GRADIENT for reason in kept.values()):
        advice = "profile with a loss that depends on them, on batches where it does not vanish"
    raise InvalidValue(
        f"a plan must treat at least one layer; all {len(layers)} are kept ({_reasons(kept)}); {advice}."
    )


def _counted(work: tuple[int, int], sides: tuple[str, ...]) -> list[int]:
    """Return the operations of both products, with 0 for one that is not treated."""
    return [count * (side in sides) for side, count in zip(BACKWARD, work, strict=True)]


def _without_gain(layers: Mapping[str, LayerProfile], budget: Budget, sides: tuple[str, ...]) -> dict[str, str]:
    """Return the layers that are not pruned, with reasons: those in which zeros save no time."""
    if budget.sparsity is None:
        return dict.fromkeys(layers, "no sparsity was asked for")
    theory.pruning.check_sparsity(budget.sparsity)
    left_out = {} if budget.everywhere else without_gain(layers, sides)
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


def _check_words(law: PruningLaw, scale: str, rounding: Literal["stochastic", "nearest"]) -> None:
    """Refuse unknown words, also where nothing is pruned or rounded and nobody would read them."""
    Prune(0.5, law)
    Quantize(FloatFormat(4, 1), scale, rounding)


def kept_layers(layers: Mapping[str, LayerProfile], keep: tuple[str, ...]) -> dict[str, str]:
    """Return the layers that are left alone, in their order, with reasons."""
    broken = {one.layer for one in nonfinite_layers(layers)}
    zero = [name for name, layer in layers.items() if layer.law is None and name not in broken]
    reasons = matching_layers(list(layers), keep) | dict.fromkeys(zero, ZERO_GRADIENT)
    return {name: reasons[name] for name in layers if name in reasons}


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


def _reasons(kept: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {reason}" for name, reason in list(kept.items())[:3])


def _floors(names: list[str], floors: Mapping[str, float]) -> list[float | None]:
    """Return the floor of each layer by the first pattern that matches it; None where none does."""
    for pattern in floors:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidValue(
                sentence("a pattern of floors", pattern, "one that matches a treated layer")
                + nearest_name(str(pattern), names)
            )
    return [next((floor for pattern, floor in floors.items() if fnmatchcase(name, pattern)), None) for name in names]


def _allocate(
    budget: Budget, found: Mapping[str, Statistics], work: Mapping[str, list[int]]
) -> dict[tuple[str, str], float]:
    """Return the sparsity of each layer in each product.

    The budget counts operations.  A layer without any takes no part in it and gets the sparsity of the budget itself.
    """
    if budget.sparsity is None:
        return {}
    shares = dict.fromkeys(((name, side) for name in found for side in BACKWARD), budget.sparsity)
    names = [name for name in found if any(work[name])]
    if budget.allocation == "uniform" or not names:
        return shares
    laws, most = [found[name].law for name in names], max(MOST, budget.sparsity)
    by_side = np.array([work[name] for name in names], dtype=np.float64).T
    if budget.allocation == "noise":
        factors = budget.factors(names)
        parts = theory.allocate_by_noise(
            laws, (by_side[0], by_side[1]), budget.sparsity, factors, split=budget.split, max_sparsity=most
        )
        # Without split one pruned copy serves both products.  A product without work gets 0, hence the maximum.
        both = np.maximum(*parts)
        input, weight = parts if budget.split else (both, both)
    else:
        floors = _floors(names, budget.floors) if budget.floors else None
        input = weight = theory.allocate(
            laws, by_side.sum(axis=0), budget.sparsity, budget.allocation, floors=floors, max_sparsity=most
        )
    for side, values, counts in zip(BACKWARD, (input, weight), by_side, strict=True):
        # Four digits are easy to review in a plan file, and the budget is met to as many digits.
        shares |= {
            (name, side): min(max(round(float(value), 4), 0.0001), 0.9999)
            for name, value, count in zip(names, values, counts, strict=True)
            if count or not budget.split
        }
    return shares


def _format(data: Empirical, bits: Bits, law: PruningLaw, scale: str, rounding: Rounding) -> FloatFormat | None:
    """Return the best format for the histogram at its scale, or for a fitted lognormal law, as in the paper."""
    if isinstance(bits, str):
        return recommended_format(data, scale, rounding)
    fitted = try_binned(LogNormal, data).law if law == "lognormal" else None
    return theory.best_format(data, bits, scale=scale) if fitted is None else theory.best_format(fitted, bits)
