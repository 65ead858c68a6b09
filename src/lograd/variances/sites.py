"""The noise of the quantizers themselves: of each layer's gradient as it is treated, before any product."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..attachment import Handle
from ..engine.layer import LayerEngine
from ..engine.layers import candidates
from ..engine.site import Site
from ..laws import Empirical
from ..profiles.layers import countable, on_gradient
from ..treatments import BACKWARD, SYMBOLS, Statistics, describe, predict
from .bench import Bench
from .bounds import bound_of
from .estimates import Measured, mean_of
from .values import SiteVariance

DRAWS = 16
"""Random numbers for each gradient."""


def arriving(bench: Bench, batch: Any) -> dict[str, list[Tensor]]:
    """Return the exact gradients that arrive at each treated layer, one for each time that it runs."""
    modules = candidates(bench.model)
    found: dict[str, list[Tensor]] = {name: [] for name in bench.layers}
    hooks = [modules[name].register_forward_hook(partial(_layer_ran, found[name])) for name in found]
    try:
        bench.exact(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _layer_ran(kept: list[Tensor], module: nn.Module, args: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, lambda gradient: kept.append(_as_treated(module, countable(gradient))))


def _as_treated(module: nn.Module, g: Tensor) -> Tensor:
    """Return a copy of a gradient in the shape in which it is treated: (rows, outputs), or a batch of images."""
    if not isinstance(module, _ConvNd):
        return g.reshape(-1, g.shape[-1]).clone()
    batched = g.dim() == len(module.kernel_size) + 2
    return (g if batched else g.unsqueeze(0)).clone()


def measure(bench: Bench, handle: Handle, gradients: Mapping[str, list[Tensor]]) -> list[SiteVariance]:
    """Return the noise that each site adds to the gradients that arrive at it.

    Args:
        handle: the whole plan, attached.
        gradients: by layer; a layer at which none arrives is left out.
    """
    modules = candidates(bench.model)
    found = []
    for name, arrived in gradients.items():
        engine = handle.layers[name]
        if not arrived or not engine.gradient.ready or not any(bool(g.any()) for g in arrived):
            continue
        fold = _fold(engine, modules[name])
        for site in engine.gradient.sites.values():
            products = [product for product in BACKWARD if engine.gradient.at[product] is site]
            factors = fold if "input_gradient" in products else None
            symbols = ", ".join(SYMBOLS[product] for product in products)
            found.append(_site(bench, handle, engine, site, arrived, factors, name, symbols))
    return found


def _site(
    bench: Bench,
    handle: Handle,
    engine: LayerEngine,
    site: Site,
    arrived: list[Tensor],
    fold: Tensor | None,
    layer: str,
    products: str,
) -> SiteVariance:
    """Return the noise of one site, summed over the gradients that arrive at its layer."""
    samples = np.zeros(DRAWS)
    for draw in range(DRAWS):
        bench.draw(handle)
        for g in arrived:
            summed = () if engine.gradient.shared else (1,) if products == "dX" else (0, *range(2, g.dim()))
            samples[draw] += _energy(site.treat(g, summed, engine.gradient.control, fold) - g)
    mean, error = mean_of(samples)
    bench.draw(handle)  # memories as they were, for the prediction
    bounds = [None if fold is not None else bound_of(site.treatments, g) for g in arrived]
    predictions = [None if fold is not None else _predicted(site, g) for g in arrived]
    return SiteVariance(
        layer,
        products,
        describe(site.treatments),
        sum(map(_energy, arrived)),
        Measured(float(mean), float(error)),
        _sum(predictions),
        _sum(bounds),
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
    return None if found is None or not found.cosine else _energy(g) * (found.cosine**-2 - 1)


def _energy(g: Tensor) -> float:
    return float(g.double().square().sum())


def _sum(numbers: list[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
