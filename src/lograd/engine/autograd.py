"""The derivatives of a layer whose backward is ours, for plain autograd and for the transforms of torch.func.

A layer is a `Form`: an output that is linear in its input and in its weight, and the three products of its backward.
Plain autograd and torch.compile take `_Layer`.  Under vmap, grad, jvp and forward-mode AD the same form goes through
`_Transformed` and `_Products`, which torch can batch.  They are functions of their own since a rule for jvp keeps
torch.compile away, and since torch looks up the signature of such a function in each call.

Each gradient that arrives under vmap is one gradient: it is treated as it would be if the samples came one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from ..errors import LogradError
from ..ops.library import transforming

Gradients = tuple[Tensor | None, ...]
Need = tuple[bool, bool, bool]


class DoubleBackward(LogradError, RuntimeError):
    """A second derivative of a treated gradient was asked for."""

    def __init__(self) -> None:
        super().__init__(
            "a treated gradient cannot be differentiated again (create_graph=True, torch.func.hessian); take second "
            "derivatives after handle.remove(), and those of sparse layers with the layers of torch.nn."
        )


class NotCompiled(LogradError, RuntimeError):
    """torch.compile was asked for a whole graph of what runs eagerly."""


class Form(Protocol):
    """How a layer computes its output, and the gradients of input, weight and bias."""

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """What `products` will read of the two."""

    def products(self, g: Tensor, x: Any, weight: Any, catcher: Any, need: Need) -> Gradients:
        """dX, dW and dbias from the gradient of the output; anything where one is not needed."""


def differentiable(x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, catcher: Any) -> Tensor:
    """The output of a form.  In its backward `form.products` meets the gradient, with the catcher."""
    transformed = transforming() or forward_ad._current_level >= 0
    if transformed and torch.compiler.is_compiling():
        # It would lose gradients of the weight.  Where it may break the graph, the whole transform now runs eagerly.
        raise NotCompiled("under torch.func an attached or sparse layer runs eagerly; compile without fullgraph=True.")
    function = _Transformed if transformed else _Layer
    result: Tensor = function.apply(x, weight, bias, form, catcher)  # type: ignore[no-untyped-call]
    return result


_torch: Any = torch  # the ways in and out of that vmap are not public
_C: Any = torch._C
_is_batched = getattr(_C._functorch, "is_legacy_batchedtensor", lambda g: False)


class _Batch(NamedTuple):
    """What vmap says of itself."""

    batch_size: int


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, catcher: Any) -> Tensor:
        ctx.save_for_backward(*form.saved(x, weight, ctx.needs_input_grad))
        ctx.form, ctx.catcher = form, catcher
        return form.output(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        need = tuple(ctx.needs_input_grad[:3])
        if torch.compiler.is_compiling():
            return _wanted(ctx.form.products(g, *ctx.saved_tensors, ctx.catcher, need), need)
        if transforming():
            return _transformed_products(ctx, g)
        if torch.is_grad_enabled():
            raise DoubleBackward
        if _is_batched(g):
            return _wanted(_batched_products(ctx, g), need)
        return _wanted(ctx.form.products(g, *ctx.saved_tensors, ctx.catcher, need), need)


class _Transformed(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, catcher: Any) -> Tensor:
        return form.output(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.form, ctx.catcher = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        return _transformed_products(ctx, g)

    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, *others: None) -> Tensor:
        """The derivative of the plain layer: there is no gradient to treat."""
        at_x, at_weight = ctx.saved_tensors
        weight = torch.zeros_like(at_weight) if weight is None else weight
        along: Tensor = ctx.form.output(at_x, weight, bias)
        return along if x is None else along + ctx.form.output(x, at_weight, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        x, weight, bias, form, catcher = inputs
        if in_dims[1] is None and in_dims[2] is None:  # one weight for all: samples are rows, or images, of one batch
            x = x.movedim(in_dims[0], 0)
            samples = x.shape[:2]
            flat = differentiable(x.flatten(0, 1) if x.dim() > 2 else x, weight, bias, form, catcher)
            return flat.view(*samples, *flat.shape[1:]) if x.dim() > 2 else flat, 0
        outputs = [differentiable(*each, form, catcher) for each in _samples(info, in_dims, inputs[:3])]
        return torch.stack(outputs), 0


class _Products(torch.autograd.Function):
    """The backward as a function of its own: torch hands it plain tensors, and refuses to differentiate it."""

    @staticmethod
    def forward(g: Tensor, x: Any, weight: Any, form: Form, catcher: Any, need: Need) -> tuple[Tensor, ...]:
        found = form.products(g, x, weight, catcher, need)
        return tuple(g.new_empty(0) if one is None else one for one in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        raise DoubleBackward

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Gradients:
        raise DoubleBackward

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        found: list[tuple[Tensor, ...]] = [
            _Products.apply(*each, *inputs[3:])  # type: ignore[no-untyped-call]
            for each in _samples(info, in_dims, inputs[:3])
        ]
        return tuple(map(torch.stack, zip(*found, strict=True))), (0, 0, 0)


def _transformed_products(ctx: Any, g: Tensor) -> Gradients:
    need = tuple(ctx.needs_input_grad[:3])
    # A threshold that was made inside of grad is a wrapper without a level once the forward is over.
    catcher = tree_map_only(Tensor, _C._functorch.unwrap_if_dead, ctx.catcher)
    found = _Products.apply(g, *ctx.saved_tensors, ctx.form, catcher, need)  # type: ignore[no-untyped-call]
    return _wanted(found, need)


def _batched_products(ctx: Any, g: Tensor) -> Gradients:
    """The products under autograd.grad(is_grads_batched=True), which has a vmap that is older than torch.func."""
    level = _C._vmapmode_increment_nesting() - 1
    _C._vmapmode_decrement_nesting()
    gradients = _torch._remove_batch_dim(g, level, 1, 0)
    inputs = (gradients, *ctx.saved_tensors, ctx.form, ctx.catcher, tuple(ctx.needs_input_grad[:3]))
    found, _ = _Products.vmap(_Batch(len(gradients)), (0, None, None), *inputs)
    return tuple(_torch._add_batch_dim(one, 0, level) for one in found)


def _wanted(found: Gradients, need: Need) -> Gradients:
    """The gradients of all arguments: a form and a catcher have none."""
    return *(one if wanted else None for one, wanted in zip(found, need, strict=True)), None, None


def _samples(info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Any, ...]) -> list[tuple[Any, Any, Any]]:
    """The arguments of each call of a vmap, in order."""
    first, second, third = (
        [tensor] * info.batch_size if dim is None else tensor.unbind(dim)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    )
    return list(zip(first, second, third, strict=True))
