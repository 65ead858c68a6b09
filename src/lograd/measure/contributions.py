"""Factors by which noise travels between layers, and the growth of gradients that they predict for a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ..plan import Forecast, LayerPlan
from ..theory import Propagation
from ..treatments.verdicts import noise_of
from .noisy import MOST_NOISE


@final
@dataclass(frozen=True)
class Contributions:
    """Measured factors by which noise travels between layers, in the order of `layers`.

    Args:
        layers: their names.
        factors: relative to the energies of the weight gradients without noise, as `Propagation` says.
        energies: the same transfer with `own` and `passed` as energies: |error of the gradient|^2 for a noise-to-signal
            ratio of one in a layer's gradient, in the layer's own weight and bias, and in all other parameters of the
            model, for a batch of usual size: the mean over the observed steps.  So `energies.total(n_dX, n_dW)` is the
            variance W that a plan adds.  None in profiles of before, and where a gradient is not finite.
    """

    layers: tuple[str, ...]
    factors: Propagation
    energies: Propagation | None = None

    def among(self, names: Sequence[str]) -> Propagation:
        """Return the factors between some of the layers, without the noise of the others."""
        return self.factors.among([self.layers.index(name) for name in names])


def mean_of(several: Sequence[Contributions]) -> Contributions:
    """Return the mean of factors that were measured on several batches."""
    energies = [one.energies for one in several if one.energies is not None]
    return Contributions(
        several[0].layers,
        _mean([one.factors for one in several]),
        _mean(energies) if len(energies) == len(several) else None,
    )


def _mean(several: Sequence[Propagation]) -> Propagation:
    own, passed, transfer = (
        np.mean([getattr(one, name) for one in several], axis=0) for name in ("own", "passed", "transfer")
    )
    return Propagation(own, passed, transfer)


def noise_by_layer(layers: Mapping[str, LayerPlan]) -> dict[str, float]:
    """Return the noise-to-signal ratio that each layer of a plan adds to dX, where theory predicts it."""
    return {
        name: min(noise_of(layer.predicted_input_gradient.cosine), MOST_NOISE)
        for name, layer in layers.items()
        if layer.input_gradient.gradient and layer.predicted_input_gradient is not None
    }


def forecast(layers: Mapping[str, LayerPlan], noise: Contributions | None) -> Forecast | None:
    """Predict the growth of the gradient that grows most under a plan; None where no layer adds noise to dX.

    Args:
        layers: the layers of a plan in the order in which they run.
        noise: how noise travels, where that was measured; without it, all noise is assumed to reach the first layer.
    """
    handed = noise_by_layer(layers)
    if not handed:
        return None
    if noise is None or not set(layers) <= set(noise.layers):
        # The first layer's own noise goes no further, so only that of the layers behind it counts.
        first, *behind = layers
        factor = float(np.prod([1 + handed.get(name, 0.0) for name in behind]))
        return Forecast(first, _six_digits(factor), False, len(handed))
    # Noise also reaches layers that the plan leaves alone, so all measured layers take part.
    growth = noise.factors.growth([handed.get(name, 0.0) for name in noise.layers])
    worst = int(np.argmax(growth))
    return Forecast(noise.layers[worst], _six_digits(float(growth[worst])), True, len(handed))


def _six_digits(value: float) -> float:
    return float(f"{min(max(value, 1.0), 1e300):.6g}")
