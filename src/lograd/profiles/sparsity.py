"""What if a gradient had more zeros: cosine and noise of each layer over sparsity, and how far it may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import theory
from ..laws.law import Values
from ..treatments.verdicts import FAIR_COSINE, GOOD_COSINE, noise_of
from .gaining import why_no_gain
from .noise import Contributions
from .records import LayerProfile

SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
USUAL = 0.85
"""The one at which layers are judged."""


@dataclass(frozen=True)
class Zeros:
    """Pruning of one layer by theory, for its law at the last observed step."""

    name: str
    cosines: Values
    """At each of `SPARSITIES`; zeros that are there count, so a cosine may be 1."""
    good: float
    """The sparsity up to which the cosine is good."""
    fair: float
    """The sparsity up to which it is fair, or better."""
    arrives: float | None
    """|error of dW|^2 / |dW|^2, summed over all layers, for noise as strong as this gradient; None if not measured."""
    no_gain: str | None
    """Why zeros save no time; None where they may."""

    def cosine(self, sparsity: float) -> float:
        """At one of `SPARSITIES`."""
        return float(self.cosines[SPARSITIES.index(sparsity)])

    def noise(self, sparsity: float) -> float | None:
        """The noise that arrives in the weight gradients if this layer alone is pruned; None if not measured."""
        return None if self.arrives is None else noise_of(self.cosine(sparsity)) * self.arrives


def zeros_of(layer: LayerProfile, noise: Contributions | None = None) -> Zeros | None:
    """What zeros do to one layer; None where it is no product or its gradient was zero."""
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
    return Zeros(layer.name, cosines, good, fair, arrives, why_no_gain(layer))


def zeros_of_all(layers: Mapping[str, LayerProfile], noise: Contributions | None) -> list[Zeros]:
    """One for each product with a law, in order."""
    return [found for layer in layers.values() if (found := zeros_of(layer, noise)) is not None]


@dataclass(frozen=True)
class Together:
    """All layers that gain from zeros, pruned alike in both products, as far as noise was measured."""

    noise: list[float]
    """The noise in the weight gradients at each of `SPARSITIES`, |error of dW|^2 / |dW|^2, mean over the layers."""
    growth: list[float]
    """By how much it multiplies the energy of the gradient that grows most."""


def together(found: Sequence[Zeros], noise: Contributions | None) -> Together | None:
    """None where noise was not measured, or no layer gains."""
    gaining = {one.name: one for one in found if one.no_gain is None}
    if noise is None or not set(gaining) & set(noise.layers):
        return None
    sums, growths = [], []
    for sparsity in SPARSITIES:
        ratios = [noise_of(gaining[name].cosine(sparsity)) if name in gaining else 0.0 for name in noise.layers]
        sums.append(noise.factors.total(ratios, ratios) / len(noise.layers))
        growths.append(float(noise.factors.growth(ratios).max()))
    return Together(sums, growths)
