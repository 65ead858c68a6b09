"""An optimizer's step on weights in low precision: decoded for it, then rounded once.

The optimizer is given float32 copies of a few weights at a time, with their gradients and its own state for them, and
runs its own step on these; then they are rounded back stochastically and dropped.  So whatever it computes is rounded
once a step, E[stored] is its exact result, and the memory of the copies is bounded.  That is right where each parameter
is updated by itself, as in all of torch.optim but LBFGS; any other optimizer steps on all copies at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..errors import InvalidType, InvalidValue, sentence
from .moments import Moments
from .tensor import LowPrecisionTensor

AT_ONCE = 2**22
"""Elements that are decoded at a time, unless a single weight has more: 16 MB in float32."""

Arguments = tuple[Any, dict[str, Any]]


class Opened(NamedTuple):
    """A weight while an optimizer steps on its copy."""

    weight: LowPrecisionTensor
    copy: nn.Parameter
    coded: dict[str, LowPrecisionTensor]
    """The parts of its state that are in low precision, by name."""
    version: int
    """The version of the copy before the step."""


@final
class Stepping:
    """Hooks on one optimizer, and a guard around its step.

    The hooks do the work.  The guard keeps them next to the optimizer's own code, so that hooks of the user see weights
    and gradients as they are; it tells a step inside of a step, which is one of a base class, from a new one; and it
    puts everything back where a step fails.

    Args:
        optimizer: it holds some of the weights.
        weights: all that are in low precision.
        moments: how its state is kept between steps; None leaves that to the optimizer.
    """

    def __init__(self, optimizer: Optimizer, weights: Iterable[LowPrecisionTensor], moments: Moments | None) -> None:
        self.optimizer, self.moments = optimizer, moments
        self.one_by_one = _is_separable(optimizer)
        """True where a step on some of the parameters is the same as on all."""
        self.steps = 0
        self._weights = {id(weight): weight for weight in weights}
        self._opened: list[Opened] = []
        self._groups: list[list[Any]] = []
        self._hidden: list[tuple[LowPrecisionTensor, Tensor]] = []
        self._guarded, self._depth = False, 0
        self._given: dict[str, Any] | None = None
        opaque: Any = torch.compiler.disable  # a compiled step leaves its graph here
        self._hooks = (
            optimizer.register_step_pre_hook(opaque(self._before)),
            optimizer.register_step_post_hook(opaque(self._after)),
            optimizer.register_load_state_dict_pre_hook(self._loading),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        )
        self._put_guard()

    @property
    def weights(self) -> list[LowPrecisionTensor]:
        """Those of the weights that the optimizer has."""
        return [p for group in self.optimizer.param_groups for p in group["params"] if id(p) in self._weights]

    def remove(self) -> None:
        """Take the hooks off, and give the optimizer its state in the types of its parameters."""
        self._recover()
        for hook in self._hooks:
            hook.remove()
        self._take_guard()
        for weight in self.weights:
            _cast_state(self.optimizer.state.get(weight, {}), weight, weight.dtype)

    def _put_guard(self) -> None:
        """Give the optimizer a step of its own, around whichever it has: that of its class, or a scheduler's."""
        before = self.optimizer.__dict__.get("step")

        @functools.wraps(before or type(self.optimizer).step)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            inner: Any = before or MethodType(type(optimizer).step, optimizer)
            return inner(*args, **kwargs) if self._guarded else self._guard(inner, args, kwargs)

        opaque: Any = torch.compiler.disable
        self._before_guard, self._step = before, MethodType(opaque(step), self.optimizer)
        self.optimizer.__dict__["step"] = self._step

    def _take_guard(self) -> None:
        """Give the step back, unless somebody else has wrapped the guard, which changes nothing from here on."""
        own = self.optimizer.__dict__
        if own.get("step") is self._step:
            del own["step"]
            if self._before_guard is not None:
                own["step"] = self._before_guard

    def _guard(self, inner: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        before, after, *_ = self._hooks
        optimizer: Any = self.optimizer
        if before.id in optimizer._optimizer_step_pre_hooks:
            optimizer._optimizer_step_pre_hooks.move_to_end(before.id)
            optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)
        self._recover()
        self._guarded = True
        try:
            return inner(*args, **kwargs)
        finally:
            self._guarded = False
            self._recover()  # changes nothing after a step that came to its end

    def _before(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Arguments | None:
        if self._guarded and self._depth:  # a step of the base class, within that of a subclass
            self._depth += 1
            return None
        self._recover()
        self._depth = 1
        args, kwargs = self._with_closure_run(args, kwargs)
        due = [weight for weight in self.weights if weight.grad is not None]
        if not self.one_by_one:
            self._open(due)
            return args, kwargs
        step = _own_step(optimizer)
        for some in _in_turns(due, AT_ONCE):
            self._open(some, alone=True)
            try:
                step(optimizer)
            except BaseException:
                self._recover()
                raise
            self._close()
        # The step that follows is for the other parameters: without a gradient, these are passed over.
        self._hidden = [(weight, weight.grad) for weight in due]
        for weight in due:
            weight.grad = None
        return args, kwargs

    def _after(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._close()
        self._show_gradients()
        self.steps += 1

    def _open(self, weights: list[LowPrecisionTensor], alone: bool = False) -> None:
        """Put copies of weights in their places; alone, so that the optimizer sees no other parameter."""
        state, copies = self.optimizer.state, {}
        for weight in weights:
            copy = nn.Parameter(weight.decode(torch.float32), requires_grad=weight.requires_grad)
            assert weight.grad is not None
            copy.grad = weight.grad if weight.grad.dtype == torch.float32 else weight.grad.to(torch.float32)
            coded = {}
            if weight in state:
                state[copy] = state.pop(weight)
                coded = {name: value for name, value in state[copy].items() if isinstance(value, LowPrecisionTensor)}
                _cast_state(state[copy], weight, torch.float32)
            copies[id(weight)] = copy
            self._opened.append(Opened(weight, copy, coded, copy._version))
        self._groups = [group["params"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["params"] = [copies.get(id(p), p) for p in group["params"] if not alone or id(p) in copies]

    def _close(self, keep: bool = True) -> None:
        """Put the weights back in their places, rounded from their copies, or as they were."""
        for group, parameters in zip(self.optimizer.param_groups, self._groups, strict=False):
            group["params"] = parameters
        state, opened = self.optimizer.state, self._opened
        self._groups, self._opened = [], []
        for weight, copy, coded, _ in opened:
            if keep:
                weight.write_(copy.detach())
                torch.autograd.graph.increment_version(weight)
            if copy in state:
                state[weight] = state.pop(copy)
                if not keep:
                    state[weight].update(coded)
                elif self.moments is not None:
                    self.moments.encode_(weight, state[weight], coded)

    def _loading(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self._given = state

    def _loaded(self, optimizer: Optimizer) -> None:
        """Take float32 numbers as they were saved, where PyTorch has rounded them to the type of the model."""
        given, self._given = self._given, None
        if given is None:
            return
        places = [place for group in given["param_groups"] for place in group["params"]]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for place, weight in zip(places, parameters, strict=False):
            state = optimizer.state.get(weight, {}) if id(weight) in self._weights else {}
            for name, value in given["state"].get(place, {}).items():
                rounded = state.get(name)
                if type(value) is not Tensor or type(rounded) is not Tensor or rounded.dtype == value.dtype:
                    continue
                if value.dtype == torch.float32 and torch.equal(rounded, value.to(rounded)):  # no hook has changed it
                    state[name] = value.to(weight.device, copy=True)

    def _recover(self) -> None:
        """Undo what a step that raised an error has left behind."""
        self._depth = 0
        self._close(keep=False)
        self._show_gradients()

    def _show_gradients(self) -> None:
        hidden, self._hidden = self._hidden, []
        for weight, gradient in hidden:
            if weight.grad is None:  # else it has a newer one
                weight.grad = gradient

    def _with_closure_run(self, args: Any, kwargs: dict[str, Any]) -> Arguments:
        """The arguments of a step whose closure has been called already: gradients must be there before any update."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return args, kwargs
        with torch.enable_grad():
            results = [closure()]

        def known() -> Any:
            if not results or any(each.copy._version != each.version for each in self._opened):
                raise InvalidValue(_several_moves(self.optimizer))
            return results.pop()

        return ((args[0], known, *args[2:]), kwargs) if len(args) > 1 else (args, kwargs | {"closure": known})


def check_optimizer(optimizer: object, weights: Iterable[Tensor]) -> Optimizer:
    """Return the optimizer, or refuse one that cannot step on these weights."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidType(sentence("optimizer", f"an object of type {type(optimizer).__name__}", "a torch Optimizer"))
    if isinstance(optimizer, LBFGS):
        raise InvalidValue(_several_moves(optimizer))
    ours = {id(weight) for weight in weights}
    if not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
        raise InvalidValue(
            "the optimizer has none of the weights in low precision; make it from the parameters of this model."
        )
    return optimizer


def _own_step(optimizer: Optimizer) -> Callable[[Optimizer], Any]:
    """The step of an optimizer's class, without the hooks that PyTorch puts around it."""
    step: Any = type(optimizer).step
    found: Callable[[Optimizer], Any] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return found


def _is_separable(optimizer: Optimizer) -> bool:
    """True for optimizers of torch.optim, which update each parameter by itself."""
    return str(getattr(_own_step(optimizer), "__module__", "")).startswith("torch.optim.")


def _cast_state(state: dict[str, Any], weight: Tensor, dtype: torch.dtype) -> None:
    """Make the parts of a state that have a number for each weight plain tensors of one type."""
    for name, value in state.items():
        if isinstance(value, LowPrecisionTensor):
            state[name] = value.decode(dtype)
        elif isinstance(value, Tensor) and value.is_floating_point() and value.shape == weight.shape:
            state[name] = value.to(dtype)


def _several_moves(optimizer: Optimizer) -> str:
    return (
        f"{type(optimizer).__name__} moves the weights several times in one step and computes gradients in between; "
        "use any optimizer of torch.optim but LBFGS with weights in low precision."
    )


def _in_turns(weights: list[LowPrecisionTensor], most: int) -> Iterator[list[LowPrecisionTensor]]:
    """Weights in groups of at most `most` elements, or of one."""
    group: list[LowPrecisionTensor] = []
    for weight in weights:
        if group and sum(each.numel() for each in group) + weight.numel() > most:
            yield group
            group = []
        group.append(weight)
    if group:
        yield group
