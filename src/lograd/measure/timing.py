"""The measurement of menus: each method in every layer in turn, timed layer by layer inside steps of the whole model.

A layer's time thus has in it what its neighbours leave in the caches and how they lay out their results.  Whole steps
are timed apart, as the stopwatch itself takes time: a fifth of a millisecond for each layer.  Each time is the least of
several; other work on the machine only ever adds to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..attachment import Handle
from ..engine.layers import candidates, reason_not_supported
from ..engine.site import STRIDE
from ..engine.stopwatch import LayerSeconds, Stopwatch, seconds
from ..errors import InvalidValue
from ..ops.sparse_products import release_workspace
from ..plan import Plan
from ..report.progress import progress
from ..treatments import BACKWARD, Sentence
from . import penalties
from .arriving import DX, Arrived, arriving, energy, fold_of, noise_at, settling
from .menus import Candidate, Menus
from .methods import DENSE, Method, method
from .noisy import MOST_NOISE, ratio_over, steps_over_last
from .penalties import Penalties, SamePasses, attached
from .records import LayerProfile

WARM_UP = 1
"""Steps before a method is timed, in which it runs for the first time.  Pruning takes its statistics in one before; in
the second its thresholds follow the noise that arrives, or there would be fewer zeros than asked for (`settling`)."""
TIMED = 3
"""Steps of each method that are timed layer by layer."""
WHOLE = 2
"""Steps of each method that are timed as a whole."""
ROUNDS = 3
"""Times that a switch of a whole plan is turned on, in turns with steps without it."""
DRAWS = 2
"""Random numbers for the noise of rounding."""
NORMALIZED = "int8"
"""The method on top of which `Plan.normalization` is timed."""


def check_device(model: nn.Module) -> None:
    """Refuse a model that is not on the CPU, whose clock is read here and whose kernels are compared."""
    for parameter in model.parameters():
        if parameter.device.type != "cpu":
            raise InvalidValue(
                f"times of methods are measured on the CPU, and this model is on {parameter.device.type}."
            )


def treatable(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model that methods can be put into, by name."""
    return {name: module for name, module in candidates(model).items() if reason_not_supported(module) is None}


