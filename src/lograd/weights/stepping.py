"""An optimizer's step on weights in low precision: decoded for it, then rounded once.

The optimizer is given float32 copies of a few weights at a time, with their gradients and its own state for them, and
runs its own step on these; then they are rounded back stochastically and dropped.  So whatever it computes is rounded
once a step, E[stored] is its exact result, and the memory of the copies is bounded.  That is right if each parameter
is updated by itself, as in all of torch.optim but LBFGS; any other optimizer steps on all copies at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..errors import InvalidType, InvalidValue, sentence
from .tensor import LowPrecisionTensor

AT_ONCE = 2**22
"""Elements that are decoded at a time, unless a single weight has more: 16 MB in float32."""


@final
class Stepping:
    """A step of its own for one optimizer, in place of that of its class; hooks of the user run around it as before.

    Args:
        optimizer: it holds some of the weights.
        weights: all that are in low precision.
    """

    def __init__(self, optimizer: Optimizer, weights: Iterable[LowPrecisionTensor]) -> None:
        self.optimizer = optimizer
        self.one_by_one = _is_separable(optimizer)
        """True if a step on some of the parameters is the same as on all."""
        self.steps = 0
        self._weights = {id(weight) for weight in weights}
        self._copies: list[tuple[nn.Parameter, int]] = []
        """The copies that the optimizer steps on now, each with its version before the step."""
        self._given: dict[str, Any] | None = None
        self._hooks = (
            optimizer.register_load_state_dict_pre_hook(self._loading),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        )
        self._before: Any = optimizer.__dict__.get("step")
        self._removed = False
        optimizer.__dict__["step"] = self._replaced = self._replacement()

    @property
    def weights(self) -> list[LowPrecisionTensor]:
        """Those of the weights that the optimizer has."""
        return [p for group in self.optimizer.param_groups for p in group["params"] if id(p) in self._weights]

    def remove(self) -> None:
        """Give the optimizer its own step back, and its state in the types of its parameters."""
        for hook in self._hooks:
            hook.remove()
        self._removed = True
        own = self.optimizer.__dict__
        if own.get("step") is self._replaced:  # else somebody has wrapped it, and it changes nothing from here on
            del own["step"]
            if self._before is not None:
                own["step"] = self._before
        for weight in self.weights:
            _cast_state(self.optimizer.state.get(weight, {}), weight, weight.dtype)

    def _replacement(self) -> MethodType:
        """Return the step, between PyTorch's calls of hooks."""

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            run = _own_step(optimizer) if self._removed else self._step
            return run(optimizer, *args, **kwargs)

        hooked: Any = torch.compiler.disable(Optimizer.profile_hook_step(step))  # type: ignore[no-untyped-call]
        functools.update_wrapper(hooked, self._before or type(self.optimizer).step)  # keeps a scheduler's mark
        hooked.rounds = True
        return MethodType(hooked, self.optimizer)

    def _step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True  # a learning rate scheduler that was there first looks for it
        args, kwargs = self._with_closure_run(args, kwargs)
        due = [weight for weight in self.weights if weight.grad is not None]
        if self.one_by_one:
            for some in _in_turns(due, AT_ONCE):
                with self._decoded(some, alone=True):
                    _own_step(optimizer)(optimizer)
        # With these gradients hidden, the step that follows is for the other parameters.
        with _without_gradients(due) if self.one_by_one else self._decoded(due):
            result = _own_step(optimizer)(optimizer, *args, **kwargs)
        self.steps += 1
        return result

    @contextmanager
    def _decoded(self, weights: list[LowPrecisionTensor], alone: bool = False) -> Iterator[None]:
        """Give the optimizer copies of weights, alone or among its other parameters; then round them back."""
        state, groups = self.optimizer.state, self.optimizer.param_groups
        before, copies = [group["params"] for group in groups], {}
        for weight in weights:
            copy = copies[id(weight)] = nn.Parameter(weight.decode(torch.float32), weight.requires_grad)
            assert weight.grad is not None
            copy.grad = weight.grad if weight.grad.dtype == torch.float32 else weight.grad.to(torch.float32)
            if weight in state:
                state[copy] = state.pop(weight)
                _cast_state(state[copy], weight, torch.float32)
        for group in groups:
            group["params"] = [copies.get(id(p), p) for p in group["params"] if not alone or id(p) in copies]
        self._copies = [(copy, copy._version) for copy in copies.values()]
        try:
            yield
            for weight in weights:
                weight.write_(copies[id(weight)].detach())
                torch.autograd.graph.increment_version(weight)
        finally:
            self._copies = []
            for group, parameters in zip(groups, before, strict=True):
                group["params"] = parameters
            for weight in weights:
                if (copy := copies[id(weight)]) in state:
                    state[weight] = state.pop(copy)

    def _with_closure_run(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of a step, its closure called already: gradients must be there before any update."""
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            return args, kwargs
        with torch.enable_grad():
            results = [closure()]

        def known() -> Any:
            if not results or any(copy._version != version for copy, version in self._copies):
                raise InvalidValue(_several_moves(self.optimizer))
            return results.pop()

        return ((known, *args[1:]), kwargs) if args else (args, kwargs | {"closure": known})

    def _loading(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self._given = state

    def _loaded(self, optimizer: Optimizer) -> None:
        """Take float32 state as it was saved where PyTorch has rounded it to the type of the model."""
        given, self._given = self._given, None
        if given is None:
            return
        places = [place for group in given["param_groups"] for place in group["params"]]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for place, weight in zip(places, parameters, strict=False):
            state = optimizer.state.get(weight, {}) if id(weight) in self._weights else {}
            for name, value in given["state"].get(place, {}).items():
                rounded = state.get(name)
                if type(value) is Tensor and type(rounded) is Tensor and value.dtype == torch.float32 != rounded.dtype:
                    state[name] = value.to(weight.device, copy=True)


@contextmanager
def _without_gradients(weights: list[LowPrecisionTensor]) -> Iterator[None]:
    """Hide gradients: the optimizer passes over parameters that have none."""
    gradients = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    try:
        yield
    finally:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient


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
    step = optimizer.__dict__.get("step")
    if hasattr(step, "rounds"):
        raise InvalidValue("the optimizer steps on the weights of another handle already; make one for each handle.")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise InvalidValue("the optimizer's step was replaced by other code; bind the optimizer before that.")
    return optimizer


def _own_step(optimizer: Optimizer) -> Callable[..., Any]:
    """Return the step of an optimizer's class, without the hooks that PyTorch puts around it."""
    step: Any = type(optimizer).step
    found: Callable[..., Any] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return found


def _is_separable(optimizer: Optimizer) -> bool:
    """Return True for optimizers of torch.optim, which update each parameter by itself."""
    return str(getattr(_own_step(optimizer), "__module__", "")).startswith("torch.optim.")


def _cast_state(state: dict[str, Any], weight: Tensor, dtype: torch.dtype) -> None:
    """Cast the parts of a state that have a number for each weight."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == weight.shape:
            state[name] = value.to(dtype)


def _several_moves(optimizer: Optimizer) -> str:
    return (
        f"{type(optimizer).__name__} moves the weights several times in one step and computes gradients in between; "
        "use any optimizer of torch.optim but LBFGS with weights in low precision."
    )


def _in_turns(weights: list[LowPrecisionTensor], most: int) -> Iterator[list[LowPrecisionTensor]]:
    """Yield weights in groups of at most `most` elements, or of one."""
    group: list[LowPrecisionTensor] = []
    for weight in weights:
        if group and sum(each.numel() for each in group) + weight.numel() > most:
            yield group
            group = []
        group.append(weight)
    if group:
        yield group
