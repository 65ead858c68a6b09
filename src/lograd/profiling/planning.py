"""From a profile to a plan: which format, which sparsity, for which layer and product, by theory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, final, get_args

import numpy as np

from .. import theory
from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..formats import FloatFormat
from ..laws import Empirical, LogNormal
from ..laws.binned import try_binned
from ..plan import PRODUCTS, LayerPlan, Plan, check_bits, check_products, predicted
from ..treatments import Prune, Quantize, Sentence, Statistics
from ..treatments.fields import checked_sparsity
from ..treatments.prune import PruningLaw
from .noise import Contributions
from .records import LayerProfile

Allocation = Literal["uniform", "cosine", "noise", "floors"]
MOST = 0.995
"""The most zeros that an allocation gives to one layer, unless more are asked for of all."""


@final
@dataclass(frozen=True)
class Budget:
    """A sparsity and how it is split over layers; see `Profile.plan`."""

    sparsity: float | None
    allocation: Allocation
    floors: Mapping[str, float] | None
    split: bool
    noise: Contributions | None

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
        assert self.noise is not None
        for name in names:
            if name not in self.noise.layers:
                raise InvalidValue(f"noise was not measured for layer {name!r}; keep it, or profile it again.")
        return self.noise.among(names)


def build(
    layers: Mapping[str, LayerProfile],
    bits: int | None,
    budget: Budget,
    law: PruningLaw,
    keep: str | Iterable[str],
    scale: str,
    rounding: Literal["stochastic", "nearest"],
    products: str | Iterable[str],
) -> Plan:
    """`Profile.plan`, on the layers of a profile; see there.  Modules that are no product are left out."""
    if bits is None and budget.sparsity is None:
        raise InvalidValue("a plan needs bits=, sparsity= or both; got neither.")
    if bits is not None:
        check_bits(bits)
    _check_words(law, scale, rounding)
    sides = check_products(products)
    if budget.split and len(sides) < 2:
        raise InvalidValue(f"split=True needs both products, and products is {sides[0]!r} alone.")
    layers = {name: layer for name, layer in layers.items() if layer.flops_weight is not None}
    if not layers:
        raise InvalidValue("a plan needs a profile of a linear layer or convolution; this one has none.")
    kept = _kept(layers, _patterns(keep))
    if budget.sparsity is not None:
        checked_sparsity(budget.sparsity)
    statistics = {name: found for name, layer in layers.items() if (found := _statistics(layer)) is not None}
    treated = [name for name in layers if name not in kept]
    if not treated:
        raise InvalidValue(
            f"a plan must treat at least one layer; all {len(layers)} are kept ({_reasons(kept)}); keep fewer: keep=() "
            "or --keep none."
        )
    work = {name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in layers.items()}
    parts: dict[tuple[str, str], list[Prune | Quantize]] = {(name, side): [] for name in treated for side in sides}
    if budget.sparsity is not None:
        counted = {
            name: [count * (side in sides) for side, count in zip(PRODUCTS, work[name], strict=True)]
            for name in treated
        }
        for place, share in _allocate(budget, {name: statistics[name] for name in treated}, counted).items():
            if place in parts:
                parts[place].append(Prune(share, law))
    if bits is not None:
        for (name, _), sentence_so_far in parts.items():
            sentence_so_far.append(Quantize(_format(statistics[name].law, bits, law, scale), scale, rounding))
    plans = {}
    for name in treated:
        sentences: dict[str, Sentence] = {side: tuple(parts.get((name, side), ())) for side in PRODUCTS}
        plans[name] = LayerPlan(
            **sentences,
            elements=layers[name].elements,
            masked=statistics[name].masked,
            predicted_input=predicted(sentences["input"], statistics[name]),
            predicted_weight=predicted(sentences["weight"], statistics[name]),
        )
    return Plan(plans, kept, work=work, statistics=statistics)


def _check_words(law: PruningLaw, scale: str, rounding: Literal["stochastic", "nearest"]) -> None:
    """Refuse unknown words also where nothing is pruned or rounded, and they would go unread."""
    Prune(0.5, law)
    Quantize(FloatFormat(4, 1), scale, rounding)


def _statistics(layer: LayerProfile) -> Statistics | None:
    return None if layer.law is None else Statistics(layer.law, round(layer.masked or 0.0, 6))


def _kept(layers: Mapping[str, LayerProfile], keep: tuple[str, ...]) -> dict[str, str]:
    """Layers that are left alone, in their order, and why."""
    reasons = {name: "its gradient was zero in the profile" for name, layer in layers.items() if layer.law is None}
    ends = {"first": list(layers)[:1], "last": list(layers)[-1:]}
    for pattern in keep:
        found = ends[pattern] if pattern in ends else [name for name in layers if fnmatchcase(name, pattern)]
        if not found:
            raise InvalidValue(
                sentence("keep", pattern, "'first', 'last' or a pattern of layer names, such as 'layer1.*'")
                + nearest_name(str(pattern), [*ends, *layers])
            )
        for name in found:
            reasons.setdefault(name, f"the {pattern} layer" if pattern in ends else f"it matches {pattern!r}")
    return {name: reasons[name] for name in layers if name in reasons}


def _patterns(keep: str | Iterable[str]) -> tuple[str, ...]:
    patterns = (keep,) if isinstance(keep, str) else tuple(keep) if isinstance(keep, Iterable) else (keep,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidType(sentence("keep", keep, "'first', 'last', a pattern of layer names, or a list of these"))
    return patterns


def _reasons(kept: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {reason}" for name, reason in list(kept.items())[:3])


def _floors(names: list[str], floors: Mapping[str, float]) -> list[float | None]:
    """The floor of each layer, None where no pattern matches; the first that does counts."""
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
    """The sparsity of each layer in each product; the budget counts operations, so a layer without any has its own."""
    assert budget.sparsity is not None
    shares = dict.fromkeys(((name, side) for name in found for side in PRODUCTS), budget.sparsity)
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
        # One copy serves both products, unless they are split: then a product without work takes any sparsity.
        both = np.maximum(*parts)
        input, weight = parts if budget.split else (both, both)
    else:
        floors = _floors(names, budget.floors) if budget.floors else None
        input = weight = theory.allocate(
            laws, by_side.sum(axis=0), budget.sparsity, budget.allocation, floors=floors, max_sparsity=most
        )
    for side, values, counts in zip(PRODUCTS, (input, weight), by_side, strict=True):
        # Four digits can be read and reviewed, and keep the budget to as many.
        shares |= {
            (name, side): min(max(round(float(value), 4), 0.0001), 0.9999)
            for name, value, count in zip(names, values, counts, strict=True)
            if count or not budget.split
        }
    return shares


def _format(data: Empirical, bits: int, law: PruningLaw, scale: str) -> FloatFormat:
    """For the histogram, at the scale at which it will be rounded; for a fitted lognormal law as the paper does it."""
    fitted = try_binned(LogNormal, data).law if law == "lognormal" else None
    return theory.best_format(data, bits, scale=scale) if fitted is None else theory.best_format(fitted, bits)
