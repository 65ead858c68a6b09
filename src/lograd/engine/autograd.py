"""The derivatives of a layer whose backward is ours, for plain autograd and for the transforms of torch.func.

A layer has a `Form`: an output that is linear in its input and in its weight, and the products of its backward.
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
from ..ops.geometry import Geometry
from ..ops.registry import transforming

Gradients = tuple[Tensor | None, ...]
Need = tuple[bool, bool, bool]
Treated = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Activations and weights as the output takes them, None for one that it takes as it is; and factors of the gradient.

The factors are the steps of weights that have one for each output, which belong into dX, and of activations that have
one for each row, which belong into dW: the gradient is multiplied by them before it is rounded, and divided afterwards
(`Setting.fold`).
"""


class DoubleBackward(LogradError, RuntimeError):
    """Raised when a second derivative of a treated gradient is asked for."""

    def __init__(self) -> None:
        super().__init__(
            "a treated gradient cannot be differentiated again (create_graph=True, torch.func.hessian); take second "
            "derivatives after handle.remove(), and those of sparse layers with the layers of torch.nn."
        )


class NotCompiled(LogradError, RuntimeError):
    """Raised when torch.compile is asked for a whole graph of code that runs eagerly."""


Decoded = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Activations, weights, and factors of the gradient's channels and of its rows."""


class Form(Protocol):
    """The dense products of a kind of layer; see `forms`."""

    @property
    def geometry(self) -> Geometry:
        """The geometry of a convolution; that of a linear layer is empty."""

    @property
    def transposed(self) -> bool:
        """True for a transposed convolution."""

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return Y."""

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """Return the two operands for `products` to read, None for one that it does not need."""

    def summed(self, product: str) -> tuple[int, ...]:
        """Return the dimensions of the weight that a product sums over."""

    def products(self, g: Tensor, x: Any, weight: Any, need: Need) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output, densely; anything where one is not needed."""

    def operands(self, g: Tensor, x: Any, weight: Any) -> tuple[Tensor, Tensor]:
        """Return x and the weight as (outputs, inputs, ...), for a backend."""

    def oriented(self, weight: Tensor) -> Tensor:
        """Return the weight as (outputs, inputs, ...), for a backend."""

    def as_stored(self, d_weight: Tensor) -> Tensor:
        """Return dW of such a weight in the layer's own orientation."""


