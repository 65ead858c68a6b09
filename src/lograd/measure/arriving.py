"""Gradients that arrive at layers: exact ones, the noise that the sites of an attached plan add, and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..engine.layer import LayerEngine
from ..engine.site import Site
from ..ops import log_histogram
from ..treatments import Prune, Statistics
from ..treatments.sentence import numbers_of
from .layers import countable, on_gradient

DX = "input_gradient"


class Arrived:
    """The exact gradients that arrive at one layer, one for each time that it runs."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.passed_on = False
        """True if the layer computes dX: its input needs a gradient."""


def arriving(modules: Mapping[str, nn.Module], run: Callable[[], object]) -> dict[str, Arrived]:
    """Return the gradients that arrive at each of some layers.

    Args:
        run: runs forward and backward.
    """
    found = {name: Arrived() for name in modules}
    hooks = [
        module.register_forward_hook(partial(_layer_ran, found[name]), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _layer_ran(arrived: Arrived, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    """Put a hook on the gradient of the layer's output; a forward hook."""
    arrived.passed_on |= any(isinstance(one, Tensor) and one.requires_grad for one in (*args, *kwargs.values()))
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, lambda gradient: arrived.gradients.append(_as_treated(module, countable(gradient))))


def _as_treated(module: nn.Module, g: Tensor) -> Tensor:
    """Return a copy of a gradient in the shape in which it is treated: (rows, outputs), or a batch of images."""
    if not isinstance(module, _ConvNd):
        return g.reshape(-1, g.shape[-1]).clone()
    batched = g.dim() == len(module.kernel_size) + 2
    return (g if batched else g.unsqueeze(0)).clone()


@contextmanager
def settling(engines: Mapping[str, LayerEngine], modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Let attached layers take the numbers of their gradients from the very gradients that arrive inside.

    Otherwise numbers follow from the step before, and so does the noise that reaches the next layer: in a deep network
    thresholds, and with them the zeros, are what was asked for only after as many steps as there are layers.

    Args:
        engines: of attached layers, that have had statistics once.
        modules: their modules.
    """
    hooks = [
        modules[name].register_forward_hook(partial(_settles, engine))
        for name, engine in engines.items()
        if engine.gradient.has_statistics and engine.gradient.ready
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _settles(engine: LayerEngine, module: nn.Module, args: object, output: object) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, partial(_take_numbers, engine))


def _take_numbers(engine: LayerEngine, gradient: Tensor) -> None:
    if not bool(torch.isfinite(gradient).all()) or not bool(gradient.any()):
        return
    statistics = Statistics(log_histogram(countable(gradient)).law())
    for site in engine.gradient.sites.values():
        # Other thresholds depend on more than this gradient: on other layers, or on what BatchNorm has refilled.
        if not any(isinstance(one, Prune) and one != Prune(one.sparsity) for one in site.treatments):
            site.set_numbers(numbers_of(site.treatments, statistics))


def fold_of(engine: LayerEngine, module: Any) -> Tensor | None:
    """Return the factors by which the gradient's channels are multiplied before they are rounded; None without."""
    site = engine.weights.at[DX]
    if not engine.folds or site is None or isinstance(module, _ConvTransposeNd):
        return None
    weight = module.weight.detach()
    by_output = weight if isinstance(module, nn.Linear | _ConvNd) else weight.t()
    return site.treat_channels(by_output, engine.weights.control)[1]


def noise_at(
    engine: LayerEngine, site: Site, gradients: Iterable[Tensor], products: Iterable[str], fold: Tensor | None
) -> float:
    """Return |Q(g) - g|^2, summed over the gradients, with the random numbers that the site's key gives.

    Where channels have factors, each counts as much as in dX: an output without weights adds neither noise nor signal.

    Args:
        site: one of the gradient's, in these products.
        fold: factors of the gradient's channels; see `fold_of`.
    """
    operand, into_input, total = engine.gradient, DX in products, 0.0
    for g in gradients:
        summed = () if operand.shared else (1,) if into_input else (0, *range(2, g.dim()))
        factors = fold if into_input else None
        error = site.treat(g, summed, operand.control, factors) - g
        if factors is None:
            total += energy(error)
        elif signal := energy(folded(g, factors)):
            total += energy(folded(error, factors)) / signal * energy(g)
    return total


def folded(g: Tensor, factors: Tensor) -> Tensor:
    """Return a gradient with its channels, dimension 1, multiplied by factors."""
    return g * factors.reshape(-1, *(1,) * (g.dim() - 2))


def energy(tensor: Tensor) -> float:
    """Return |g|^2 of a tensor."""
    flat = tensor.detach().reshape(-1).double()
    return float(torch.dot(flat, flat))
