"""By how much the noise of a plan makes gradients grow on their way through the layers, predicted from a profile."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..plan import LayerPlan
from ..plan.forecast import Forecast
from ..treatments.verdicts import noise_of
from .noise import Contributions

MOST_NOISE = 1e6
"""Of one layer: a format that rounds everything to zero has no cosine, and its noise no bound."""


def noise_by_layer(layers: Mapping[str, LayerPlan]) -> dict[str, float]:
    """The noise-to-signal ratio that each layer hands on in dX, where theory predicts it."""
    return {
        name: min(noise_of(layer.predicted_input_gradient.cosine), MOST_NOISE)
        for name, layer in layers.items()
        if layer.input_gradient.gradient and layer.predicted_input_gradient is not None
    }


def forecast(layers: Mapping[str, LayerPlan], noise: Contributions | None) -> Forecast | None:
    """The growth of the gradient that grows most; None where no layer hands noise on.

    Args:
        layers: the layers of a plan in the order in which they run.
        noise: how noise travels, where that was measured.
    """
    handed = noise_by_layer(layers)
    if not handed:
        return None
    if noise is None or not set(layers) <= set(noise.layers):
        # All noise meets in the gradient of the first layer; its own goes on to nobody.
        first, *behind = layers
        factor = float(np.prod([1 + handed.get(name, 0.0) for name in behind]))
        return Forecast(first, _six_digits(factor), False, len(handed))
    # Layers that the plan leaves alone are reached as well.
    growth = noise.factors.growth([handed.get(name, 0.0) for name in noise.layers])
    worst = int(np.argmax(growth))
    return Forecast(noise.layers[worst], _six_digits(float(growth[worst])), True, len(handed))


def _six_digits(value: float) -> float:
    return float(f"{min(max(value, 1.0), 1e300):.6g}")
