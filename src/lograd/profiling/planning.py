"""From a profile to a plan: which format, which sparsity, for which layer and product, by theory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

from .. import theory
from ..errors import InvalidValue, nearest_name, sentence
from ..formats import FloatFormat
from ..laws import Empirical, LogNormal
from ..laws.binned import try_binned
from ..plan import PRODUCTS, LayerPlan, Plan, check_products, predicted
from ..treatments import Prune, Quantize, Sentence, Statistics
from ..treatments.prune import PruningLaw
from .records import LayerProfile

Allocation = Literal["uniform", "cosine", "floors"]
MOST = 0.995
"""The most zeros that an allocation gives to one layer, unless more are asked for of all."""


def build(
    layers: Mapping[str, LayerProfile],
    bits: int | None,
    sparsity: float | None,
    allocation: Allocation,
    floors: Mapping[str, float] | None,
    law: PruningLaw,
    keep: str | Iterable[str],
    scale: str,
    rounding: Literal["stochastic", "nearest"],
    products: str | Iterable[str],
) -> Plan:
    """`Profile.plan`, on the layers of a profile; see there.  Modules that are no product are left out."""
    if bits is None and sparsity is None:
        raise InvalidValue("a plan needs bits=, sparsity= or both; got neither.")
    if allocation not in get_args(Allocation):
        raise InvalidValue(
            sentence("allocation", allocation, "'uniform', 'cosine' or 'floors'")
            + nearest_name(str(allocation), get_args(Allocation))
        )
    if (allocation == "floors") != bool(floors):
        raise InvalidValue(
            "allocation='floors' and floors={'PATTERN': COSINE} go together; got "
            + ("no floors." if allocation == "floors" else f"floors with allocation={allocation!r}.")
        )
    sides = check_products(products)
    layers = {name: layer for name, layer in layers.items() if layer.flops_weight is not None}
    if not layers:
        raise InvalidValue("a plan needs a profile of a linear layer or convolution; this one has none.")
    kept = _kept(layers, (keep,) if isinstance(keep, str) else tuple(keep))
    statistics = {name: found for name, layer in layers.items() if (found := _statistics(layer)) is not None}
    treated = [name for name in layers if name not in kept]
    if not treated:
        raise InvalidValue(
            f"a plan must treat at least one layer; all {len(layers)} are kept ({_reasons(kept)}); keep fewer: keep=() "
            "or --keep none."
        )
    parts: dict[str, list[Prune | Quantize]] = {name: [] for name in treated}
    if sparsity is not None:
        counts = [layers[name].elements for name in treated]
        least = _floors(treated, floors) if floors else None
        shares = _allocate([statistics[name] for name in treated], counts, sparsity, allocation, least)
        for name, share in zip(treated, shares, strict=True):
            parts[name].append(Prune(share, law))
    if bits is not None:
        for name in treated:
            parts[name].append(Quantize(_format(statistics[name].law, bits, law, scale), scale, rounding))
    plans = {}
    for name in treated:
        treatments: Sentence = tuple(parts[name])
        sentences = {side: treatments if side in sides else () for side in PRODUCTS}
        plans[name] = LayerPlan(
            **sentences,
            elements=layers[name].elements,
            masked=statistics[name].masked,
            predicted_input=predicted(sentences["input"], statistics[name]),
            predicted_weight=predicted(sentences["weight"], statistics[name]),
        )
    return Plan(plans, kept, statistics=statistics)


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
    found: list[Statistics],
    counts: list[int],
    sparsity: float,
    allocation: Allocation,
    floors: list[float | None] | None,
) -> list[float]:
    if allocation == "uniform":
        return [sparsity] * len(found)
    theory.pruning.check_sparsity(sparsity)
    laws, most = [one.law for one in found], max(MOST, sparsity)
    shares = theory.allocate(laws, counts, sparsity, allocation, floors=floors, max_sparsity=most)
    # Four digits can be read and reviewed, and keep the budget to as many.
    return [min(max(round(float(share), 4), 0.0001), 0.9999) for share in shares]


def _format(data: Empirical, bits: int, law: PruningLaw, scale: str) -> FloatFormat:
    """For the histogram, at the scale at which it will be rounded; for a fitted lognormal law as the paper does it."""
    fitted = try_binned(LogNormal, data).law if law == "lognormal" else None
    return theory.best_format(data, bits, scale=scale) if fitted is None else theory.best_format(fitted, bits)
