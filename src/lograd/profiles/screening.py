"""A first look at the times of methods, before anything else is measured: can any plan gain, and which methods count.

Hardly a plan is faster than the one that takes the fastest method of each layer, whatever noise it brings.  Where that
one saves nothing, neither noise nor penalties need to be known.  A method has relatives with more bits or fewer zeros,
which are slower and add less noise, so the fastest of each family is timed first, and the others only where it gains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from ..engine.layers import reason_not_channels_last, reason_not_integer
from ..engine.stopwatch import LayerSeconds
from ..plan import Plan
from ..report.progress import progress
from .methods import DENSE, Method, method
from .noise import learned_weights
from .optimizer import MARGIN
from .planner import matching_layers
from .timing import WARM_UP, Timed, Timer, normalizes, treatable, warm_up

WATCHED = 2
"""Steps of each method that are timed layer by layer."""
WHOLE = 2
"""Steps of the fastest plan that are timed as a whole."""
ROUNDS = 2
"""Times that a switch of a whole plan is turned on, in turns with steps without it."""
GENTLE = "int8"
"""A method that adds next to no noise: another one counts for what it saves beyond this one."""
WORTH = 0.03
"""A family that saves a smaller share of the step than this is not looked at further."""
WORTH_NOISE = 0.2
"""The share that pruned gradients must save where progress counts: with 70 % zeros in all layers they were measured to
add 0.2 to 8 of the minibatch's variance to young networks, and that slows progress by as much."""
WORTH_TURNING = 0.03
"""The share of a treated step that another layout must save."""
FASTEST = "the fastest of each layer"
"""The name under which the fastest plan is timed."""
AS_IT_IS, TURNED = "as it is", "channels last"
PLAIN, PLAIN_TURNED = "dense, as it is", "dense, channels last"
"""The names under which steps in two layouts of images are timed, with 8-bit convolutions and with plain ones."""


@final
@dataclass(frozen=True)
class Screened:
    """Times that the first look has found.

    Args:
        timed: times of the methods that count, in the layers in which they are faster than dense products.
        fastest: seconds of a step with the fastest method in each layer: measured where the layers' times promise a
            gain, else what these add up to.
        turned: True if these are times with `Plan.channels_last`, as that was faster with 8-bit convolutions.
        shortest: the plain step in its better layout, as a share of that in the layout that the model came in.
    """

    timed: Timed
    fastest: float
    turned: bool = False
    shortest: float = 1.0

    @property
    def step(self) -> float:
        """The seconds of the plain step."""
        return self.timed.steps[DENSE]

    @property
    def gain(self) -> float:
        """The share of the plain step in its better layout that the fastest plan saves."""
        return 1 - self.fastest / (self.shortest * self.step)


def screen(
    model: nn.Module, loss: Callable[[], Tensor], names: Sequence[str], keep: tuple[str, ...], least: float,
    pruned: float = WORTH,
) -> Screened | None:  # fmt: skip
    """Time the methods that may be worth it; None where no gradient is there to be treated, or one is not finite.

    With the methods of `accelerate` it takes 12 steps where nothing is faster layer by layer, and up to 29.
    Where there are convolutions, two layouts of images are compared by 6 to 12 steps before, and by 6 after.

    Args:
        model: a plain model with a layer that can be treated; its state must be restored by the caller.
        loss: runs the forward and returns the loss.
        names: of methods, "dense" first.
        keep: layers that are left alone, as for `Profile.plan`.
        least: the share of the step that layers must save for whole steps to be timed; in a model that normalizes
            any saving will do, as normalization may be faster too.
        pruned: the share that pruned gradients must save to be looked at further.
    """
    methods = [method(name) for name in names if name != DENSE]
    with progress("timing methods", _most_steps(methods), "step") as advance, torch.compiler.set_stance("force_eager"):
        modules = _modules_that_ran(model, loss)
        advance(1)
        if not modules or not _finite(model):
            return None
        kept = matching_layers(list(modules), keep)
        layers = {name: module for name, module in modules.items() if name not in kept}
        turned = GENTLE in names and _turns(Timer(model, loss, {}, advance), layers)
        return _Look(Timer(model, loss, modules, advance, turned), list(layers), pruned).at(methods, least)


