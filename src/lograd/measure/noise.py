"""How noise in one layer's gradient reaches other layers, measured on a model.

The forward runs once.  The backward runs once without noise, then several times with the gradient of one layer pruned.
The difference is the noise that has arrived.  A backward is linear in its gradients, so factors that were measured for
one layer at a time hold for all of them together (`theory.Propagation`).  What is not linear is pruning itself: in the
last passes all layers are pruned, and the gradients with noise in them are counted (`noisy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import add

import numpy as np
import torch
from torch import Tensor, nn

from ..attachment.swap import engine_of
from ..errors import InvalidValue
from ..laws import Empirical
from ..ops import LogHistogram, log_histogram, stochastic_prune
from ..theory import Propagation, threshold
from .contributions import Contributions
from .gradients import learned_parameters
from .layers import countable, is_layer, named_modules, on_gradient, weight_of
from .measured import Values
from .records import LayerProfile, NoisyGradient, Range, by_level

PROBE = 0.85
"""The share of its nonzero elements that the pruned layer loses.  Factors do not depend on how much noise that is, and
hardly on how it is spread over the elements."""
EVERYWHERE = (0.7, 0.85, 0.92)
"""The shares of their nonzero elements that all layers lose together, for noise of several strengths."""


class _ProbedLayer:
    """One layer during the measurement; a module that runs several times has as many gradients."""

    def __init__(self, module: nn.Module, threshold: float, number: int) -> None:
        self.module = module
        self.threshold = threshold
        self.number = number
        """For its random numbers: those of two layers of one size must not be the same."""
        self.clean: list[Tensor] = []
        """Its gradients without noise."""
        self.place = 0
        """The next of them to arrive in this backward."""
        self.error = 0.0
        """|noisy gradient - clean gradient|^2, summed over this backward."""
        self.counted: list[tuple[LogHistogram, Range]] = []
        """The gradients that have arrived in this backward, where all layers are pruned."""

    @cached_property
    def energy(self) -> float:
        """The energy of the gradients without noise."""
        return sum(_energy(gradient) for gradient in self.clean)

    def noisy(self) -> NoisyGradient | None:
        """Return the gradient that has arrived while all layers were pruned; None where there is no finite noise."""
        if not 0 < self.error < np.inf or not self.energy:
            return None
        histograms, ranges = zip(*self.counted, strict=True)
        together: LogHistogram = reduce(add, histograms)
        if not _has_law(together):
            return None
        law = together.law()
        occupied = np.flatnonzero(law.counts)
        first, end = int(occupied[0]), int(occupied[-1]) + 1
        law = Empirical(law.counts[first:end].copy(), law.first + first, zeros=law.zeros)
        return NoisyGradient(law, self.error / self.energy, _widest(ranges))


class _Backward:
    """Hooks that keep the gradients of the first backward, and compare those of later ones with them."""

    def __init__(self, layers: dict[str, _ProbedLayer]) -> None:
        self.layers = layers
        self.first = True
        self.disturbed: _ProbedLayer | None = None
        self.everywhere: float | None = None
        """The share of their nonzero elements that all layers lose; None where one layer is disturbed."""
        self.seed = 0

    def run(self, loss: Tensor, weights: list[Tensor]) -> list[Tensor | None]:
        """Run one backward and return the gradients of the weights."""
        self._begin()
        gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        self.first = False
        return _dense(gradients)

    def _begin(self) -> None:
        for layer in self.layers.values():
            layer.place, layer.error, layer.counted = 0, 0.0, []

    def layer_ran(self, layer: _ProbedLayer, module: nn.Module, args: object, output: object) -> None:
        """Put a hook on the gradient of the layer's output; a forward hook."""
        if isinstance(output, Tensor) and output.requires_grad:
            on_gradient(output, partial(self._arrived, layer))

    def _arrived(self, layer: _ProbedLayer, gradient: Tensor) -> Tensor | None:
        place, layer.place = layer.place, layer.place + 1
        if self.first:
            layer.clean.append(gradient.detach().clone())
            return None
        if self.everywhere is not None:
            return self._counted(layer, place, gradient, self.everywhere)
        noisy: Tensor | None = None
        if layer is self.disturbed:
            noisy = stochastic_prune(countable(gradient), layer.threshold, self.seed + place).to(gradient.dtype)
        difference = (gradient if noisy is None else noisy) - layer.clean[place]
        layer.error += _energy(difference)
        return noisy

    def _counted(self, layer: _ProbedLayer, place: int, gradient: Tensor, share: float) -> Tensor | None:
        """Count a gradient as it arrives, then prune it by its own law, as a plan does."""
        histogram, ends = log_histogram(countable(gradient)), _range(gradient)
        layer.error += _energy(gradient - layer.clean[place])
        layer.counted.append((histogram, ends))
        if not _has_law(histogram):
            return None
        seed = self.seed + place + (layer.number << 40)
        noisy: Tensor = stochastic_prune(countable(gradient), float(threshold(histogram.law(), share)), seed)
        return noisy.to(gradient.dtype)


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
        name: _ProbedLayer(modules[name], float(threshold(profile.law, PROBE)), number)
        for number, (name, profile) in enumerate(profiles.items())
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
        others = [one for one in learned_parameters(model).values() if all(one is not weight for weight in weights)]
        learned = [*weights, *others]
        clean = backward.run(value, learned)
        order = {id(one): place for place, one in enumerate(learned)}
        places = {name: [order[id(weight)] for weight in several] for name, several in owned.items()}
        own = {name: _places_of(layer.module, order) for name, layer in layers.items()}
        factors = _Factors(layers, places, own, clean, len(weights))
        for name in progress(layers, len(layers)):
            layer = layers[name]
            for repeat in range(repeats):
                backward.disturbed, backward.seed = layer, repeat << 32
                factors.add(name, backward.run(value, learned))
        _count_noisy(backward, profiles, partial(backward.run, value, learned), repeats)
    finally:
        stance.__exit__(None, None, None)
        for hook in hooks:
            hook.remove()
    typical = np.array([_typical(profiles[name], layer.energy) for name, layer in layers.items()])
    return Contributions(tuple(layers), factors.result(), factors.energies(typical))


