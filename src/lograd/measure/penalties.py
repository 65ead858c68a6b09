"""How far the gradient moves where the forward of layers is rounded to integers, and the loss with it.

The backward is exact: straight through, with operands as the output takes them.  So the difference to the gradient of
the plain model is no noise that averages out over steps; it has a budget beside that of noise.

It is measured at the fewest and at the most bits, and interpolated in the logarithm between them: without kinks it
falls like 4^-bits, and in front of a ReLU, where a rounded input may pass the kink, like 2^-bits; either way the
logarithm is a straight line.  In a model of many layers neighbours are rounded together, and what they bring is divided
by |e|^2 |G|^2 / n: e is what a layer's own rounding does to its output of n elements, and G is its gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..attachment import Handle, attach
from ..engine.layer import LayerEngine
from ..errors import LogradWarning
from ..plan import Plan
from .arriving import energy
from .methods import method
from .start import Start, taken

MOST_GROUPS = 24
"""Layers, or groups of neighbours, that are rounded one at a time."""
NOT_FINITE = 1e60
"""Stands for a change to NaN or infinity: more than any budget, and finite, so that a file can hold it."""


@final
class SamePasses:
    """Gradients of one batch, always from the same state.

    Args:
        model: a plain model; its state must be restored by the caller.
        loss: runs the forward and returns the loss.
        advance: called with 1 after each pass.
    """

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], advance: Callable[[int], None]) -> None:
        self.model, self._loss, self._advance = model, loss, advance
        self._start = Start(model)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def run(self) -> tuple[float, list[Tensor]]:
        """Return the loss and the gradients of all learned parameters."""
        self._start.put_back()
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._loss()
        loss.backward()  # type: ignore[no-untyped-call]
        found = [taken(parameter) for parameter in self._parameters]
        self._advance(1)
        return float(loss.detach()), found


class Moved(NamedTuple):
    """The change by a rounded forward: |g_q - g|^2 and that of the loss; `NOT_FINITE` for NaN and infinity."""

    penalty: float
    loss: float


class Penalties(NamedTuple):
    """The changes by rounded forwards, by bits."""

    layers: dict[int, dict[str, float]]
    """|g_q - g|^2 with one layer rounded."""
    together: dict[int, Moved]
    """With all layers rounded."""


def passes_needed(layers: int, bits: Sequence[int], groups: int) -> int:
    """Return the passes that `measure` runs."""
    return len(bits) + len(_ends(bits)) * min(layers, groups)


def measure(
    passes: SamePasses,
    clean: tuple[float, list[Tensor]],
    modules: Mapping[str, nn.Module],
    signals: Mapping[str, float],
    bits: Sequence[int],
    groups: int,
) -> Penalties:
    """Measure the penalties of layers at several bits.

    Args:
        clean: loss and gradients of the plain model.
        modules: the layers, in the order in which they run.
        signals: |G|^2 of each layer's gradient.
        bits: of the rounded operands, in any order.
        groups: the most groups of neighbours, each of which takes a pass.
    """
    names = list(modules)
    together, shares = {}, {}
    for width in sorted(bits):
        with attached(passes.model, _forward_plan(names, width), "dense") as handle:
            with _own_errors(handle, modules) as errors:
                together[width] = _moved(passes, clean)
            shares[width] = {name: error * signals[name] for name, error in errors.items()}
    ends = {
        width: _by_layer(passes, clean, names, width, shares[width], groups) for width in _ends(bits)
    }  # fmt: skip
    layers = {width: {name: _between(ends, name, width) for name in names} for width in bits}
    return Penalties(layers, together)


def _ends(bits: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({min(bits), max(bits)})) if bits else ()


def _between(ends: Mapping[int, Mapping[str, float]], name: str, width: int) -> float:
    """Return the penalty at some bits, on the straight line through the logarithms at the ends.

    The logarithm of zero is none; the penalty is then that of the other end, which is not too small.
    """
    places = sorted(ends)
    found = [ends[place][name] for place in places]
    if width in ends or min(found) <= 0:
        return ends[width][name] if width in ends else max(found)
    return float(np.exp(np.interp(width, places, np.log(found))))


def _forward_plan(names: Sequence[str], width: int) -> Plan:
    return Plan(dict.fromkeys(names, method(f"int{width}-forward").plan))


def _moved(passes: SamePasses, clean: tuple[float, list[Tensor]]) -> Moved:
    loss, gradients = passes.run()
    pairs = zip(gradients, clean[1], strict=True)
    changes = (sum(energy(one - other) for one, other in pairs), loss - clean[0])
    return Moved(*(one if math.isfinite(one) else NOT_FINITE for one in changes))


def _by_layer(
    passes: SamePasses, clean: tuple[float, list[Tensor]], names: Sequence[str], width: int,
    shares: Mapping[str, float], groups: int,
) -> dict[str, float]:  # fmt: skip
    """Return the penalty of each layer at some bits, measured alone or in groups."""
    found: dict[str, float] = {}
    for places in np.array_split(np.arange(len(names)), min(len(names), groups)):
        group = [names[place] for place in places]
        with attached(passes.model, _forward_plan(group, width), "dense"):
            penalty = _moved(passes, clean).penalty
        total = sum(shares[name] for name in group)
        found |= {name: penalty * (shares[name] / total if 0 < total < math.inf else 1 / len(group)) for name in group}
    return found


@contextmanager
def _own_errors(handle: Handle, modules: Mapping[str, nn.Module]) -> Iterator[dict[str, float]]:
    """Yield |e|^2 / n of each layer's output by its own rounding, which the next forward fills in."""
    errors = dict.fromkeys(modules, 0.0)
    hooks = [
        modules[name].register_forward_hook(partial(_layer_ran, errors, name, engine), with_kwargs=True)
        for name, engine in handle.layers.items()
    ]
    try:
        yield errors
    finally:
        for hook in hooks:
            hook.remove()


def _layer_ran(
    errors: dict[str, float], name: str, engine: LayerEngine, module: Any, args: tuple[Any, ...],
    kwargs: dict[str, Any], output: Any,
) -> None:  # fmt: skip
    """Add a layer's relative errors in activations and weights, times the mean square of its output."""
    inputs: Tensor = (*args, *kwargs.values())[0]
    weight = module.weight.detach()
    by_output = weight if isinstance(module, nn.Linear | _ConvNd) else weight.t()
    activations, weights = engine.activations, engine.weights
    engine.hold(True)
    try:
        for operand, tensor in ((activations, inputs.detach()), (weights, by_output)):
            site, total = operand.at["output"], energy(tensor)
            if site is None or not total:
                continue
            treated = (
                site.treat_channels(tensor, operand.control)[0]
                if operand is weights
                else site.treat(tensor, (), operand.control)
            )
            errors[name] += energy(treated - tensor) / total * energy(output) / output.numel()
    finally:
        engine.hold(False)


@contextmanager
def attached(model: nn.Module, plan: Plan, backend: Any = "auto") -> Iterator[Handle]:
    """Attach a plan for some passes, without a word on layers that it does not suit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogradWarning)
        with attach(model, plan, backend=backend) as handle:
            yield handle