def _turns(timer: Timer, layers: Mapping[str, nn.Module]) -> bool:
    """Return True if steps with 8-bit convolutions are faster where these leave their outputs channels-last.

    It takes 6 steps, and 6 more where they are not: one slow moment must not decide.  False for a model that does not
    run in that layout, and where no layer is a convolution in integers.

    Args:
        timer: of the model.
        layers: those that may be treated.
    """
    if not any(isinstance(module, nn.Conv2d) and reason_not_integer(module) is None for module in layers.values()):
        return False
    if reason_not_channels_last(timer.model) is not None:
        return False
    plan = Plan(dict.fromkeys(layers, method(GENTLE).plan))
    for _ in range(ROUNDS):
        timer.time(AS_IT_IS, plan, WARM_UP, 0, WHOLE)
        turned = partial(timer.time, TURNED, replace(plan, channels_last=True), WARM_UP, 0, WHOLE)
        if not _runs(turned, partial(timer.time, AS_IT_IS, plan, WARM_UP, 0, WHOLE)):
            return False
        if timer.times[TURNED].step < (1 - WORTH_TURNING) * timer.times[AS_IT_IS].step:
            return True
    return False


def _runs(trial: Callable[[], None], as_it_is: Callable[[], None]) -> bool:
    """Run steps in another layout; return False where the model cannot take that layout.

    Any type of exception may come from a layout: a RuntimeError by a view across pixels, or whatever the user's model
    raises when it checks.  It is the layout's alone if it comes again in a second trial, and not in the layout that the
    model came in.  Every other one is the user's, and is raised.

    Args:
        trial: steps in the other layout.
        as_it_is: steps in the model's own.
    """
    try:
        trial()
    except Exception as error:
        if not _raises(trial, type(error)) or _raises(as_it_is):
            raise
        return False
    return True


def _raises(run: Callable[[], None], kind: type[Exception] = Exception) -> bool:
    """Return True if a function raises an exception of a kind."""
    try:
        run()
    except Exception as error:
        return isinstance(error, kind)
    return False


