"""Counts the operations of one whole training step, module by module, while its operators run.

A dispatch mode sees every operator of the forward and the backward.  In the forward, hooks tell which module is
running.  In the backward the number of the running autograd node tells it: the forward numbers nodes as it makes them.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.weak import WeakIdKeyDictionary

from ..attachment.selection import FUNCTION, PARAMETER, known_parts, reason_of
from ..engine.layers import kind_of, plain_name, unwrapped
from ..plan import StepWork, Untreated
from .layers import named_modules
from .work_formulas import operands, operations

WHOLE = "(model)"
"""Shown in place of the name of the outermost module, which is empty."""
_DYNAMO = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "eval_frame.py")
OUTSIDE = Untreated("(outside the model)", "function", "products of the loss, or around the model")


class LayerWork(NamedTuple):
    """Operations of one observed layer in the counted step: of its forward, and of dX and dW together."""

    forward: int
    backward: int


class WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of one forward and of the backward that follows.

    `start` puts hooks on the modules, `result` returns the counts, and `stop` removes everything.

    With `own_step` the caller enters the mode around the step.  Without it, counting begins at the first forward that
    needs gradients, in the user's own loop, and ends when the next one begins.  A mode must not be entered or left
    inside another dispatch mode, compiled code or a transform, which restore the state of the dispatcher afterwards.
    Nothing is counted there, and `problem` says why.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, own_step: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problem: str | None = None
        self.differentiable = False
        """True if the backward records a graph as well (create_graph=True); the observer sets it."""
        self._model, self._own_step = model, own_step
        self._modules = dict(named_modules(model))
        named = unwrapped(model).named_parameters()
        self._sources: Any = WeakIdKeyDictionary({parameter: plain_name(name) for name, parameter in named})
        self._hooks: list[Any] = []
        self._pushed = self._stopped = self._backward_began = False
        self._inside: list[str | None] = []
        """Names of the modules whose forward is running, the innermost last; None for one that needs no gradient."""
        self._times: list[int] = []
        self._places: list[str | None] = []
        """`_places[i]` is the innermost module for autograd nodes numbered from `_times[i]` on."""
        self._owners: dict[int, Untreated] = {}
        """The owner of a product, by the number of the autograd node that the forward made for it."""
        self._forward: dict[Untreated, int] = {}
        self._backward: dict[Untreated, int] = {}
        self._recomputed = 0

    # -- from the first hook to the last --

    def start(self) -> None:
        """Put hooks on all modules, which tell whose operators run."""
        for name, module in self._modules.items():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no hooks: its products count as its parent's
                self._hooks.append(module.register_forward_pre_hook(partial(self._entered, name)))
                self._hooks.append(module.register_forward_hook(self._left, always_call=True))

    def stop(self) -> None:
        """Remove the hooks and leave the mode; where it cannot be left now, it stays idle until the next `stop`."""
        self._stopped = True
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        stack = _get_current_dispatch_mode_stack()
        if self._pushed and stack and stack[-1] is self and _obstacle() is None:
            self._pushed = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        self.problem = "another dispatch mode was at work" if _get_current_dispatch_mode_stack() else _obstacle()
        if self.problem is not None:
            self.stop()
            return
        self._pushed = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def _entered(self, name: str, module: nn.Module, args: Any) -> None:
        evaluation = False
        if not self._own_step:
            records = torch.is_grad_enabled() and not _in_backward()
            if records and not self._pushed and not self._stopped:
                self._begin()
            evaluation = not (records or _in_backward()) and (not self._inside or self._inside[-1] is None)
        self._inside.append(None if evaluation else name)
        self._mark()

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._inside:
            self._inside.pop()
        self._mark()

    def _mark(self) -> None:
        self._times.append(torch._C._autograd._get_sequence_nr())
        self._places.append(self._inside[-1] if self._inside else None)

    # -- for every operator --

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._stopped and self.problem is None:
            try:
                self._count(func, args, kwargs or {}, output)
            except Exception as error:  # whatever an exotic tensor does, the user's step goes on
                self.problem = f"{func} could not be counted ({type(error).__name__}: {error})"
        return output

    def _count(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._follow_cast(operator, args, output)
        backward = _in_backward()
        self._backward_began |= backward
        if self._backward_began and not backward:  # the optimizer, or the next batch
            return
        if self._inside and self._inside[-1] is None:  # an evaluation
            return
        count = operations(operator, args, kwargs, output)
        if not count:
            return
        if not backward:
            owner = self._owner(operator, args)
            self._owners[torch._C._autograd._get_sequence_nr() - 1] = owner
            self._forward[owner] = self._forward.get(owner, 0) + count
        elif self._inside or self._computes_again():
            self._owners[torch._C._autograd._get_sequence_nr() - 1] = self._owner(operator, args)
            self._recomputed += count
        else:
            owner = self._owner_of_node()
            self._backward[owner] = self._backward.get(owner, 0) + count

    def _computes_again(self) -> bool:
        """Return True inside a forward that gradient checkpointing repeats in the backward.

        It records a graph, which the backward of a first derivative otherwise never does.
        """
        return torch.is_grad_enabled() and not self.differentiable

    def _follow_cast(self, operator: Any, args: tuple[Any, ...], output: Any) -> None:
        """Remember that a copy made by autocast stands for the parameter it was cast from."""
        if operator is torch.ops.aten._to_copy.default and isinstance(output, Tensor):
            name = self._source(args[0])
            if name is not None:
                self._sources[output] = name

    def _source(self, tensor: Tensor) -> str | None:
        name = self._sources.get(tensor)
        if name is None and tensor._base is not None:
            name = self._sources.get(tensor._base)
        found: str | None = name
        return found

    # -- the owner of a product --

    def _owner(self, operator: Any, args: tuple[Any, ...]) -> Untreated:
        name = self._inside[-1] if self._inside else None
        owner = self._owner_of_place(name)
        if owner.reason in (FUNCTION, OUTSIDE.reason):
            source = next((s for one in operands(operator, args) if (s := self._source(one)) is not None), None)
            if source is not None:
                return Untreated(source, "parameter", PARAMETER)
        return owner

    def _owner_of_place(self, name: str | None) -> Untreated:
        if name is None:
            return OUTSIDE
        module = self._modules[name]
        reason = reason_of(module) or ("" if kind_of(module) is not None else FUNCTION)
        return Untreated(name or WHOLE, type(module).__name__, reason)

    def _owner_of_node(self) -> Untreated:
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return OUTSIDE
        number = node._sequence_nr()
        if number in self._owners:
            return self._owners[number]
        place = bisect_right(self._times, number) - 1
        return self._owner_of_place(self._places[place] if place >= 0 else None)

    # -- the result --

    def result(self, observed: Mapping[str, LayerWork], missed: Mapping[str, str]) -> StepWork | None:
        """Return the work of the step; None where it was not counted completely.

        Args:
            observed: operations of the layers that the profile observed in this step; a plan can treat these.
            missed: for other layers, the reason why they were not observed.
        """
        if self.problem is not None or not (self._forward or observed):
            return None
        parts = {part.name: part for part in known_parts(self._model).values()}
        for owner in dict.fromkeys([*self._forward, *self._backward]):
            forward, backward = self._forward.get(owner, 0), self._backward.get(owner, 0)
            reason = owner.reason
            name = "" if owner.name == WHOLE else owner.name
            if not reason:
                seen = observed.get(name, LayerWork(0, 0))
                forward, backward = max(forward - seen.forward, 0), max(backward - seen.backward, 0)
                reason = missed.get(name, "it was not chosen")
                if name in observed:
                    reason = "used without a gradient, or with products of its own"
            if forward or backward:
                key = owner.name if owner.kind != "parameter" else f"parameter {owner.name}"
                parts[key] = Untreated(owner.name, owner.kind, reason, forward, backward)
        left = tuple(parts.values())
        return StepWork(
            sum(layer.forward for layer in observed.values()) + sum(part.forward for part in left),
            sum(layer.backward for layer in observed.values()) + sum(part.backward for part in left),
            self._recomputed,
            left,
        )


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _obstacle() -> str | None:
    """Return the reason why a dispatch mode may not be entered or left here; None where it may.

    The code that runs around us restores the state of the dispatcher afterwards.
    """
    if _in_backward():
        return "a module first ran inside a backward"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "the model runs inside a transform of torch.func"
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == _DYNAMO:
            return "the model runs inside compiled code; lograd.profile counts it"
        frame = frame.f_back
    return None
