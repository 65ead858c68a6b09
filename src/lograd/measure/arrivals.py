"""The noise that `theory.Propagation` expects in the weight gradients, beside the noise that arrives.

Propagation measures once, by pruning one layer at a time, how far noise travels; multiplied with the noise of each
layer's own quantizers it predicts what any plan adds.  It assumes that the gradient's elements share the noise as those
of a pruned gradient do, and a plain forward, so a comparison shows where this does not hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from ..errors import LogradWarning
from .contributions import Contributions as Factors
from .loss import LossFunction
from .measured import Values
from .profiler import profile
from .values import SiteVariance

PROBES = 2
"""Backward passes for each layer in which it is pruned."""


class Arrivals(NamedTuple):
    """The predicted noise, relative to |dW|^2 and summed over the weights of layers; NaN where nothing is known."""

    by_layer: Values
    together: float


def factors_of(model: nn.Module, batch: Any, loss_fn: LossFunction | None) -> Factors | None:
    """Return how far noise travels in a plain model; None where that cannot be measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogradWarning)  # the reason why noise cannot be measured; it is not needed here
        found = profile(model, [batch], loss_fn, steps=1, weight_gradients=False, noise=PROBES, progress=False)
    return found.noise


def predicted(layers: Sequence[str], sites: Sequence[SiteVariance], factors: Factors | None) -> Arrivals:
    """Return what arrives if these layers add the noise of these sites.

    Args:
        layers: those with a row in the matrix of contributions.
        sites: with the noise of their quantizers.
        factors: how far noise travels.
    """
    unknown = Arrivals(np.full(len(layers), np.nan), np.nan)
    ratios = {product: _ratios(sites, product) for product in ("dX", "dW")}
    if factors is None or not {one.layer for one in sites} <= set(factors.layers):
        return unknown
    noise_input, noise_weight = ([ratios[name].get(layer, 0.0) for layer in factors.layers] for name in ("dX", "dW"))
    own, passed = (
        dict(zip(factors.layers, column, strict=True)) for column in (factors.factors.own, factors.factors.passed)
    )
    treated = {one.layer for one in sites}
    by_layer = [
        ratios["dW"].get(layer, 0.0) * own[layer] + ratios["dX"].get(layer, 0.0) * passed[layer]
        if layer in treated
        else np.nan
        for layer in layers
    ]
    together = factors.factors.total(noise_input, noise_weight) if treated == set(layers) else np.nan
    return Arrivals(np.array(by_layer), together)


def _ratios(sites: Sequence[SiteVariance], product: str) -> Mapping[str, float]:
    """Return the noise-to-signal ratio of the gradient in a product, by layer."""
    return {one.layer: one.noise.mean / one.energy for one in sites if product in one.product and one.energy > 0}