def normalizes(model: nn.Module) -> bool:
    """Return True if `Plan.normalization` may save time."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def measure(
    model: nn.Module, profiles: Mapping[str, LayerProfile], loss: Callable[[], Tensor], names: Sequence[str]
) -> Menus | None:
    """Measure what each method costs in each layer; None if no layer can be treated.

    Args:
        model: a plain model; its state must be restored by the caller.
        profiles: the observed layers.
        loss: runs the forward and returns the loss.
        names: of methods, "dense" first.
    """
    found = treatable(model)
    modules = {name: found[name] for name in profiles if name in found}
    if not modules:
        return None
    methods = [method(name) for name in names]
    bits = sorted({one.bits for one in methods if one.bits is not None})
    switched = NORMALIZED in names and normalizes(model)
    treated = [one for one in methods if one.name != DENSE]
    total = 2 + 2 * _plain_steps(treated) + sum(warm_up(one) + TIMED + WHOLE for one in treated)
    total += (2 * ROUNDS - 1) * (WARM_UP + WHOLE) * switched
    total += penalties.passes_needed(len(modules), bits, penalties.MOST_GROUPS)
    with progress("timing methods", total, "step") as advance, torch.compiler.set_stance("force_eager"):
        passes = SamePasses(model, loss, advance)
        arrived = arriving(modules, passes.run)
        clean = passes.run()
        timer = Timer(model, loss, modules, advance)
        noises = {}
        for place, one in enumerate(treated):
            if place % 2 == 0:  # so that plain steps share what the machine does
                timer.plain()
            noise = _Noise(one, modules, arrived, profiles)
            with timer.timing(one.name, Plan(dict.fromkeys(modules, one.plan)), warm_up(one)) as handle:
                noises[one.name] = noise.by_layer(handle)
        while timer.plain_steps < _plain_steps(treated):
            timer.plain()
        extras = {"normalization": timer.saved_by_normalization(NORMALIZED, rounds=ROUNDS)} if switched else {}
        signals = {name: sum(map(energy, one.gradients)) for name, one in arrived.items()}
        rounded = penalties.measure(passes, clean, modules, signals, bits, penalties.MOST_GROUPS)
    times = {name: one.layers for name, one in timer.times.items()}
    steps = {name: one.step for name, one in timer.times.items()}
    return _menus(methods, modules, times, steps, noises, extras, rounded)


def _plain_steps(treated: Sequence[Method]) -> int:
    """Return the plain steps that are timed: before every second method, and one at the end."""
    return max((len(treated) + 1) // 2 + 1, TIMED)


def warm_up(one: Method) -> int:
    """Return the steps of a method that are not timed."""
    return WARM_UP + (one.sparsity is not None)


class Times(NamedTuple):
    """The least seconds of a step and of each layer; infinity, or no layers, where these were not timed."""

    step: float
    layers: dict[str, LayerSeconds]

    def least(self, other: Times | None) -> Times:
        """Return the lesser times of two, step by step and layer by layer."""
        if other is None:
            return self
        pairs = ((name, one, other.layers.get(name, one)) for name, one in self.layers.items())
        layers = {
            name: LayerSeconds(min(one.forward, two.forward), min(one.backward, two.backward))
            for name, one, two in pairs
        }
        return Times(min(self.step, other.step), layers or other.layers)


@final
class Timer:
    """Steps of a model with one method after the other, and the least times of each."""

    def __init__(
        self, model: nn.Module, loss: Callable[[], Tensor], modules: Mapping[str, nn.Module],
        advance: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.model, self.loss, self.modules, self.advance = model, loss, modules, advance
        self.watch = Stopwatch(modules)
        self.times: dict[str, Times] = {}
        self.plain_steps = 0
        self._plans: dict[str, Plan] = {}

    def plain(self) -> None:
        """Time a step of the plain model, and another layer by layer."""
        self.plain_steps += 1
        self._keep(DENSE, self._step())
        if self.modules:
            self._keep(DENSE, self._step(watched=True))

    def time(self, name: str, plan: Plan, warm_up: int, watched: int, whole: int) -> None:
        """Time steps under a plan; the arguments are those of `timing`."""
        with self.timing(name, plan, warm_up, watched, whole):
            pass

    @contextmanager
    def timing(self, name: str, plan: Plan, warm_up: int, watched: int = TIMED, whole: int = WHOLE) -> Iterator[Handle]:
        """Time steps under a plan after some others, and yield the handle while the plan is still attached.

        Args:
            warm_up: steps that are not timed.
            watched: steps that are timed layer by layer.
            whole: steps that are timed as a whole.
        """
        self._plans[name] = plan
        with attached(self.model, plan) as handle:
            modules = candidates(self.model)
            for place in range(warm_up):
                with settling(handle.layers, modules) if place else nullcontext():
                    self._step()
                handle.step()
            take_no_statistics(handle)
            for one in [True] * watched + [False] * whole:
                self._keep(name, self._step(one))
                release_workspace()  # as handle.step() does
            yield handle

    def saved_by_normalization(self, base: str, whole: int = WHOLE, rounds: int = 1) -> float:
        """Return the seconds that `Plan.normalization` saves in a step of a plan that was timed.

        From the second round on the plan without it is timed again: a difference of two steps that were minutes apart
        is mostly that of the moments.
        """
        name, plan = f"{base} with normalization", self._plans[base]
        for place in range(rounds):
            if place:
                self.time(base, plan, WARM_UP, 0, whole)
            self.time(name, replace(plan, normalization=True), WARM_UP, 0, whole)
        return max(self.times[base].step - self.times[name].step, 0.0)

    def _keep(self, name: str, times: Times) -> None:
        self.times[name] = times.least(self.times.get(name))

    def _step(self, watched: bool = False) -> Times:
        for parameter in self.model.parameters():
            parameter.grad = None
        with self.watch.running() if watched else nullcontext():
            start = seconds()
            self.loss().backward()  # type: ignore[no-untyped-call]
            taken = seconds() - start
        self.advance(1)
        return Times(math.inf, self.watch.read()) if watched else Times(taken, {})


def take_no_statistics(handle: Handle) -> None:
    """Turn histograms off while timing; in a long run they are rare."""
    for engine in handle.layers.values():
        for operand in engine.operands.values():
            operand.control[STRIDE] = 0


class _Noise(NamedTuple):
    """The noise of one method's gradients, layer by layer."""

    method: Method
    modules: Mapping[str, nn.Module]
    arrived: Mapping[str, Arrived]
    profiles: Mapping[str, LayerProfile]

    def by_layer(self, handle: Handle) -> dict[str, tuple[float, float]]:
        """Return the noise-to-signal ratios in dX and dW of each layer; 0 in a dX that is not computed."""
        found = {}
        for name in self.modules:
            ratios = self._predicted(name) if self.method.sparsity is not None else self._measured_over(name, handle)
            ratios = {product: min(ratio, MOST_NOISE) for product, ratio in ratios.items()}
            if not self.arrived[name].passed_on:
                ratios.pop(DX, None)
            found[name] = (ratios.get(BACKWARD[0], 0.0), ratios.get(BACKWARD[1], 0.0))
        return found

    def _predicted(self, name: str) -> dict[str, float]:
        """Return what the laws of the layer's gradient predict, by product."""
        sentences: dict[str, Sentence] = {product: self.method.plan.site(product, "gradient") for product in BACKWARD}
        ratios = {product: ratio_over(one, self.profiles[name]) for product, one in sentences.items() if one}
        return {product: ratio for product, ratio in ratios.items() if ratio is not None}

    def _measured_over(self, name: str, handle: Handle) -> dict[str, float]:
        """Return what rounding adds over all observed steps: that of the last one, which was measured, scaled."""
        plan, profile = self.method.plan, self.profiles[name]
        return {
            product: ratio * steps_over_last(plan.site(product, "gradient"), profile)
            for product, ratio in self._measured(name, handle).items()
        }

    def _measured(self, name: str, handle: Handle) -> dict[str, float]:
        """Return what rounding adds to the gradients that have arrived, by product; mean of several draws."""
        engine, gradients = handle.layers[name], self.arrived[name].gradients
        signal = sum(map(energy, gradients))
        if not signal or not engine.gradient.ready:
            return {}
        found: dict[str, float] = {}
        fold = fold_of(engine, self.modules[name])
        for site in engine.gradient.sites.values():
            products = [product for product in BACKWARD if engine.gradient.at[product] is site]
            draws = [noise_at(engine, site, gradients, products, fold) for _ in range(DRAWS)]
            found |= dict.fromkeys(products, sum(draws) / DRAWS / signal)
        return found


def _menus(
    methods: Sequence[Method],
    layers: Iterable[str],
    times: Mapping[str, Mapping[str, LayerSeconds]],
    steps: Mapping[str, float],
    noises: Mapping[str, Mapping[str, tuple[float, float]]],
    extras: Mapping[str, float],
    rounded: Penalties,
) -> Menus:
    def candidate(layer: str, one: Method) -> Candidate:
        spent = times[one.name][layer]
        noise = noises.get(one.name, {}).get(layer, (0.0, 0.0))
        penalty = 0.0 if one.bits is None else rounded.layers[one.bits][layer]
        return Candidate(one.name, spent.forward, spent.backward, *noise, penalty)

    moved = {one.name: rounded.together[one.bits] for one in methods if one.bits in rounded.together}
    return Menus(
        {layer: {one.name: candidate(layer, one) for one in methods if layer in times[one.name]} for layer in layers},
        steps[DENSE],
        {one.name: steps[one.name] for one in methods if one.name != DENSE and one.name in steps},
        extras,
        torch.get_num_threads(),
        {name: one.loss for name, one in moved.items()},
        {name: one.penalty for name, one in moved.items()},
    )
