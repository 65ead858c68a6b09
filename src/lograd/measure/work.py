"""Operations of one whole training step, module by module, two for each multiply-add.

A dispatch mode sees every operator of the forward and the backward.  In the forward, hooks tell which module is
running.  In the backward the number of the running autograd node tells it: the forward numbers nodes as it makes them.
PyTorch's own formulas count; those that it lacks, or has wrong, stand at the end of this file.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from ..attachment.selection import FUNCTION, PARAMETER, known_parts, reason_of
from ..engine.layers import kind_of, plain_name, unwrapped, work_of_element
from ..plan import StepWork, Untreated
from .passes import named_modules, weight_of

WHOLE = "(model)"
"""Shown in place of the name of the outermost module, which is empty."""
OUTSIDE = Untreated("(outside the model)", "function", "products of the loss, or around the model")


class LayerWork(NamedTuple):
    """Operations of one observed layer in the counted step: of its forward, and of dX and dW together."""

    forward: int
    backward: int


class WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of one forward and of the backward that follows; the caller enters it around them.

    counter = WorkCounter(model)
    with counter:
        loss(model(x)).backward()
    counter.result(layers, missed)
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problem = ""
        """The reason why the step could not be counted."""
        self.differentiable = False
        """True if the backward records a graph as well (create_graph=True); the observer sets it."""
        self._model = model
        self._modules = dict(named_modules(model))
        named = unwrapped(model).named_parameters()
        self._sources: Any = WeakIdKeyDictionary({parameter: plain_name(name) for name, parameter in named})
        self._hooks: list[Any] = []
        self._inside: list[str] = []
        """Names of the modules whose forward is running, the innermost last."""
        self._times: list[int] = []
        self._places: list[str | None] = []
        """`_places[i]` is the innermost module for autograd nodes numbered from `_times[i]` on."""
        self._owners: dict[int, Untreated] = {}
        """The owner of a product, by the number of the autograd node that the forward made for it."""
        self._forward: dict[Untreated, int] = {}
        self._backward: dict[Untreated, int] = {}
        self._recomputed = 0

    def __enter__(self) -> WorkCounter:
        for name, module in self._modules.items():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no hooks: its products count as its parent's
                self._hooks.append(module.register_forward_pre_hook(partial(self._entered, name)))
                self._hooks.append(module.register_forward_hook(self._left, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _entered(self, name: str, module: nn.Module, args: Any) -> None:
        self._inside.append(name)
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
        if not self.problem:
            try:
                self._count(func, args, kwargs or {}, output)
            except Exception as error:  # whatever an exotic tensor does, the user's step goes on
                self.problem = f"{func} could not be counted ({type(error).__name__}: {error})"
        return output

    def _count(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._follow_cast(operator, args, output)
        count = operations(operator, args, kwargs, output)
        if not count:
            return
        if torch._C._current_graph_task_id() == -1:
            owner = self._owner(args)
            self._owners[torch._C._autograd._get_sequence_nr() - 1] = owner
            self._forward[owner] = self._forward.get(owner, 0) + count
        elif self._inside or (torch.is_grad_enabled() and not self.differentiable):  # what a checkpoint repeats
            self._owners[torch._C._autograd._get_sequence_nr() - 1] = self._owner(args)
            self._recomputed += count
        else:
            owner = self._owner_of_node()
            self._backward[owner] = self._backward.get(owner, 0) + count

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

    def _owner(self, args: tuple[Any, ...]) -> Untreated:
        owner = self._owner_of_place(self._inside[-1] if self._inside else None)
        if owner.reason in (FUNCTION, OUTSIDE.reason):
            operands = (one for one in args if isinstance(one, Tensor) and one.dim() > 1)  # a bias is no operand
            source = next((found for one in operands if (found := self._source(one)) is not None), None)
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
        if self.problem or not (self._forward or observed):
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


# -- the products of a layer --


class Flops(NamedTuple):
    """Operations of the three products in one call of a layer, two for each multiply-add; None for other modules."""

    forward: int | None = None
    input: int | None = None
    """For dX; 0 where the input needs no gradient."""
    weight: int | None = None
    """For dW; 0 where the weight needs none."""

    def plus(self, other: Flops) -> Flops:
        """Return the operations of two calls together."""
        pairs = zip(self, other, strict=True)
        return Flops(*(mine if more is None else more if mine is None else mine + more for mine, more in pairs))


def flops_of(module: nn.Module, x: Any, output: Tensor) -> Flops:
    """Return the operations of the products in one call of a module.

    Args:
        x: the first argument of the call.
        output: its result.
    """
    given = isinstance(x, Tensor)
    if kind_of(module) is None or (isinstance(module, _ConvTransposeNd) and not given):
        return Flops()
    if isinstance(module, _ConvTransposeNd):
        count = x.numel() * (module.out_channels // module.groups) * math.prod(module.kernel_size)
    else:
        count = output.numel() * int(work_of_element(module))
    own = weight_of(module)
    weight_needs = any(one.requires_grad for one in ([own] if own is not None else module.parameters()))
    return Flops(2 * count, 2 * count * (given and x.requires_grad), 2 * count * weight_needs)


# -- operations of an operator --


def operations(operator: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> int:
    """Return the operations of one call of an operator; 0 for one that computes no product."""
    packet = getattr(operator, "overloadpacket", operator)
    if packet in _MULTIPLY_ADDS:
        return 2 * _MULTIPLY_ADDS[packet](*arguments)
    if packet in flop_registry:
        counted: int = flop_registry[packet](*arguments, **keywords, out_val=output)
        return counted
    return 0


def _matrices(first: Tensor, second: Tensor, *_: Any) -> int:
    """Return the multiply-adds of (..., n, m) times (..., m, p)."""
    return first.numel() * second.shape[-1]


def _added_matrices(added: Tensor, first: Tensor, second: Tensor, *_: Any) -> int:
    return _matrices(first, second)


def _linear(x: Tensor, weight: Tensor, *_: Any) -> int:
    return x.numel() * weight.shape[0]


def _convolution_backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: Any, needed: list[bool], *_: Any,
) -> int:  # fmt: skip
    """dX and dW cost as much as the forward each, if they are needed.

    PyTorch's own formula is not used: it counts dW of a grouped convolution once for each group.
    """
    return (needed[0] + needed[1]) * (x if transposed else g).numel() * math.prod(weight.shape[1:])


def _attention(query: Tensor, key: Tensor, *_: Any) -> int:
    """Every query meets every key, and their scores weigh the values, which are as wide here; a mask skips nothing."""
    return 2 * math.prod(query.shape) * key.shape[-2]


def _attention_backward(g: Tensor, query: Tensor, key: Tensor, *_: Any) -> int:
    """The scores are computed again, then the gradients of values, scores, queries and keys."""
    return 5 * math.prod(query.shape) * key.shape[-2]


def _recurrent(x: Tensor, weight_input: Tensor, weight_hidden: Tensor, *_: Any) -> int:
    """One direction of one layer multiplies with both weights at each step of each sample."""
    return math.prod(x.shape[:-1]) * (weight_input.numel() + weight_hidden.numel())


def _recurrent_backward(x: Tensor, weight_input: Tensor, weight_hidden: Tensor, *_: Any) -> int:
    return 2 * _recurrent(x, weight_input, weight_hidden)


def _trilinear(first: Tensor, second: Tensor, third: Tensor, *new: Any) -> int:
    """The product of three tensors in nn.Bilinear, broadcast against each other along new dimensions."""
    shapes = []
    for tensor, dimensions in zip((first, second, third), new[:3], strict=True):
        shape = list(tensor.shape)
        for place in sorted(dimensions):
            shape.insert(place, 1)
        shapes.append(shape)
    return math.prod(max(sizes) for sizes in zip(*shapes, strict=True))


_aten = torch.ops.aten
_MULTIPLY_ADDS: dict[Any, Callable[..., int]] = {
    _aten.linear: _linear,
    _aten.addmm_: _added_matrices,
    _aten._addmm_activation: _added_matrices,
    _aten.baddbmm_: _added_matrices,
    _aten.convolution_backward: _convolution_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten.mkldnn_rnn_layer: _recurrent,
    _aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    _aten._trilinear: _trilinear,
}
