"""The effect of more zeros on each layer: time saved or not, and the cosine and noise of pruning over sparsity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import theory
from ..engine.backends import LEAST_WORK
from ..engine.backends.sparse import unserved
from ..laws.law import Values
from ..treatments import BACKWARD
from ..treatments.verdicts import FAIR_COSINE, GOOD_COSINE, noise_of
from .contributions import Contributions
from .records import LayerProfile

SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
"""The sparsities at which pruning is predicted."""
USUAL = 0.85
"""The sparsity at which layers are judged."""
NO_TIME = "zeros save no time here"


def why_no_gain(layer: LayerProfile, products: Iterable[str] = BACKWARD) -> str | None:
    """Return the reason why zeros in a layer's gradient save no time at the profile's batch size; None where they may.

    Only the layer is judged and not this machine: the plan may be carried out on another one.

    Args:
        products: the products in which the gradient is pruned.
    """
    reason = None if layer.weight_shape is None else unserved(layer.weight_shape, layer.groups, layer.transposed)
    if reason:
        return f"{NO_TIME}: {reason}"
    counts = dict(zip(BACKWARD, (layer.flops_input or 0, layer.flops_weight or 0), strict=True))
    work = max((counts[product] for product in products), default=0) // 2
    if not work:
        return f"{NO_TIME}: nothing is computed from its gradient in the pruned product"
    if work < LEAST_WORK:
        return f"{NO_TIME}: {work:,} multiply-adds a product; sparse products are tried from {LEAST_WORK:,} on"
    return None


def without_gain(layers: Mapping[str, LayerProfile], products: Iterable[str]) -> dict[str, str]:
    """Return the layers in which zeros save no time, each with the reason."""
    sides = tuple(products)
    return {name: reason for name, layer in layers.items() if (reason := why_no_gain(layer, sides)) is not None}


@dataclass(frozen=True)
class PruningOutlook:
    """The predicted effect of pruning one layer, from its law at the last observed step."""

    name: str
    cosines: Values
    """The cosine at each of `SPARSITIES`.  Existing zeros count, so a cosine may be 1."""
    good: float
    """The sparsity up to which the cosine is good."""
    fair: float
    """The sparsity up to which it is at least fair."""
    arrives: float | None
    """|error of dW|^2 / |dW|^2, summed over all layers, for noise as strong as this gradient; None if not measured."""
    no_gain: str | None
    """The reason why zeros save no time; None where they may."""

    def cosine(self, sparsity: float) -> float:
        """Return the cosine at one of `SPARSITIES`."""
        return float(self.cosines[SPARSITIES.index(sparsity)])

    def noise(self, sparsity: float) -> float | None:
        """Return the noise in the weight gradients if this layer alone is pruned; None if not measured."""
        return None if self.arrives is None else noise_of(self.cosine(sparsity)) * self.arrives


def pruning_outlook(layer: LayerProfile, noise: Contributions | None = None) -> PruningOutlook | None:
    """Predict the effect of pruning one layer; None for a module that is no layer, or a gradient of zeros only.

    Args:
        noise: how noise travels between layers, where that was measured.
    """
    law = layer.law
    if law is None or layer.flops_weight is None:
        return None
    thresholds = theory.thresholds_for([law] * len(SPARSITIES), SPARSITIES)
    cosines = np.array([1.0 if t == 0 else float(theory.cosine(law, t)) for t in thresholds])
    share = float(law.zero_share)
    limits = theory.sparsity(law, theory.threshold_for_cosine(law, np.array([GOOD_COSINE, FAIR_COSINE])))
    good, fair = (share + (1 - share) * float(limit) for limit in limits)
    arrives = None
    if noise is not None and layer.name in noise.layers:
        place = noise.layers.index(layer.name)
        arrives = float(noise.factors.own[place] + noise.factors.passed[place])
    return PruningOutlook(layer.name, cosines, good, fair, arrives, why_no_gain(layer))


def pruning_outlooks(layers: Mapping[str, LayerProfile], noise: Contributions | None) -> list[PruningOutlook]:
    """Predict the effect of pruning for every layer that has a law, in their order."""
    return [found for layer in layers.values() if (found := pruning_outlook(layer, noise)) is not None]


@dataclass(frozen=True)
class JointOutlook:
    """The predicted effect of pruning all layers that gain time, to the same sparsity and in both products."""

    noise: list[float]
    """The noise in the weight gradients at each of `SPARSITIES`, |error of dW|^2 / |dW|^2, mean over the layers."""
    growth: list[float]
    """The factor by which the energy of a gradient grows, in the layer where it grows most."""


def joint_outlook(found: Sequence[PruningOutlook], noise: Contributions | None) -> JointOutlook | None:
    """Predict the effect of pruning all layers that gain; None where noise was not measured, or no layer gains."""
    gaining = {one.name: one for one in found if one.no_gain is None}
    if noise is None or not set(gaining) & set(noise.layers):
        return None
    sums, growths = [], []
    for sparsity in SPARSITIES:
        ratios = [noise_of(gaining[name].cosine(sparsity)) if name in gaining else 0.0 for name in noise.layers]
        sums.append(noise.factors.total(ratios, ratios) / len(noise.layers))
        growths.append(float(noise.factors.growth(ratios).max()))
    return JointOutlook(sums, growths)
