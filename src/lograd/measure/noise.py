"""How noise in one layer's gradient reaches other layers, measured on a model.

One batch runs again and again from the same state (`Passes`): once without noise, then with the gradient of one layer
pruned, layer after layer.  The difference is the noise that has arrived.  A backward is linear in its gradients, so
factors that were measured for one layer at a time hold for all of them together (`theory.Propagation`).  What is not
linear is pruning itself: in the last passes all layers are pruned, and the gradients with noise in them are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, reduce
from operator import add

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.layers import kind_of
from ..laws import Empirical
from ..ops import LogHistogram, log_histogram, stochastic_prune
from ..theory import Propagation, threshold
from .passes import countable, named_modules, on_gradient, weight_of
from .records import LayerProfile, NoisyGradient, Range
from .values import NoiseFactors, Values

PROBE = 0.85
"""The share of its nonzero elements that the pruned layer loses.  Factors do not depend on how much noise that is, and
hardly on how it is spread over the elements."""
EVERYWHERE = (0.7, 0.85, 0.92)
"""The shares of their nonzero elements that all layers lose together, for noise of several strengths."""

Run = Callable[[], list[Tensor]]
"""Runs forward and backward of one batch, always alike, and returns the gradients of all learned parameters."""


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


class _Probe:
    """Hooks that keep the gradients of the first backward, prune those of later ones, and compare them with the first.

    Args:
        layers: those that take part, by name.
    """

    def __init__(self, layers: Mapping[str, _ProbedLayer]) -> None:
        self.layers = layers
        self.first = True
        self.disturbed: _ProbedLayer | None = None
        self.everywhere: float | None = None
        """The share of their nonzero elements that all layers lose; None where one layer is disturbed."""
        self.seed = 0

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Put the hooks on the layers."""
        hooks = [layer.module.register_forward_hook(partial(self._ran, layer)) for layer in self.layers.values()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(self, run: Run) -> list[Tensor]:
        """Run one pass and return the gradients of the parameters."""
        for layer in self.layers.values():
            layer.place, layer.error, layer.counted = 0, 0.0, []
        gradients = run()
        self.first = False
        return gradients

    def _ran(self, layer: _ProbedLayer, module: nn.Module, args: object, output: object) -> None:
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
        layer.error += _energy((gradient if noisy is None else noisy) - layer.clean[place])
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


def measure_noise(
    model: nn.Module,
    profiles: Mapping[str, LayerProfile],
    parameters: Sequence[Tensor],
    run: Run,
    repeats: int,
    progress: Callable[[Iterable[str], int], Iterator[str]],
) -> NoiseFactors | None:
    """Return how noise travels between the layers of a model; None if no layer has a weight that learns.

    Stores in the profiles the ranges of gradients, and the gradients that arrive while all layers are pruned.

    Args:
        model: a plain model, without an attached plan.
        profiles: the observed layers; those with a law take part.
        parameters: all that learn.
        run: runs one pass and returns their gradients.
        repeats: passes for each layer.
        progress: takes the names of layers and their number, and yields the names while it shows progress.
    """
    modules = dict(named_modules(model))
    layers = {
        name: _ProbedLayer(modules[name], float(threshold(profile.law, PROBE)), number)
        for number, (name, profile) in enumerate(profiles.items())
        if profile.law is not None and kind_of(modules[name]) is not None
    }
    if not any(learned_weights(layer.module) for layer in layers.values()):
        return None
    probe = _Probe(layers)
    with probe.hooks(), torch.compiler.set_stance("force_eager"):  # compiled code would not call the hooks
        factors = _Factors(layers, parameters, probe.run(run))
        for name in progress(layers, len(layers)):
            for repeat in range(repeats):
                probe.disturbed, probe.seed = layers[name], repeat << 32
                factors.add(name, probe.run(run))
        _count_noisy(probe, profiles, run, repeats)
    typical = np.array([_typical(profiles[name], layer.energy) for name, layer in layers.items()])
    return NoiseFactors(tuple(layers), factors.result(), factors.energies(typical))


def _count_noisy(probe: _Probe, profiles: Mapping[str, LayerProfile], run: Run, repeats: int) -> None:
    """Store in the profiles the ranges of gradients, and the gradients that arrive while all layers are pruned."""
    found: dict[str, list[list[NoisyGradient | None]]] = {name: [] for name in probe.layers}
    for repeat in range(repeats):
        for several in found.values():
            several.append([])
        for probe.everywhere in EVERYWHERE:
            probe.seed = repeat << 32
            probe.run(run)
            for name, layer in probe.layers.items():
                found[name][-1].append(layer.noisy())
    for name, layer in probe.layers.items():
        whole = [[one for one in several if one is not None] for several in found[name]]
        whole = [several for several in whole if len(several) == len(EVERYWHERE)]
        levels = [NoisyGradient.mean_of(column) for column in zip(*whole, strict=True)]
        profiles[name].range = _widest([_range(one) for one in layer.clean]) if layer.clean else None
        profiles[name].noisy = tuple(sorted(levels, key=lambda one: one.level))


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


class _Factors:
    """Sums over all passes, from which the factors follow.

    Args:
        layers: those that are pruned in turn.
        parameters: all that learn.
        clean: their gradients without noise.
    """

    def __init__(
        self, layers: Mapping[str, _ProbedLayer], parameters: Sequence[Tensor], clean: Sequence[Tensor]
    ) -> None:
        order = {id(one): place for place, one in enumerate(parameters)}
        modules = {name: layer.module for name, layer in layers.items()}
        self.layers, self.clean = layers, clean
        self.owned = {
            name: [order[id(one)] for one in module.parameters() if id(one) in order]
            for name, module in modules.items()
        }
        """The places of a layer's weight and bias among the parameters."""
        self.weights = {name: [order[id(one)] for one in learned_weights(module)] for name, module in modules.items()}
        self.of_weights = sorted({place for places in self.weights.values() for place in places})
        """The places of the weights of all layers, each once."""
        self.signals = [_energy(gradient) for gradient in clean]
        self.gradients = np.array([layer.energy for layer in layers.values()])
        count = len(layers)
        self.absolute = np.zeros((2, count))
        """Energies of errors, in a layer's own parameters and in all others."""
        self.relative = np.zeros((2, count))
        """The same over the energies of the weights' gradients, in a layer's own weight and in those of others."""
        self.added, self.transfer = np.zeros(count), np.zeros((count, count))

    def add(self, name: str, gradients: Sequence[Tensor]) -> None:
        """Add the gradients of a pass in which the named layer was pruned."""
        column = list(self.layers).index(name)
        moved = [_energy(noisy - clean) for noisy, clean in zip(gradients, self.clean, strict=True)]
        inside = sum(moved[place] for place in self.owned[name])
        self.absolute[:, column] += inside, max(sum(moved) - inside, 0.0)
        arrived = [change / signal if signal > 0 else 0.0 for change, signal in zip(moved, self.signals, strict=True)]
        own = sum(arrived[place] for place in self.weights[name])
        self.relative[:, column] += own, max(sum(arrived[place] for place in self.of_weights) - own, 0.0)
        errors = np.array([layer.error for layer in self.layers.values()])
        self.added[column] += errors[column]
        errors[column] = 0.0
        self.transfer[:, column] += errors

    def _unit(self) -> tuple[Values, Values]:
        """Return one over the noise-to-signal ratios of the pruned layers, and the transfer for a ratio of one."""
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(self.added > 0, self.gradients / self.added, 0.0)
            relative = np.where(self.gradients[:, None] > 0, self.transfer / self.gradients[:, None], 0.0)
        return unit, relative * unit

    def result(self) -> Propagation:
        """Return the factors, for a noise-to-signal ratio of one."""
        unit, transfer = self._unit()
        own, passed = self.relative * unit
        return Propagation(own, passed, transfer)

    def energies(self, typical: Values) -> Propagation | None:
        """Return the energies that arrive in all parameters, for a noise-to-signal ratio of one.

        None where the gradient of a parameter that belongs to no layer is not finite.

        Args:
            typical: the usual energy of each layer's gradient over that of these passes.
        """
        if not np.all(np.isfinite(self.absolute)):
            return None
        unit, transfer = self._unit()
        own, passed = self.absolute * unit * typical
        return Propagation(own, passed, transfer)


def learned_weights(module: nn.Module) -> list[Tensor]:
    """Return the weight, or the parameters that it is computed from, if they require a gradient."""
    own = weight_of(module)
    parts = [own] if own is not None else [part for name, part in module.named_parameters() if name != "bias"]
    return [part for part in parts if part.requires_grad]


def _energy(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)) ** 2
