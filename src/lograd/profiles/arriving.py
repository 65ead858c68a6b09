"""The exact gradients that arrive at layers, and the noise that the sites of an attached plan add to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..engine.layer import LayerEngine
from ..engine.site import Site
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

    Args:
        site: one of the gradient's, in these products.
        fold: factors of the gradient's channels; see `fold_of`.
    """
    operand, into_input, total = engine.gradient, DX in products, 0.0
    for g in gradients:
        summed = () if operand.shared else (1,) if into_input else (0, *range(2, g.dim()))
        total += energy(site.treat(g, summed, operand.control, fold if into_input else None) - g)
    return total


def energy(tensor: Tensor) -> float:
    """Return |g|^2 of a tensor."""
    flat = tensor.detach().reshape(-1).double()
    return float(torch.dot(flat, flat))