class Engine(Protocol):
    """The object that treats the operands of one layer and computes its products."""

    def hold(self, held: bool) -> None:
        """Let operands of the output change nothing, or let them again; where they are not treated, do nothing."""

    def learning(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the operands, with the ranges that are learned in front of the layer."""

    def coder(self, x: Tensor, weight: Tensor) -> Coder | None:
        """Return what computes the layer from codes of these operands; None where they stay tensors."""

    def for_output(self, x: Tensor, weight: Tensor, form: Form) -> Treated:
        """Return activations and weights as the output takes them, None for one that it takes as it is; and factors."""

    def kept(self, x: Tensor, weight: Tensor, treated: Treated) -> tuple[Tensor, Tensor]:
        """Return activations and weights for the backward to read: those of the output where it shares them."""

    def backward(
        self, form: Form, g: Tensor, x: Any, weight: Any, need: Need, fold: Any = None, rows: Any = None
    ) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output; anything where one is not needed."""


class Coder(Protocol):
    """The object that computes the products of one layer from codes of its operands."""

    @property
    def engine(self) -> Engine:
        """The engine of the layer."""

    def output(self, form: Form, x: Tensor, weight: Tensor, bias: Tensor | None, need: Need) -> tuple[Tensor, ...]:
        """Return Y, and the tensors that `backward` reads."""

    def backward(self, form: Form, g: Tensor, saved: Saved, need: Need) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and the codes of its operands."""

    def decoded(self, form: Form, saved: Saved) -> Decoded:
        """Return activations, weights and factors of the gradient, as the engine's `backward` takes them."""


class Saved(NamedTuple):
    """The operands of a layer as its backward reads them: codes, scale and zero of each, and how they were laid out."""

    tensors: tuple[Tensor, ...]
    x_turned: bool
    weight_turned: bool


def differentiable(x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, engine: Engine) -> Tensor:
    """Return the output of a layer.  In its backward the engine meets the gradient.

    Operands that the output takes in another form are treated straight through: the gradient is that of the product,
    and goes to x and weight as they came.  Only a range that is learned cuts it (`learning`), which torch.func's
    transforms do without.
    """
    if torch.is_grad_enabled():
        return _output(x, weight, bias, form, engine)
    engine.hold(True)  # an evaluation leaves ranges and counters as they are
    try:
        return _output(x, weight, bias, form, engine)
    finally:
        engine.hold(False)


def _output(x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, engine: Engine) -> Tensor:
    transformed = _transformed()
    if not transformed:
        x, weight = engine.learning(x, weight)
    coder = None if transformed else engine.coder(x, weight)
    if coder is not None:
        result: Tensor = _Coded.apply(x, weight, bias, form, coder)  # type: ignore[no-untyped-call]
        return result
    return _applied(x, weight, bias, *engine.for_output(x, weight, form), form, engine)


def _transformed() -> bool:
    """Return True under the transforms of torch.func and in forward-mode AD."""
    return transforming() or forward_ad._current_level >= 0


def _applied(*arguments: Any) -> Tensor:
    """Return the output of a layer by the autograd function that fits where it is called."""
    transformed = _transformed()
    if transformed and torch.compiler.is_compiling():
        # It would lose gradients of the weight.  Where it may break the graph, the whole transform now runs eagerly.
        raise NotCompiled("under torch.func an attached or sparse layer runs eagerly; compile without fullgraph=True.")
    function = _Transformed if transformed else _Layer
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


_torch: Any = torch  # the ways in and out of that vmap are not public
_C: Any = torch._C
_is_batched = getattr(_C._functorch, "is_legacy_batchedtensor", lambda g: False)


class _Batch(NamedTuple):
    """The part of the info of a vmap that is used here."""

    batch_size: int


class _Layer(torch.autograd.Function):
    """The layer for plain autograd and torch.compile."""

    lograd_operands = (0, 1)
    """Places of x and weight among the saved tensors, which `Plan.saved` may round."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, treated_x: Any, treated_weight: Any, fold: Any,
        rows: Any, form: Form, engine: Engine,
    ) -> Tensor:  # fmt: skip
        treated = (treated_x, treated_weight, fold, rows)
        ctx.save_for_backward(*form.saved(*engine.kept(x, weight, treated), ctx.needs_input_grad), fold, rows)
        ctx.form, ctx.engine = form, engine
        return form.output(*_taken(x, weight, treated), bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        need = tuple(ctx.needs_input_grad[:3])
        if not torch.compiler.is_compiling():
            if transforming():
                return _transformed_products(ctx, g, ctx.saved_tensors)
            if torch.is_grad_enabled():
                raise DoubleBackward
            if _is_batched(g):
                return _wanted(_batched_products(ctx, g, ctx.saved_tensors), need)
        x, weight, fold, rows = ctx.saved_tensors
        return _wanted(ctx.engine.backward(ctx.form, g, x, weight, need, fold, rows), need)


class _Coded(torch.autograd.Function):
    """The layer for plain autograd and torch.compile, where codes are saved in the place of its operands."""

    lograd_operands = ()
    """A product, which saves nothing that `Plan.saved` could round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, coder: Coder) -> Tensor:
        y, *saved = coder.output(form, x, weight, bias, ctx.needs_input_grad)
        ctx.save_for_backward(*saved)
        ctx.form, ctx.coder, ctx.engine = form, coder, coder.engine
        ctx.turned = is_turned(x), is_turned(form.oriented(weight))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        need = tuple(ctx.needs_input_grad[:3])
        saved = Saved(ctx.saved_tensors, *ctx.turned)
        if not torch.compiler.is_compiling():
            if transforming():
                return _transformed_products(ctx, g, ctx.coder.decoded(ctx.form, saved), 2)
            if torch.is_grad_enabled():
                raise DoubleBackward
            if _is_batched(g):
                return _wanted(_batched_products(ctx, g, ctx.coder.decoded(ctx.form, saved)), need, 2)
        return _wanted(ctx.coder.backward(ctx.form, g, saved, need), need, 2)


def is_turned(x: Tensor) -> bool:
    """Return True for images that lie channels-last, and for a matrix that lies by columns."""
    if x.dim() == 2:
        return x.stride(0) == 1 and x.stride(1) == x.shape[0] and not x.is_contiguous()
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


