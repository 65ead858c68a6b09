"""The noise of the quantizers themselves: of each layer's gradient as it is treated, before any product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..attachment import Handle
from ..engine.layer import LayerEngine
from ..engine.layers import candidates
from ..engine.site import Site
from ..laws import Empirical
from ..profiles.gradients import energy
from ..profiles.layers import countable, on_gradient
from ..profiles.measured import Measured, Values, mean_of
from ..treatments import BACKWARD, SYMBOLS, Statistics, describe, predict
from .bench import Bench
from .bounds import bound_of
from .values import SiteVariance

DRAWS = 16
"""Random numbers for each gradient."""
DX = "input_gradient"


class Arrived:
    """The exact gradients that arrive at one layer, one for each time that it runs."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.passed_on = False
        """True if the layer computes dX: its input needs a gradient."""


def arriving(bench: Bench, batch: Any) -> dict[str, Arrived]:
    """Return the exact gradients that arrive at each treated layer."""
    modules = candidates(bench.model)
    found = {name: Arrived() for name in bench.layers}
    hooks = [modules[name].register_forward_hook(partial(_layer_ran, found[name])) for name in found]
    try:
        bench.exact(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _layer_ran(arrived: Arrived, module: nn.Module, args: Any, output: Any) -> None:
    """Put a hook on the gradient of the layer's output; a forward hook."""
    arrived.passed_on |= any(isinstance(one, Tensor) and one.requires_grad for one in args)
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, lambda gradient: arrived.gradients.append(_as_treated(module, countable(gradient))))


def _as_treated(module: nn.Module, g: Tensor) -> Tensor:
    """Return a copy of a gradient in the shape in which it is treated: (rows, outputs), or a batch of images."""
    if not isinstance(module, _ConvNd):
        return g.reshape(-1, g.shape[-1]).clone()
    batched = g.dim() == len(module.kernel_size) + 2
    return (g if batched else g.unsqueeze(0)).clone()


def measure(bench: Bench, handle: Handle, arrived: Mapping[str, Arrived]) -> list[SiteVariance]:
    """Return the noise that each site adds to the gradients that arrive at it.

    Args:
        handle: the whole plan, attached.
        arrived: by layer; a layer at which no gradient arrives is left out.
    """
    modules = candidates(bench.model)
    found = []
    for name, own in arrived.items():
        engine = handle.layers[name]
        if not engine.gradient.ready or not any(bool(g.any()) for g in own.gradients):
            continue
        fold = _fold(engine, modules[name])
        for site in engine.gradient.sites.values():
            products = [one for one in BACKWARD if engine.gradient.at[one] is site and (own.passed_on or one != DX)]
            if not products:
                continue
            treated = _Treated(engine, site, own.gradients, tuple(products), fold if DX in products else None)
            samples = np.array([treated.noise(partial(bench.draw, handle)) for _ in range(DRAWS)])
            bench.draw(handle)  # memories as they were, for the prediction
            found.append(treated.result(name, samples))
    return found


class _Treated(NamedTuple):
    """One site, and the gradients that it treats."""

    engine: LayerEngine
    site: Site
    gradients: list[Tensor]
    products: tuple[str, ...]
    fold: Tensor | None
    """Factors of the gradient's channels."""

    def noise(self, draw: Callable[[], None]) -> float:
        """Return |Q(g) - g|^2, summed over the gradients, with fresh random numbers."""
        draw()
        operand, total = self.engine.gradient, 0.0
        for g in self.gradients:
            summed = () if operand.shared else (1,) if DX in self.products else (0, *range(2, g.dim()))
            total += energy(self.site.treat(g, summed, operand.control, self.fold) - g)
        return total

    def result(self, layer: str, samples: Values) -> SiteVariance:
        """Return all that is known of the site."""
        mean, error = mean_of(samples)
        treatments = self.site.treatments
        plain = self.gradients if self.fold is None else []
        return SiteVariance(
            layer,
            ", ".join(SYMBOLS[product] for product in self.products),
            describe(treatments),
            sum(map(energy, self.gradients)),
            Measured(float(mean), float(error)),
            _sum([_predicted(self.site, g) for g in plain]),
            _sum([bound_of(treatments, g) for g in plain]),
        )


def _fold(engine: LayerEngine, module: Any) -> Tensor | None:
    """Return the factors by which the gradient's channels are multiplied before they are rounded; None without."""
    site = engine.weights.at["input_gradient"]
    if not engine.folds or site is None or isinstance(module, _ConvTransposeNd):
        return None
    weight = module.weight.detach()
    by_output = weight if isinstance(module, nn.Linear | _ConvNd) else weight.t()
    return site.treat_channels(by_output, engine.weights.control)[1]


def _predicted(site: Site, g: Tensor) -> float | None:
    """Return the noise that the law of |g| predicts, by the cosine c of unbiased noise: |g|^2 (1 / c^2 - 1)."""
    if not all(one.unbiased for one in site.treatments):
        return None
    if not bool(g.any()):
        return 0.0
    found = predict(site.treatments, Statistics(Empirical.fit(g)), site.numbers_and_memory())
    return None if found is None or not found.cosine else energy(g) * (found.cosine**-2 - 1)


def _sum(numbers: list[float | None]) -> float | None:
    """Return the sum; None where there is no number, or one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