def _weights_to_turn(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights of convolutions over images that do not lie channels-last."""
    found = {module._parameters.get("weight") for module in model.modules() if isinstance(module, nn.Conv2d)}
    return {
        weight
        for weight in found
        if type(weight) is nn.Parameter
        and weight.dim() == 4
        and not weight.is_contiguous(memory_format=torch.channels_last)
    }


@contextmanager
def weights_channels_last(model: nn.Module) -> Iterator[None]:
    """Lay the weights of convolutions out channels-last for a while; their memory comes back as it was."""
    before = {weight: weight.data for weight in _weights_to_turn(model)}
    try:
        for weight, data in before.items():
            weight.data = data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight, data in before.items():
            weight.data = data


def _most_steps(methods: Sequence[Method]) -> int:
    plain, fastest, layouts = 1 + 2 * 2, 2 * ROUNDS * (WARM_UP + WHOLE) + 1, (2 * ROUNDS + 2) * (WARM_UP + WHOLE)
    return plain + sum(warm_up(one) + WATCHED for one in methods) + fastest + layouts


def _modules_that_ran(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, nn.Module]:
    """Run a step; return the layers that a gradient reaches, in the order in which they ran, if any of them learns."""
    found: dict[str, nn.Module] = {}

    def ran(name: str, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            found.setdefault(name, module)

    hooks = [module.register_forward_hook(partial(ran, name)) for name, module in treatable(model).items()]
    try:
        for parameter in model.parameters():
            parameter.grad = None
        loss().backward()  # type: ignore[no-untyped-call]
    finally:
        for hook in hooks:
            hook.remove()
    return found if any(learned_weights(module) for module in found.values()) else {}


def _finite(model: nn.Module) -> bool:
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return all(bool(torch.isfinite(one.to_dense() if one.is_sparse else one).all()) for one in gradients)


class _Look:
    """Methods are timed one after the other; what they save is summed over the layers that may be treated."""

    def __init__(self, timer: Timer, layers: Sequence[str], pruned: float) -> None:
        self.timer, self.layers, self.pruned = timer, layers, pruned

    def at(self, methods: Sequence[Method], least: float) -> Screened:
        """Return what the first look at some methods finds."""
        self.timer.plain()
        families = _families(methods)
        first = [one for one in methods if one.name == GENTLE or one in [family[0] for family in families]]
        for one in first:
            self._time(one)
        self.timer.plain()
        base = [one.name for one in first if one.name == GENTLE]
        counts = [family for family in families if self._saves(family[0], base)]
        names = [*base, *(family[0].name for family in counts)]
        saved = self._saved(names)
        if saved < least * self._step and not (saved > 0 and normalizes(self.timer.model)):
            return self._found(names, [one.name for one in first])
        for one in (one for family in counts for one in family):
            self._time(one)
        names = list(dict.fromkeys([*base, *(one.name for family in counts for one in family)]))
        self._time_fastest(names)
        return replace(self._found(names, names), shortest=self._shortest())

    @property
    def _step(self) -> float:
        return self.timer.times[DENSE].step

    def _time(self, one: Method) -> None:
        if one.name not in self.timer.times and self.layers:
            plan = Plan(dict.fromkeys(self.layers, one.plan))
            self.timer.time(one.name, plan, warm_up(one), WATCHED, whole=0)

    def _saves(self, one: Method, base: Sequence[str]) -> bool:
        """Return True if a method saves enough beyond others."""
        saved = self._saved([*base, one.name]) - self._saved(base)
        return saved >= (WORTH if one.sparsity is None else self.pruned) * self._step

    def _saved(self, names: Sequence[str]) -> float:
        """Return the seconds that the fastest of some methods and dense products save, summed over layers."""
        return sum(
            self._seconds(DENSE, layer) - self._seconds(self._best(names, layer), layer) for layer in self.layers
        )

    def _best(self, names: Sequence[str], layer: str) -> str:
        """Return the fastest method of a layer; "dense" unless one is faster by more than chance."""
        best = min(names, key=lambda name: self._seconds(name, layer), default=DENSE)
        return best if self._is_faster(best, layer) else DENSE

    def _is_faster(self, name: str, layer: str) -> bool:
        return self._seconds(name, layer) < self._seconds(DENSE, layer) * (1 - MARGIN)

    def _seconds(self, name: str, layer: str) -> float:
        return self.timer.times[name].layers[layer].total

    def _time_fastest(self, names: Sequence[str]) -> None:
        """Time whole steps with the fastest method in each layer."""
        chosen = {layer: best for layer in self.layers if (best := self._best(names, layer)) != DENSE}
        methods = {name: method(name) for name in chosen.values()}
        plan = Plan({layer: methods[name].plan for layer, name in chosen.items()})
        self.timer.time(FASTEST, plan, max(map(warm_up, methods.values())), 0, WHOLE)

    def _shortest(self) -> float:
        """Time the plain model in both layouts, and return the share of the shorter step, if by more than chance."""
        if not _weights_to_turn(self.timer.model) or reason_not_channels_last(self.timer.model) is not None:
            return 1.0
        as_it_is = partial(self.timer.time, PLAIN, Plan(), WARM_UP, 0, WHOLE)
        as_it_is()
        if not _runs(self._time_plain_turned, as_it_is):
            return 1.0
        share = self.timer.times[PLAIN_TURNED].step / self.timer.times[PLAIN].step
        return share if share < 1 - WORTH_TURNING else 1.0

    def _time_plain_turned(self) -> None:
        with weights_channels_last(self.timer.model):
            self.timer.time(PLAIN_TURNED, Plan(), WARM_UP, 0, WHOLE)

    def _found(self, names: Sequence[str], told: Sequence[str]) -> Screened:
        """Return what was found.

        Args:
            names: the methods that count.
            told: the methods whose times a menu may show.
        """
        extras = {}
        fastest = max(self._step - self._saved(names), 0.0)
        if FASTEST in self.timer.times:
            fastest = self.timer.times[FASTEST].step
            if normalizes(self.timer.model):
                saved = self.timer.saved_by_normalization(FASTEST, WHOLE, ROUNDS)
                extras, fastest = {"normalization": saved}, self.timer.times[FASTEST].step - saved
        times = self.timer.times
        layers = {DENSE: times[DENSE].layers} | {name: self._open(name, told) for name in told if name in times}
        return Screened(Timed(layers, {DENSE: self._step}, extras), fastest, self.timer.turned)

    def _open(self, name: str, names: Sequence[str]) -> Mapping[str, LayerSeconds]:
        """Return a method's times in the layers where it, or another with as exact a forward, is faster than dense."""
        bits = method(name).bits
        alike = [other for other in names if method(other).bits == bits]  # sparsities between two need both
        return {
            layer: self.timer.times[name].layers[layer]
            for layer in self.layers
            if any(self._is_faster(other, layer) for other in alike)
        }


def _families(methods: Iterable[Method]) -> list[list[Method]]:
    """Return methods that differ in bits and sparsity alone, the fastest of each family first.

    >>> [[one.name for one in family] for family in _families(map(method, ["int8", "prune85", "int4", "prune95"]))]
    [['int4', 'int8'], ['prune95', 'prune85']]
    """
    found: dict[str, list[Method]] = {}
    for one in methods:
        found.setdefault(re.sub(r"[\d.]+", "", one.name), []).append(one)
    return [sorted(family, key=lambda one: (one.bits or 0, -(one.sparsity or 0))) for family in found.values()]