class _Transformed(torch.autograd.Function):
    """The layer for the transforms of torch.func."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, treated_x: Any, treated_weight: Any, fold: Any, rows: Any,
        form: Form, engine: Engine,
    ) -> Tensor:  # fmt: skip
        return form.output(*_taken(x, weight, (treated_x, treated_weight, fold, rows)), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, *treated, ctx.form, ctx.engine = inputs
        ctx.save_for_backward(*ctx.engine.kept(x, weight, tuple(treated)), *treated[2:])
        ctx.save_for_forward(*_taken(x, weight, tuple(treated)))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        return _transformed_products(ctx, g, ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, *others: None) -> Tensor:
        """Return the derivative of the layer at its operands: there is no gradient to treat."""
        at_x, at_weight = ctx.saved_tensors
        weight = torch.zeros_like(at_weight) if weight is None else weight
        along: Tensor = ctx.form.output(at_x, weight, bias)
        return along if x is None else along + ctx.form.output(x, at_weight, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        x, weight, bias, treated_x, treated_weight, _, rows, form, engine = inputs
        if in_dims[1] is None and in_dims[2] is None and treated_weight is None:
            # One weight for all: samples are rows, or images, of one batch.
            parts = [
                None if part is None else part.movedim(dim, 0)
                for part, dim in ((x, in_dims[0]), (treated_x, in_dims[3]), (rows, in_dims[6]))
            ]
            samples, several = x.movedim(in_dims[0], 0).shape[:2], x.dim() > 2
            one, treated_one, row = (part.flatten(0, 1) if part is not None and several else part for part in parts)
            flat = _applied(one, weight, bias, treated_one, None, None, row, form, engine)
            return flat.view(*samples, *flat.shape[1:]) if several else flat, 0
        outputs = [_applied(*each, form, engine) for each in _samples(info, in_dims, inputs[:7])]
        return torch.stack(outputs), 0


class _Products(torch.autograd.Function):
    """The backward as a function of its own: torch hands it plain tensors, and refuses to differentiate it."""

    @staticmethod
    def forward(
        g: Tensor, x: Any, weight: Any, fold: Any, rows: Any, form: Form, engine: Engine, need: Need
    ) -> tuple[Tensor, ...]:
        found = engine.backward(form, g, x, weight, need, fold, rows)
        return tuple(g.new_empty(0) if one is None else one for one in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        raise DoubleBackward

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Gradients:
        raise DoubleBackward

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        found: list[tuple[Tensor, ...]] = [
            _Products.apply(*each, *inputs[5:])  # type: ignore[no-untyped-call]
            for each in _samples(info, in_dims, inputs[:5])
        ]
        return tuple(map(torch.stack, zip(*found, strict=True))), (0, 0, 0)


def _transformed_products(ctx: Any, g: Tensor, saved: tuple[Any, ...], count: int = 6) -> Gradients:
    need = tuple(ctx.needs_input_grad[:3])
    # A threshold that was made inside of grad is a wrapper without a level once the forward is over.
    engine = tree_map_only(Tensor, _C._functorch.unwrap_if_dead, ctx.engine)
    found = _Products.apply(g, *saved, ctx.form, engine, need)  # type: ignore[no-untyped-call]
    return _wanted(found, need, count)


def _batched_products(ctx: Any, g: Tensor, saved: tuple[Any, ...]) -> Gradients:
    """Return the products under autograd.grad(is_grads_batched=True), whose vmap is older than torch.func."""
    level = _C._vmapmode_increment_nesting() - 1
    _C._vmapmode_decrement_nesting()
    gradients = _torch._remove_batch_dim(g, level, 1, 0)
    inputs = (gradients, *saved, ctx.form, ctx.engine, tuple(ctx.needs_input_grad[:3]))
    found, _ = _Products.vmap(_Batch(len(gradients)), (0, None, None, None, None), *inputs)
    return tuple(_torch._add_batch_dim(one, 0, level) for one in found)


def _taken(x: Tensor, weight: Tensor, treated: Treated) -> tuple[Tensor, Tensor]:
    """Return the operands of the output."""
    return x if treated[0] is None else treated[0], weight if treated[1] is None else treated[1]


def _wanted(found: Gradients, need: Need, others: int = 6) -> Gradients:
    """Return the gradients of all arguments: treated copies and factors, a form and an engine have none."""
    return *(one if wanted else None for one, wanted in zip(found, need, strict=True)), *(None,) * others


def _samples(info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the arguments of each call of a vmap, in order."""
    columns = (
        [tensor] * info.batch_size if dim is None else tensor.unbind(dim)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    )
    return list(zip(*columns, strict=True))
