"""Where noise in a layer's gradient goes, measured: the layer-to-weight contributions of a model.

The forward runs once.  Then the backward runs without noise, and again and again with the gradient of one layer pruned;
what differs afterwards is the noise that has arrived.  A backward is linear in its gradients, so the factors found for
one layer at a time hold for all of them together (`theory.Propagation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from ..attachment.swap import engine_of
from ..errors import InvalidValue
from ..ops import stochastic_prune
from ..theory import Propagation, threshold
from .modules import countable, is_product, named_modules, on_gradient, weight_of
from .records import LayerProfile

PROBE = 0.85
"""The share of its nonzero elements that a disturbed layer loses.  How much noise that is does not matter, how it lies
over the elements a little."""


@final
@dataclass(frozen=True)
class Contributions:
    """The layers that took part, and the factors by which noise travels between them."""

    layers: tuple[str, ...]
    factors: Propagation

    def among(self, names: Sequence[str]) -> Propagation:
        """The factors of some layers; noise of the others is not known of."""
        places = [self.layers.index(name) for name in names]
        factors = self.factors
        return Propagation(factors.own[places], factors.passed[places], factors.transfer[np.ix_(places, places)])


def mean_of(several: Sequence[Contributions]) -> Contributions:
    """The mean of the factors that were measured on several batches."""
    own, passed, transfer = (
        np.mean([getattr(one.factors, name) for one in several], axis=0) for name in ("own", "passed", "transfer")
    )
    return Contributions(several[0].layers, Propagation(own, passed, transfer))


class _Layer:
    """One layer during the measurement; a module that runs several times has a gradient for each."""

    def __init__(self, module: nn.Module, threshold: float) -> None:
        self.module = module
        self.threshold = threshold
        self.clean: list[Tensor] = []
        self.place = 0
        self.error = 0.0
        """|error|^2 of the gradient in this backward."""

    @property
    def energy(self) -> float:
        return sum(_energy(gradient) for gradient in self.clean)


class _Backward:
    """Hooks that keep the gradients of the first backward, and compare those of later ones with them."""

    def __init__(self, layers: dict[str, _Layer]) -> None:
        self.layers = layers
        self.first = True
        self.disturbed: _Layer | None = None
        self.seed = 0

    def run(self, loss: Tensor, weights: list[Tensor]) -> list[Tensor | None]:
        for layer in self.layers.values():
            layer.place, layer.error = 0, 0.0
        gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        self.first = False
        return list(gradients)

    def layer_ran(self, layer: _Layer, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            on_gradient(output, partial(self._arrived, layer))

    def _arrived(self, layer: _Layer, gradient: Tensor) -> Tensor | None:
        place, layer.place = layer.place, layer.place + 1
        if self.first:
            layer.clean.append(gradient.detach().clone())
            return None
        noisy: Tensor | None = None
        if layer is self.disturbed:
            noisy = stochastic_prune(countable(gradient), layer.threshold, self.seed + place).to(gradient.dtype)
        difference = (gradient if noisy is None else noisy) - layer.clean[place]
        layer.error += _energy(difference)
        return noisy


def check_plain(model: nn.Module) -> None:
    if any(engine_of(module) is not None for module in model.modules()):
        raise InvalidValue("noise is measured on a plain model, and this one has a plan attached; call remove() first.")


def measure(
    model: nn.Module,
    profiles: dict[str, LayerProfile],
    loss: Callable[[], Tensor],
    repeats: int,
    progress: Callable[[Iterable[str], int], Iterator[str]],
) -> Contributions | None:
    """The factors by which noise travels between the layers of a model; None if no layer has a weight that learns.

    Args:
        profiles: what is known of the layers; those with a law take part.
        loss: runs the forward.
        repeats: backward passes for each layer.
        progress: shows how far we are; from names and their number, the names.
    """
    modules = dict(named_modules(model))
    layers = {
        name: _Layer(modules[name], float(threshold(profile.law, PROBE)))
        for name, profile in profiles.items()
        if profile.law is not None and is_product(modules[name])
    }
    backward = _Backward(layers)
    hooks = [layer.module.register_forward_hook(partial(backward.layer_ran, layer)) for layer in layers.values()]
    stance = torch.compiler.set_stance("force_eager")  # compiled code would pass the hooks by
    try:
        value = loss()
        owned = {name: _learned(layer.module) for name, layer in layers.items()}
        weights = list({id(weight): weight for several in owned.values() for weight in several}.values())
        if not weights:
            return None
        clean = backward.run(value, weights)
        order = [id(weight) for weight in weights]
        places = {name: [order.index(id(weight)) for weight in several] for name, several in owned.items()}
        factors = _Factors(layers, places, clean)
        for name in progress(layers, len(layers)):
            for repeat in range(repeats):
                backward.disturbed, backward.seed = layers[name], repeat << 32
                factors.add(name, backward.run(value, weights))
    finally:
        stance.__exit__(None, None, None)
        for hook in hooks:
            hook.remove()
    return Contributions(tuple(layers), factors.result())


class _Factors:
    """Sums over the repeats, from which the factors follow."""

    def __init__(self, layers: dict[str, _Layer], places: dict[str, list[int]], clean: list[Tensor | None]) -> None:
        count = len(layers)
        self.layers = layers
        self.places = places
        self.clean = clean
        self.signals = [0.0 if gradient is None else _energy(gradient) for gradient in clean]
        self.energies = np.array([layer.energy for layer in layers.values()])
        self.added = np.zeros(count)
        self.own = np.zeros(count)
        self.passed = np.zeros(count)
        self.transfer = np.zeros((count, count))

    def add(self, name: str, gradients: list[Tensor | None]) -> None:
        column = list(self.layers).index(name)
        arrived = [
            _energy(noisy - clean) / signal if noisy is not None and clean is not None and signal > 0 else 0.0
            for noisy, clean, signal in zip(gradients, self.clean, self.signals, strict=True)
        ]
        own = sum(arrived[place] for place in self.places[name])
        self.own[column] += own
        self.passed[column] += sum(arrived) - own
        errors = np.array([layer.error for layer in self.layers.values()])
        self.added[column] += errors[column]
        errors[column] = 0.0
        self.transfer[:, column] += errors

    def result(self) -> Propagation:
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(self.added > 0, self.energies / self.added, 0.0)  # one over the noise-to-signal ratio
            relative = np.where(self.energies[:, None] > 0, self.transfer / self.energies[:, None], 0.0)
        return Propagation(self.own * unit, self.passed * unit, relative * unit)


def _learned(module: nn.Module) -> list[Tensor]:
    """The weight, or what it is computed from, as far as it learns."""
    own = weight_of(module)
    parts = [own] if own is not None else [part for name, part in module.named_parameters() if name != "bias"]
    return [part for part in parts if part.requires_grad]


def _energy(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)) ** 2
