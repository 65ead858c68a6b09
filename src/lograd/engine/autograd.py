"""A layer as an autograd function: the engine of the layer computes its output, and meets the gradient in its backward.

`linear`, `addmm` and `convolution` are the layers as functions.  A layer has a `Form`: an output that is linear in its
input and in its weight, and the products of its backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import LogradError
from ..ops.registry import direct, transforming
from .forms import ConvolutionForm, Form, Gradients, LinearForm, Need, is_turned, lies_by_column

PLAIN, VALUES, CODES, BLOCKS = range(4)
"""How a layer treats the operands of its output: not at all, as tensors, as codes, or as codes in blocks."""


class DoubleBackward(LogradError, RuntimeError):
    """Raised when a second derivative of a treated gradient is asked for."""

    def __init__(self) -> None:
        super().__init__(
            "a treated gradient cannot be differentiated again (create_graph=True, torch.func.hessian); take second "
            "derivatives after handle.remove(), and those of sparse layers with the layers of torch.nn."
        )


class NotTransformed(LogradError, RuntimeError):
    """Raised under the transforms of torch.func, forward-mode AD and batched gradients."""

    def __init__(self) -> None:
        super().__init__(
            "attached, sparse and integer layers do not run under torch.func (vmap, grad, jvp), forward-mode AD or "
            "is_grads_batched=True; call handle.remove() first, or use the layers of torch.nn."
        )


class Call(NamedTuple):
    """One use of a layer: what its backward has to know beside the tensors."""

    mode: int
    form: Form
    need: Need
    """Which of dX, dW and dbias are wanted, be it for what is learned in front of the layer."""
    x_shape: torch.Size
    weight_shape: torch.Size
    x_turned: bool
    weight_turned: bool
    """The layouts of x and weight (`is_turned`), which dX and dW get."""
    learns: tuple[bool, bool]
    """Whether ranges of the activations and of the weights are learned."""


Engine = Any
"""A `LayerEngine`, which imports this module."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, engine: Engine) -> Tensor:
    """Return x weight^T + bias for any leading dimensions, as F.linear does."""
    # F.linear adds the bias inside the product only where it can; the sum's bits depend on it.
    fused = bias is not None and x.dim() > 1 and (x.dim() == 2 or x.is_contiguous())
    rows = x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])
    form = LinearForm(fused, lies_by_column(rows), weight.shape[1], _length(x, engine))
    flat = differentiable(rows, weight, bias, form, engine)
    if x.dim() == 2:
        return flat
    # No view: hooks on a view, such as those of fully_shard, are lost when it is changed in place.
    result: Tensor = torch.ops.aten._unsafe_view.default(flat, (*x.shape[:-1], weight.shape[0]))
    return result


def addmm(x: Tensor, weight: Tensor, bias: Tensor, engine: Engine) -> Tensor:
    """Return bias + x weight with the weight stored as (inputs, outputs), as in the Conv1D of transformers."""
    rows = x.view(x.shape[:-1].numel(), x.shape[-1])
    form = LinearForm(True, lies_by_column(rows), weight.shape[0], _length(x, engine), by_input=True)
    flat = differentiable(rows, weight, bias, form, engine)
    return flat.view(*x.shape[:-1], weight.shape[1])


def _length(x: Tensor, engine: Engine) -> int:
    """Return the rows of a sample, where anybody asks: compiled code then holds for this length alone."""
    return x.shape[1:-1].numel() if engine.by_sample else 1


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, form: ConvolutionForm, engine: Engine) -> Tensor:
    """Return a convolution, transposed or not, of a batch or of one sample."""
    batched = x.dim() == weight.dim()
    result = differentiable(x if batched else x.unsqueeze(0), weight, bias, form, engine)
    return result if batched else result.squeeze(0)


def differentiable(x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, engine: Engine) -> Tensor:
    """Return the output of a layer.  In its backward the engine meets the gradient.

    Operands that the output takes in another form are treated straight through: the gradient is that of the product,
    and goes to x and weight as they came.  Only a range that is learned cuts it.
    """
    if transforming() or forward_ad._current_level >= 0:
        raise NotTransformed
    mode = engine.mode(x, weight)
    if not torch.is_grad_enabled():
        y: Tensor = engine.output(_call(mode, form, (False, False, False), x, weight), x, weight, bias, True)[0]
        return y
    function = _Layer if mode < CODES else _Coded
    result: Tensor = function.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, *engine.learned_ranges(x, weight), form, engine, mode
    )
    return result


def _call(
    mode: int, form: Form, need: Need, x: Tensor, weight: Tensor, learns: tuple[bool, bool] = (False, False)
) -> Call:
    return Call(mode, form, need, x.shape, weight.shape, is_turned(x), is_turned(weight), learns)


class _Layer(torch.autograd.Function):
    """The layer, which saves activations and weights."""

    lograd_operands: tuple[int, ...] = (0, 1)
    """Places of x and weight among the saved tensors, which `Plan.saved` may round."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, learned_x: Any, learned_weight: Any, form: Form,
        engine: Engine, mode: int,
    ) -> Tensor:  # fmt: skip
        learns = learned_x is not None, learned_weight is not None
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        ctx.call = _call(mode, form, (need_x or learns[0], need_weight or learns[1], need_bias), x, weight, learns)
        ctx.engine = engine
        y: Tensor
        y, saved = engine.output(ctx.call, x, weight, bias, False)
        ctx.save_for_backward(*saved, *(tensor for tensor, one in ((x, learns[0]), (weight, learns[1])) if one))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        if not torch.compiler.is_compiling():
            if transforming() or _is_batched(g):
                raise NotTransformed
            if torch.is_grad_enabled():
                raise DoubleBackward
        compute = ctx.engine.compute_backward if direct(g) else ctx.engine.traced_backward
        found = compute(ctx.call, g, ctx.saved_tensors)
        wanted = zip(found, (*ctx.call.need, *ctx.call.learns), strict=False)
        gradients = [one if is_wanted else None for one, is_wanted in wanted]
        return *gradients, *(None,) * (8 - len(gradients))


class _Coded(_Layer):
    """The layer, which saves codes: nothing that `Plan.saved` could round."""

    lograd_operands = ()


_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda g: False)