def _count_noisy(
    backward: _Backward, profiles: Mapping[str, LayerProfile], run: Callable[[], object], repeats: int
) -> None:
    """Store in the profiles the ranges of gradients, and the gradients that arrive while all layers are pruned."""
    found: dict[str, list[list[NoisyGradient]]] = {name: [] for name in backward.layers}
    for repeat in range(repeats):
        passes: dict[str, list[NoisyGradient | None]] = {name: [] for name in backward.layers}
        for backward.everywhere in EVERYWHERE:
            backward.seed = repeat << 32
            run()
            for name, layer in backward.layers.items():
                passes[name].append(layer.noisy())
        for name, several in passes.items():
            if all(one is not None for one in several):
                found[name].append([one for one in several if one is not None])
    for name, layer in backward.layers.items():
        profiles[name].range = _widest([_range(one) for one in layer.clean]) if layer.clean else None
        profiles[name].noisy = by_level(found[name])


def _dense(gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
    return [one.to_dense() if one is not None and one.is_sparse else one for one in gradients]


def _has_law(histogram: LogHistogram) -> bool:
    """Return True if all elements are finite, and some are not zero in the type in which they are counted."""
    return bool(histogram.counts.any()) and not histogram.nan and not histogram.infinities


def _range(tensor: Tensor) -> Range:
    low, high = torch.aminmax(tensor.detach())
    return float(low), float(high)


def _widest(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _typical(profile: LayerProfile, energy: float) -> float:
    """Return |g|^2 of a layer's gradient in all observed steps, their mean, over that in the step of the measurement.

    Noise is a share of the gradient that it is put into, and gradients of some batches are much larger than others.
    """
    laws = [record.law for record in profile.records if record.law is not None]
    mean = sum(float(law.count) * float(law.moment(2)) for law in laws) / len(profile.records)
    return mean / energy if len(profile.records) > 1 and energy > 0 else 1.0


def _places_of(module: nn.Module, order: Mapping[int, int]) -> list[int]:
    """Return the places of the module's own parameters among those that learn."""
    return [order[id(one)] for one in module.parameters() if id(one) in order]


class _Factors:
    """Sums over all backward passes, from which the factors follow.

    Args:
        layers: those that are pruned in turn.
        weights: the places of each layer's weight among the gradients.
        parameters: the places of its weight and its bias.
        clean: the gradients without noise: those of all weights of layers, then those of all other parameters.
        among: the number of these weights.
    """

    def __init__(
        self,
        layers: dict[str, _ProbedLayer],
        weights: dict[str, list[int]],
        parameters: dict[str, list[int]],
        clean: list[Tensor | None],
        among: int,
    ) -> None:
        count = len(layers)
        self.layers, self.weights, self.parameters, self.among = layers, weights, parameters, among
        self.clean = clean
        self.signals = [0.0 if gradient is None else _energy(gradient) for gradient in clean[:among]]
        self.absolute = np.zeros((2, count))
        """Energies of errors, in a layer's own parameters and in all others."""
        self.gradients = np.array([layer.energy for layer in layers.values()])
        self.added = np.zeros(count)
        self.own = np.zeros(count)
        self.passed = np.zeros(count)
        self.transfer = np.zeros((count, count))

    def add(self, name: str, gradients: list[Tensor | None]) -> None:
        """Add the gradients of a backward in which the named layer was pruned."""
        column = list(self.layers).index(name)
        moved = [
            _energy(noisy - clean) if noisy is not None and clean is not None else 0.0
            for noisy, clean in zip(gradients, self.clean, strict=True)
        ]
        inside = sum(moved[place] for place in self.parameters[name])
        self.absolute[:, column] += inside, np.maximum(sum(moved) - inside, 0.0)
        arrived = [
            energy / signal if signal > 0 else 0.0
            for energy, signal in zip(moved[: self.among], self.signals, strict=True)
        ]
        own = sum(arrived[place] for place in self.weights[name])
        self.own[column] += own
        self.passed[column] += sum(arrived) - own
        errors = np.array([layer.error for layer in self.layers.values()])
        self.added[column] += errors[column]
        errors[column] = 0.0
        self.transfer[:, column] += errors

    def _unit(self) -> tuple[Values, Values]:
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(self.added > 0, self.gradients / self.added, 0.0)  # one over the noise-to-signal ratio
            relative = np.where(self.gradients[:, None] > 0, self.transfer / self.gradients[:, None], 0.0)
        return unit, relative * unit

    def result(self) -> Propagation:
        """Return the factors, for a noise-to-signal ratio of one."""
        unit, transfer = self._unit()
        return Propagation(self.own * unit, self.passed * unit, transfer)

    def energies(self, typical: Values) -> Propagation | None:
        """Return the energies that arrive in all parameters, for a noise-to-signal ratio of one.

        None where the gradient of a parameter that belongs to no layer is not finite.

        Args:
            typical: the usual energy of each layer's gradient over that of these passes.
        """
        if not np.all(np.isfinite(self.absolute)):
            return None
        unit, transfer = self._unit()
        return Propagation(self.absolute[0] * unit * typical, self.absolute[1] * unit * typical, transfer)


def learned_weights(module: nn.Module) -> list[Tensor]:
    """Return the weight, or the parameters that it is computed from, if they require a gradient."""
    own = weight_of(module)
    parts = [own] if own is not None else [part for name, part in module.named_parameters() if name != "bias"]
    return [part for part in parts if part.requires_grad]


def _energy(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)) ** 2
