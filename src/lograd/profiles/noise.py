"""How noise in one layer's gradient reaches other layers: measured on a model, and predicted for a plan.

The forward runs once.  The backward runs once without noise, then several times with the gradient of one layer pruned.
The difference is the noise that has arrived.  A backward is linear in its gradients, so factors that were measured for
one layer at a time hold for all of them together (`theory.Propagation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from ..attachment.swap import engine_of
from ..errors import InvalidValue
from ..ops import stochastic_prune
from ..plan import LayerPlan
from ..plan.forecast import Forecast
from ..theory import Propagation, threshold
from ..treatments.verdicts import noise_of
from .layers import countable, is_layer, named_modules, on_gradient, weight_of
from .records import LayerProfile

PROBE = 0.85
"""The share of its nonzero elements that the pruned layer loses.  Factors do not depend on how much noise that is, and
hardly on how it is spread over the elements."""
MOST_NOISE = 1e6
"""The largest noise-to-signal ratio of one layer; that of a format which rounds all to zero would be infinite."""


@final
@dataclass(frozen=True)
class Contributions:
    """Measured factors by which noise travels between layers, in the order of `layers`."""

    layers: tuple[str, ...]
    factors: Propagation

    def among(self, names: Sequence[str]) -> Propagation:
        """Return the factors between some of the layers, without the noise of the others."""
        places = [self.layers.index(name) for name in names]
        factors = self.factors
        return Propagation(factors.own[places], factors.passed[places], factors.transfer[np.ix_(places, places)])


def mean_of(several: Sequence[Contributions]) -> Contributions:
    """Return the mean of factors that were measured on several batches."""
    own, passed, transfer = (
        np.mean([getattr(one.factors, name) for one in several], axis=0) for name in ("own", "passed", "transfer")
    )
    return Contributions(several[0].layers, Propagation(own, passed, transfer))


class _ProbedLayer:
    """One layer during the measurement; a module that runs several times has as many gradients."""

    def __init__(self, module: nn.Module, threshold: float) -> None:
        self.module = module
        self.threshold = threshold
        self.clean: list[Tensor] = []
        """Its gradients without noise."""
        self.place = 0
        """The next of them to arrive in this backward."""
        self.error = 0.0
        """|noisy gradient - clean gradient|^2, summed over this backward."""

    @property
    def energy(self) -> float:
        return sum(_energy(gradient) for gradient in self.clean)


class _Backward:
    """Hooks that keep the gradients of the first backward, and compare those of later ones with them."""

    def __init__(self, layers: dict[str, _ProbedLayer]) -> None:
        self.layers = layers
        self.first = True
        self.disturbed: _ProbedLayer | None = None
        self.seed = 0

    def run(self, loss: Tensor, weights: list[Tensor]) -> list[Tensor | None]:
        """Run one backward and return the gradients of the weights."""
        for layer in self.layers.values():
            layer.place, layer.error = 0, 0.0
        gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        self.first = False
        return list(gradients)

    def layer_ran(self, layer: _ProbedLayer, module: nn.Module, args: object, output: object) -> None:
        """Put a hook on the gradient of the layer's output; a forward hook."""
        if isinstance(output, Tensor) and output.requires_grad:
            on_gradient(output, partial(self._arrived, layer))

    def _arrived(self, layer: _ProbedLayer, gradient: Tensor) -> Tensor | None:
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


def check_plain(model: nn.Module, what: str = "noise is") -> None:
    """Refuse a model with an attached plan, which would be measured as well."""
    if any(engine_of(module) is not None for module in model.modules()):
        raise InvalidValue(f"{what} measured on a plain model, and this one has a plan attached; call remove() first.")


def measure(
    model: nn.Module,
    profiles: dict[str, LayerProfile],
    loss: Callable[[], Tensor],
    repeats: int,
    progress: Callable[[Iterable[str], int], Iterator[str]],
) -> Contributions | None:
    """Measure how noise travels between the layers of a model; None if no layer has a weight that learns.

    Args:
        model: a plain model, without an attached plan.
        profiles: the observed layers; those with a law take part.
        loss: runs the forward and returns the loss.
        repeats: backward passes for each layer.
        progress: takes the names of layers and their number, and yields the names while it shows progress.
    """
    modules = dict(named_modules(model))
    layers = {
        name: _ProbedLayer(modules[name], float(threshold(profile.law, PROBE)))
        for name, profile in profiles.items()
        if profile.law is not None and is_layer(modules[name])
    }
    backward = _Backward(layers)
    hooks = [layer.module.register_forward_hook(partial(backward.layer_ran, layer)) for layer in layers.values()]
    stance = torch.compiler.set_stance("force_eager")  # compiled code would not call the hooks
    try:
        value = loss()
        owned = {name: learned_weights(layer.module) for name, layer in layers.items()}
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
    """Sums over all backward passes, from which the factors follow."""

    def __init__(
        self, layers: dict[str, _ProbedLayer], places: dict[str, list[int]], clean: list[Tensor | None]
    ) -> None:
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
        """Add the weight gradients of a backward in which the named layer was pruned."""
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
        """Return the factors, for a noise-to-signal ratio of one."""
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(self.added > 0, self.energies / self.added, 0.0)  # one over the noise-to-signal ratio
            relative = np.where(self.energies[:, None] > 0, self.transfer / self.energies[:, None], 0.0)
        return Propagation(self.own * unit, self.passed * unit, relative * unit)


def learned_weights(module: nn.Module) -> list[Tensor]:
    """Return the weight, or the parameters that it is computed from, if they require a gradient."""
    own = weight_of(module)
    parts = [own] if own is not None else [part for name, part in module.named_parameters() if name != "bias"]
    return [part for part in parts if part.requires_grad]


def _energy(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)) ** 2


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
