"""Train with a plan: `attach` swaps the classes of the layers to treat, and returns the handle that undoes it.

The model keeps its parameters, names and state_dict.  All that changes during training is in the handle.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, final

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..engine.layer import LayerEngine
from ..engine.layers import (
    output_ranges,
    reason_converted,
    reason_unserved,
    row_units,
    unwrapped,
    work_of_element,
)
from ..engine.site import PASSES
from ..errors import InvalidType, InvalidValue, LogradWarning, plural, sentence
from ..files import check_whole
from ..formats.values import check_width
from ..nn import (
    AttentionHandle,
    NormalizationHandle,
    SavedHandle,
    attention,
    normalization,
    saved_activations,
)
from ..ops.registry import transforming
from ..ops.sparse_products import release_workspace
from ..plan import Plan
from ..treatments import PRODUCTS, Backend
from ..treatments.products import check_backend
from . import explain as explaining
from . import exporting
from .explain import (
    Counters,
    Explanation,
    Progress,
    read_counters,
    warn_of_converted_layers,
    warn_of_skipped_layers,
    warn_of_untreated_gradients,
    warn_of_useless_formats,
)
from .exporting import Exported
from .guard import ActiveGuard, Guard, check_guard, exploded, warn_of_lossy_forward
from .refresh import (
    Cost,
    Group,
    OperandStatistics,
    average_over_ranks,
    check_loss_scale,
    is_due,
    set_keys,
    share_out,
)
from .selection import chosen_layers, fitting_modules
from .state import VERSION, check_state
from .swap import reason_not_restored, restore, swap

FORGOTTEN = 100
"""Gradients of one layer before the first call of `step` after which a user is warned; accumulation has fewer."""


def attach(
    model: nn.Module,
    plan: Plan,
    seed: int = 0,
    *,
    refresh: int = 10,
    backend: Backend = "auto",
    loss_scale: float | None = None,
    start: int = 0,
    guard: bool | Guard = False,
) -> Handle:
    """Carry out a plan, in place, from the next forward on.

    Call `handle.step()` after each optimizer step.  The first step only takes statistics; from the second on gradients
    are treated.

    Args:
        model: any module; one that is compiled, or wrapped in DistributedDataParallel, too.
        plan: from `profile.plan(...)`, `Plan.load(path)` or `Plan.uniform("fp6")`.
        seed: of the random numbers.  They also depend on layer, step, element and, in a process group, on the rank:
            ranks draw independent noise.
        refresh: statistics are taken anew every so many steps; in each of the first forty, then less and less often,
            down to that.
        backend: how products are computed: "auto" times dense, sparse (of pruned gradients) and integer products (of
            operands that are levels, as in "int6-full") of each layer once, where they serve, on its own shapes and
            zeros, takes the fastest, and times again when the share of zeros has changed by a tenth.  They sum in
            different orders, so two such runs may differ in the last bits; "sparse", "integer" and "dense" are
            repeatable.  What a backend does not serve is dense, and `explain` says why.
        loss_scale: under loss scaling, the scale of the first step (`scaler.get_scale()`); later ones go to `step`.
        start: the first step to be treated, counted from 0; earlier ones pass through.  At its beginning a deep network
            passes noise on from layer to layer far more than after a hundred steps.
        guard: True, or a `Guard` with a budget, prunes a layer's gradient only while the noise of the plan fits the
            budget; `start` is then unnecessary.  `handle.guard` has what it did.
    """
    modules = fitting_modules(model, plan)
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InvalidType(sentence("seed", seed, "a whole number"))
    if transforming():
        raise InvalidValue("attach the plan before torch.func transforms the model, not inside of what is transformed.")
    handle = Handle(
        model, plan, operator.index(seed), check_whole("refresh", refresh, 1), modules, check_backend(backend),
        check_loss_scale(loss_scale), check_width("start", start, 0, 2**62), check_guard(guard),
    )  # fmt: skip
    warn_of_skipped_layers(plan, len(handle.layers), handle.skipped)
    warn_of_useless_formats(plan, loss_scale)
    return handle


@final
class Handle:
    """An attached plan.  `with attach(...) as handle:` removes it at the end."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        seed: int,
        refresh: int,
        modules: dict[str, nn.Module],
        backend: Backend,
        loss_scale: float | None,
        start: int,
        guard: Guard | None = None,
    ) -> None:
        self.model, self.plan, self.seed, self.refresh, self.start = model, plan, seed, refresh, start
        self.steps = 0
        """Steps that `step` has counted."""
        self.cost = Cost()
        self.layers: dict[str, LayerEngine] = {}
        self._modules: dict[str, nn.Module] = {}
        self._statistics: dict[str, dict[str, OperandStatistics]] = {}
        """By layer and operand."""
        self._loss_scale = loss_scale
        self._last_collected = 0
        self._copy_was_said = self._conversion_was_said = self._step_was_asked_for = False
        self._last_converted: dict[str, str] = {}
        self._explosion = ""
        """The warning that noise explodes, which is given once."""
        chosen, skipped = chosen_layers(plan, modules)
        self.skipped = skipped
        """Layers that are left alone, and why."""
        for name, module, layer in chosen:
            device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
            engine = self.layers[name] = LayerEngine(layer, device, self, row_units(module))
            engine.packs = plan.saved is not None
            engine.turns = plan.channels_last
            self._modules[name] = module
            asked = {product: getattr(layer, product).backend for product in PRODUCTS}
            engine.choose(backend, asked, reason_unserved(module, "sparse"), reason_unserved(module, "integer"))
            found = {
                one.name: OperandStatistics(one) for one in (engine.weights, engine.activations) if one.has_statistics
            }
            if engine.gradient.sites:
                factors = partial(output_ranges, module) if layer.folds else None
                has_rows = layer.folds_rows and not isinstance(module, _ConvNd)
                found["gradient"] = OperandStatistics(
                    engine.gradient, layer.masked, work_of_element(module), factors, has_rows
                )
            if found:
                self._statistics[name] = found
        self.guard = None if guard is None else ActiveGuard(guard, self.gradients)
        """The guard at work; None without one."""
        self._wait_or_begin()
        self._collect()
        set_keys(self.layers.values(), self.seed, self.steps)
        self._beside = _carry_out_beside(unwrapped(model), plan, seed)
        for name, module in self._modules.items():
            swap(module, self.layers[name])

    def __repr__(self) -> str:
        what = f"{plural(len(self.layers), 'layer')} of {type(unwrapped(self.model)).__name__}"
        zeros = f", {total.sparsity:.1%} zeros" if (total := self.counters().total).treated else ""
        return f"Handle({what}, step {self.steps:,}{zeros}{'' if self._modules else ', removed'})"

    # -- training --

    def step(self, *, loss_scale: float | None = None) -> None:
        """Count a step: fresh random numbers, and new numbers for the treatments where statistics were due.

        Args:
            loss_scale: under loss scaling, the scale of the next step (`scaler.get_scale()` after `scaler.update()`).
                Thresholds and scales then follow it; without it they lag until the next refresh.
        """
        loss_scale = check_loss_scale(loss_scale)
        if not self._conversion_was_said:
            self._conversion_was_said = warn_of_converted_layers(self._converted(), len(self.layers))
        before = self._loss_scale or loss_scale or 1.0
        after = loss_scale or before
        refreshes = self.cost.refreshes
        for name, statistics in self._all_statistics():
            scaled = name == "gradient"  # the scale of the loss is in gradients alone
            if scaled and after != before:
                statistics.rescale(before, after)
            scales = (before, after) if scaled else (1.0, 1.0)
            statistics.deliver(self.steps, *scales, self.cost)
        if self.cost.refreshes > refreshes:
            self.cost.steps += 1
            share_out(list(self.gradients.values()), after)
            for layer in self.layers.values():
                layer.reconsider()
            self._judge(after)
        if self.steps == self.start + 1:  # by now all layers have treated an output
            errors = {name: layer.output_error for name, layer in self.layers.items()}
            warn_of_lossy_forward({name: error for name, error in errors.items() if error is not None}, stacklevel=3)
        if any(layer.choices for layer in self.layers.values()):
            release_workspace()  # the next forward needs the memory more
        for layer in self.layers.values():
            layer.follow()
        self._loss_scale = loss_scale or self._loss_scale
        self.steps += 1
        if self.steps == self.start:
            self._wait_or_begin()
        first = self._first_collected
        if is_due(self.refresh, self.steps - first, self._last_collected - first):
            self._collect()
        if self.guard is not None and self.steps >= self.start:
            self.guard.prepare(self.steps)
        set_keys(self.layers.values(), self.seed, self.steps)

    def _converted(self) -> dict[str, str]:
        """Return why layers are not treated as they are now, by name; after `remove`, as they were then."""
        if self._modules:
            found = {name: reason_converted(module) for name, module in self._modules.items()}
            self._last_converted = {name: reason for name, reason in found.items() if reason is not None}
        return self._last_converted

    def _judge(self, loss_scale: float) -> None:
        """Let the guard decide by new statistics; without one, warn, once, of noise that explodes."""
        if self.guard is not None:
            self.guard.judge(self.steps, loss_scale)
        elif not self._explosion:
            self._explosion = exploded(self.gradients, self.steps, self._first_collected)
            if self._explosion:
                warnings.warn(f"{self._explosion}.", LogradWarning, stacklevel=3)

    def _wait_or_begin(self) -> None:
        for layer in self.layers.values():
            layer.begin() if self.steps >= self.start else layer.wait()
        if self.guard is not None and self.steps >= self.start:
            self.guard.hold()

    @property
    def _first_collected(self) -> int:
        """The first step that takes statistics: the last that is not treated."""
        return max(self.start - 1, 0)

    def _collect(self) -> None:
        if self.steps < self._first_collected:
            return
        self._last_collected = self.steps
        for _, statistics in self._all_statistics():
            if not statistics.collecting and statistics.wanted(self.steps):
                statistics.collect()

    @property
    def gradients(self) -> dict[str, OperandStatistics]:
        """The statistics of gradients, by layer."""
        return {name: found["gradient"] for name, found in self._statistics.items() if "gradient" in found}

    def _all_statistics(self) -> list[tuple[str, OperandStatistics]]:
        """Return all statistics, each with the name of its operand."""
        return [pair for found in self._statistics.values() for pair in found.items()]

    # -- what is learned --

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that the plan learns, by layer and operand; the model does not have them.

        Each is added to the value that its first tensor gave: a learned clip starts there, and its parameter at 0.
        """
        for name, layer in self.layers.items():
            yield from ((f"{name}.{site}", parameter) for site, parameter in layer.learned.items())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the plan learns, for an optimizer of their own or a group without weight decay."""
        return (parameter for _, parameter in self.named_parameters())

    def average_gradients(self, group: Group | None = None) -> None:
        """Average the gradients of these parameters over the ranks of data parallelism, between backward and step.

        Args:
            group: None for that of a model in DistributedDataParallel, else all ranks; nothing is done without any.
        """
        average_over_ranks(self.model, self.layers.values(), group)

    # -- what happened --

    def counters(self) -> Counters:
        """Return exact counts of all that was treated since `attach`."""
        return read_counters(self.layers)

    def metrics(self) -> dict[str, float]:
        """Return what was counted as one flat dictionary, for any logger: `wandb.log(handle.metrics())`."""
        return {"lograd/steps": self.steps, **self.counters().metrics()}

    def explain(self) -> Explanation:
        """Return a text to print: what is applied to each layer, with its current numbers, or why nothing is."""
        return explaining.explain(
            self.model,
            self.plan,
            self.layers,
            self.gradients,
            Progress(self.steps, self.start, self.cost, self._loss_scale or 1.0),
            self.skipped,
            self._converted(),
            {name: one.words() for name, one in self._beside.items()},
            self.guard,
            self._explosion,
        )

    # -- what it leaves behind --

    def export(self) -> Exported:
        """Return a plain copy of the model with the rounded weights written in, and their codes and ranges.

        Layers whose forward the plan does not treat are as they are.
        """
        said, self._copy_was_said = self._copy_was_said, True
        try:
            return exporting.export(self.model, self.layers)
        finally:
            self._copy_was_said = said

    # -- saving and undoing --

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs beside model and optimizer, as tensors and plain values."""
        state: dict[str, Any] = {
            "version": VERSION,
            "plan": self.plan.hash(),
            "seed": self.seed,
            "steps": self.steps,
            "start": self.start,
            "last_collected": self._last_collected,
            "loss_scale": self._loss_scale or 0.0,
            "explosion": self._explosion,
            "cost": [self.cost.steps, self.cost.refreshes, self.cost.milliseconds],
            **({} if self.guard is None else {"guard": self.guard.state()}),
            "layers": {name: {k: t.clone() for k, t in layer.tensors().items()} for name, layer in self.layers.items()},
            "statistics": {
                name: {operand: one.state() for operand, one in found.items()}
                for name, found in self._statistics.items()
            },
        }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another handle of the same plan stopped.  What the state lacks starts with a warm-up.

        All of the state is checked first: one that does not fit is refused and changes nothing.
        """
        own = self.state_dict()
        check_state(state, own)
        state = own | {name: value for name, value in state.items() if value is not None}
        self.seed, self.steps, self._last_collected = state["seed"], state["steps"], state["last_collected"]
        self._loss_scale = state["loss_scale"] or None
        self.cost = Cost(*state["cost"])
        self.start = state["start"]
        self._explosion = state["explosion"]
        set_keys(self.layers.values(), self.seed, self.steps)  # for the layers that the state does not have
        for name, tensors in state["layers"].items():
            self.layers[name].load(tensors)
        for name, found in state["statistics"].items():
            for operand, values in found.items():
                self._statistics[name][operand].load(values)
        self._wait_or_begin()
        if self.guard is not None and "guard" in state:
            self.guard.load(state["guard"])
        elif self.guard is None and self.steps >= self.start:
            for statistics in self.gradients.values():
                statistics.be_ready()  # also where the guard of another handle kept a layer as it was
        for _, statistics in self._all_statistics():
            if statistics.table is None and not statistics.collecting and self.steps >= self._first_collected:
                statistics.collect()

    def remove(self) -> None:
        """Give the model back as it was, byte for byte.  Counters and explanation stay."""
        for name, module in self._modules.items():
            if (reason := reason_not_restored(module)) is not None:
                raise InvalidValue(f"layer {name!r} cannot be given back: {reason}; set back its class first.")
        converted = self._converted()
        modules, self._modules = self._modules, {}
        for module in modules.values():
            restore(module)
        for other in self._beside.values():
            other.remove()
        if not modules or self._conversion_was_said:
            return
        seen = max((int(layer.gradient.seen[PASSES]) for layer in self.layers.values()), default=0)
        total = self.counters().total
        if seen and not (self.steps or total.treated) and warn_of_converted_layers(converted, len(modules)):
            return
        if not (self.guard is not None and self.steps):  # a guard may keep all layers as they are
            warn_of_untreated_gradients(total, self.steps, self.start, seen)

    def copied(self) -> None:
        """Warn, once, that a layer that is being copied or pickled gives a plain copy."""
        if not self._copy_was_said:
            self._copy_was_said = True
            warnings.warn(
                "a copy or pickle of an attached model is a plain model; attach the plan to the copy as well if it is "
                "to train with it.",
                LogradWarning,
                stacklevel=2,
            )

    def observed(self, gradients: int) -> None:
        """Warn, once, that `step` was forgotten, when so many gradients of a layer have come by."""
        if gradients == FORGOTTEN and not self.steps and not self._step_was_asked_for:
            self._step_was_asked_for = True
            warnings.warn(
                f"{FORGOTTEN} gradients of a layer without handle.step(): call it after each optimizer.step(), or "
                "statistics are never used and each step has the same random numbers.",
                LogradWarning,
                stacklevel=2,
            )

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _carry_out_beside(
    model: nn.Module, plan: Plan, seed: int
) -> dict[str, AttentionHandle | NormalizationHandle | SavedHandle]:
    """Carry out what a plan asks for beside layers, from now on; return the handles by a name for people."""
    found: dict[str, AttentionHandle | NormalizationHandle | SavedHandle] = {}
    if plan.attention is not None:
        found["scaled_dot_product_attention"] = attention(model, plan.attention)
    if plan.normalization:
        found["BatchNorm and ReLU"] = normalization(model)
    if plan.saved is not None:
        found["kept for the backward"] = saved_activations(model, plan.saved, seed)
    return found
