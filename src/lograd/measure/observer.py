"""`lograd.observe`: hooks on a model's layers that count gradients, and that are removed without a trace.

A forward hook puts a hook on the layer's output tensor.  It does so before an in-place ReLU changes the tensor, so it
receives the gradient with respect to the layer's own output.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedParameter
from torch.utils.weak import WeakIdKeyDictionary

from ..engine.layers import kind_of, row_units, unwrapped
from ..errors import InvalidType, InvalidValue, LogradWarning, plural, sentence
from ..formats.values import check_width
from ..laws import Empirical
from ..laws.empirical import BINS_PER_OCTAVE
from ..ops.histogram import BINS, LOWEST, log_histogram
from ..ops.layouts import dense, flat
from ..ops.row_pruning import row_norms
from .model_profile import MOST_STEPS, Profile
from .passes import FilterFunction, countable, named_modules, on_gradient, weight_of
from .records import LayerProfile, Record
from .work import Flops, LayerWork, WorkCounter, flops_of

_GOLDEN = (5**0.5 - 1) / 2


@dataclass
class _Pending:
    """Counts of one layer in the current step; they stay on their device until the step is over."""

    gradient: Tensor | None = None
    weight: Tensor | None = None
    masked: Tensor | None = None
    rows: Tensor | None = None
    sample: Tensor | None = None
    flops: Flops = field(default_factory=Flops)


class Observer:
    """A context that fills a profile: `with lograd.observe(model) as profile: ...`.

    Args:
        counter: counts the operations of the first step, which the caller enters it around; the caller also tells of
            broken gradients.  None counts nothing, as in a loop of the user's own.

    The other arguments are those of `lograd.observe`.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        filter_fn: FilterFunction | None,
        weight_gradients: bool,
        sample: int,
        counter: WorkCounter | None = None,
    ) -> None:
        self._asked = check_width("every", every, 1, 2**31)
        self._sample = check_width("sample", sample, 0, 2**24)
        if filter_fn is not None and not callable(filter_fn):
            raise InvalidType(sentence("filter_fn", filter_fn, "a function of a module and its name, or None"))
        if not isinstance(weight_gradients, bool):
            raise InvalidType(sentence("weight_gradients", weight_gradients, "True or False"))
        chosen = filter_fn or (lambda module, name: kind_of(module) is not None)
        modules = list(named_modules(model))
        self._counter = counter
        self._layers = {name: module for name, module in modules if chosen(module, name)}
        self._norms = [module for _, module in modules if isinstance(module, _BatchNorm)]
        self._weight_gradients = weight_gradients
        if not self._layers:
            what = "a Linear or convolution" if filter_fn is None else "a module that filter_fn accepts"
            raise InvalidValue(f"the model must have {what}; none of the {len(modules)} modules is one.")
        for name, module in self._layers.items():
            if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
                raise InvalidValue(f"layer {name!r} is lazy and has no weight yet; run the model once first.")
        self._active = False
        self._name = type(unwrapped(model)).__name__

    def __repr__(self) -> str:
        layers = f"{plural(len(self._layers), 'layer')} of {self._name}"
        return f"Observer({layers}, one of {plural(self._asked, 'step')}{', at work' if self._active else ''})"

    # -- entering, leaving, steps --

    def __enter__(self) -> Profile:
        if self._active:
            raise InvalidValue("this observer is at work already; make another with lograd.observe(model).")
        self._active, self._delivered, self._every = True, False, self._asked
        self.result = Profile(every=self._every)
        self._order: dict[str, None] = {}
        self._reasons = dict.fromkeys(self._layers, "its forward did not run at an observed step")
        self._start_step(0)
        self._hooks: list[Any] = []
        for name, module in self._layers.items():
            hook = partial(self._layer_ran, name)
            self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
            weight = weight_of(module)
            if self._weight_gradients and weight is not None and weight.requires_grad:
                self._hooks.append(on_gradient(weight, partial(self._weight_gradient_arrived, name)))
        self._hooks += [module.register_forward_hook(self._norm_ran) for module in self._norms]
        self._stance: Any = torch.compiler.set_stance("force_eager")  # compiled code would not call our hooks
        return self.result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = False  # a graph that outlives us may still hold our hooks
        for hook in self._hooks:
            hook.remove()
        self._stance.__exit__(kind, error, trace)
        if self._delivered:
            self._close_step()
        self.result.missed.update(self._reasons)
        if kind is None and self._counter is None and (broken := self.result.broken):
            warnings.warn(broken, LogradWarning, stacklevel=2)

    def _start_step(self, step: int) -> None:
        self._step, self._due = step, step % self._every == 0
        self._pending: defaultdict[str, _Pending] = defaultdict(_Pending)
        self._outputs: Any = WeakIdKeyDictionary()

    def _close_step(self) -> None:
        profile = self.result
        profile.steps = self._step + 1
        for name, pending in self._pending.items():
            if pending.gradient is None:
                continue
            layer = profile.layers.get(name) or self._new_layer(name)
            layer.records.append(_record(self._step, pending.gradient, pending.masked))
            if pending.weight is not None:
                layer.weight_records.append(_record(self._step, pending.weight, None))
            if pending.rows is not None:
                layer.row_records.append(_record(self._step, pending.rows, None))
            if pending.sample is not None:
                layer.sample = pending.sample.float().cpu().numpy()
        self._close_work()
        profile.layers = {name: profile.layers[name] for name in self._order if name in profile.layers}
        self._every = profile.thin(MOST_STEPS)

    def _close_work(self) -> None:
        """Store the work of the first step; discard it if a layer turns up later that had no part in that step."""
        profile, counter = self.result, self._counter
        layers = {
            name: LayerWork(flops.forward, (flops.input or 0) + (flops.weight or 0))
            for name, pending in self._pending.items()
            if pending.gradient is not None and (flops := pending.flops).forward is not None
        }
        if counter is None:
            profile.uncounted = "lograd.profile counts it, in steps that it runs itself"
        elif self._step == 0:
            self._counted = layers
            profile.work = counter.result(layers, self._reasons)
            profile.uncounted = "" if profile.work else counter.problem or "no operator of its forward was seen"
        elif profile.work and (later := next((name for name in layers if name not in self._counted), None)):
            profile.work, profile.uncounted = None, f"layer {later!r} did not run in the first step"

    def _new_layer(self, name: str) -> LayerProfile:
        module = self._layers[name]
        weight = weight_of(module)
        shape = None if weight is None else tuple(weight.shape)
        self._reasons.pop(name, None)
        flops = self._pending[name].flops
        layer = LayerProfile(
            name, type(module).__name__, shape, flops.input, flops.weight, flops_forward=flops.forward,
            groups=int(module.groups) if isinstance(module, _ConvNd) else 1,
            transposed=isinstance(module, _ConvTransposeNd),
        )  # fmt: skip
        self.result.layers[name] = layer
        return layer

    # -- forward --

    def _layer_ran(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # A forward outside a backward, after a gradient has arrived, begins the next step.  A forward inside a backward
        # is one that gradient checkpointing repeats.
        if self._delivered and torch._C._current_graph_task_id() == -1:
            self._close_step()
            self._delivered = False
            self._start_step(self._step + 1)
        self._order.setdefault(name)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            self._excuse(name, f"its output is no floating point tensor but of type {type(output).__name__}")
            return
        if not output.requires_grad:
            self._excuse(name, "its output needed no gradient")
            return
        if not self._due:
            on_gradient(output, self._mark)
            return
        self._excuse(name, "no gradient reached it")
        flops = flops_of(module, args[0] if args else kwargs.get("input"), output)
        self._outputs[output] = name
        on_gradient(output, partial(self._gradient_arrived, name, flops))

    def _norm_ran(self, module: nn.Module, args: Any, output: Any) -> None:
        """Count the zeros behind a BatchNorm whose input is a layer's output tensor: elements that a ReLU masked."""
        name = self._outputs.get(args[0]) if self._due and args else None
        if name is not None and isinstance(output, Tensor) and output.requires_grad:
            on_gradient(output, partial(self._masked_arrived, name))

    def _excuse(self, name: str, reason: str) -> None:
        if name in self._reasons:
            self._reasons[name] = reason

    # -- backward --

    def _mark(self, gradient: Tensor) -> None:
        self._delivered = True

    def _gradient_arrived(self, name: str, flops: Flops, gradient: Tensor) -> None:
        if not self._active:
            return
        self._delivered = True
        if self._counter is not None:
            self._counter.differentiable = torch.is_grad_enabled()
        gradient = countable(gradient)
        pending = self._pending[name]
        pending.gradient = _plus(pending.gradient, log_histogram(gradient).table)
        if gradient.dim() > 1 and gradient.numel():
            norms = row_norms(_rows(gradient, self._layers[name]))
            pending.rows = _plus(pending.rows, log_histogram(norms.float()).table)
        # Counted here and not in the forward, which gradient checkpointing runs twice.
        pending.flops = pending.flops.plus(flops)
        if self._sample:
            pending.sample = _spread(gradient, self._sample)

    def _weight_gradient_arrived(self, name: str, gradient: Tensor) -> None:
        if self._active and self._due and gradient.layout == torch.strided:
            pending = self._pending[name]
            pending.weight = _plus(pending.weight, log_histogram(countable(gradient)).table)

    def _masked_arrived(self, name: str, gradient: Tensor) -> None:
        if self._active:
            pending = self._pending[name]
            pending.masked = _plus(pending.masked, log_histogram(countable(gradient)).table)


def _plus(sum: Any, more: Any) -> Any:
    return more if sum is None else sum if more is None else sum + more


def _rows(gradient: Tensor, module: nn.Module) -> Tensor:
    """Return a gradient as a matrix of what its layer can leave out of its products: tokens, pixels or samples."""
    if kind_of(module) is None or "row" not in row_units(module):
        return gradient.flatten(1)
    last = gradient.movedim(1, -1) if isinstance(module, _ConvNd) else gradient
    return last.reshape(-1, last.shape[-1])


def _spread(gradient: Tensor, count: int) -> Tensor:
    """Return `count` elements, one from each of `count` equal parts of memory, at a varying place inside its part.

    A constant stride could hit the same channel every time.
    """
    values = flat(dense(gradient))
    if values.numel() <= count:
        return values.clone()
    part = torch.arange(count, dtype=torch.float64, device=values.device)
    index = (part + (part * _GOLDEN) % 1) * (values.numel() / count)
    return values[index.long().clamp_(max=values.numel() - 1)]


def _record(step: int, table: Tensor, masked: Tensor | None) -> Record:
    counts = table.cpu().numpy()
    zeros, nan, infinities = (int(count) for count in counts[BINS:])
    occupied = np.flatnonzero(counts[:BINS])
    law = None
    if occupied.size:
        first, end = int(occupied[0]), int(occupied[-1]) + 1
        # A copy of the occupied bins, so that the whole table, some ten times as long, can be freed.
        law = Empirical(counts[first:end].copy(), first + LOWEST * BINS_PER_OCTAVE, zeros=zeros)
    share = None
    if masked is not None:
        other = masked.cpu().numpy()
        share = float(other[BINS] / other.sum())
    return Record(step, law, zeros, nan, infinities, share)


def observe(
    model: nn.Module,
    every: int = 50,
    *,
    filter_fn: FilterFunction | None = None,
    weight_gradients: bool = True,
    sample: int = 8192,
) -> Observer:
    """Return a context in which the gradients of a model are counted while the user's own loop trains it.

    Each backward is a step.  The first and then every `every`-th step is observed; it is in the profile when the next
    forward begins or the context ends.  A profile keeps at most 256 steps: when there are more, every second one is
    dropped and `every` doubles.

    Training is not changed, but compiled code runs eagerly inside the context, since it would not call hooks.  Under a
    GradScaler gradients are counted with the loss scale in them.  A LogradWarning tells of NaN and infinite gradients
    when the context ends.

    With a plan attached, a layer's gradient is counted as it arrives: after the treatments of later layers and before
    its own.  The gradient of its weight is counted after its own treatment.

    Args:
        model: any module; wrappers of DistributedDataParallel and `torch.compile` are looked through.
        every: observe one of so many steps.
        filter_fn: `filter_fn(module, name)` returns True for modules to observe; by default every Linear, convolution
            and transposed convolution.
        weight_gradients: count the gradients of their weights as well.
        sample: elements of each gradient to keep from the last observed step, for Q-Q plots and measured errors.

    ```python
    with lograd.observe(model) as profile:
        for images, labels in loader:
            ...  # forward, backward, optimizer step
    profile.to_html("gradients.html")
    ```
    """
    return Observer(model, every, filter_fn, weight_gradients, sample)
