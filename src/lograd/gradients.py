"""Linear layers and convolutions that hand the gradient of their output to a catcher before it enters its two products.

Forward and products are the very operators that autograd itself would call, so a catcher that changes nothing leaves
every bit as it was.  The output is not saved: a ReLU may overwrite it in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .errors import LogradError

Gradients = tuple[Tensor | None, ...]


class Catcher(Protocol):
    """What meets the gradient of a layer's output."""

    def split(self, g: Tensor, input: bool, weight: bool) -> tuple[Tensor, Tensor]:
        """The gradient for the product that gives dX, and for the one that gives dW and the bias.

        `input` and `weight` say which of the two will be used.  One tensor for both makes one pass of the two products.
        It is traced by torch.compile.
        """

    def operands(self, x: Tensor | None, weight: Tensor | None, weight_sums: tuple[int, ...]) -> tuple[Any, Any]:
        """The layer's input as the product for dW takes it, and the weight as the one for dX does, or None.

        The latter sums over the dimensions `weight_sums` of the weight.
        """

    @property
    def sparse(self) -> bool:
        """Whether `products_of` computes the products; else they are dense, of what `split` gives."""

    def products_of(
        self, g: Tensor, x: Tensor, weight: Tensor, geometry: tuple[int, ...], need: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dX, dW and dbias of a linear layer, or of a convolution with stride, padding, dilation and groups in a list.

        What is not needed has no elements, and an operand that is then not read may be any tensor of its shape.
        """

    def tensors(self) -> dict[str, Tensor]:
        """All that changes as gradients pass, by name."""

    def copied(self) -> None:
        """The layer is being copied or pickled, and the copy will have no catcher."""


class Geometry(NamedTuple):
    """The arguments of a convolution beside its tensors, in the order of aten::convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


class DoubleBackward(LogradError, RuntimeError):
    """A second derivative of a treated gradient was asked for."""


def cast_as_autocast_would(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any, Any]:
    """The tensors of a layer in the type that autocast gives them; outside of it as they are.

    Autograd records the casts, so that gradients of the parameters come back in their own types.
    """
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor | None) -> Tensor | None:
        eligible = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if tensor is not None and eligible else tensor

    return cast(x), cast(weight), cast(bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, catcher: Catcher) -> Tensor:
    """F.linear for any leading dimensions."""
    # F.linear adds the bias inside the product only where it can; the sum's bits depend on it.
    fused = bias is not None and x.dim() > 1 and (x.dim() == 2 or x.is_contiguous())
    flat = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias, fused, catcher)  # type: ignore[no-untyped-call]
    result: Tensor = flat.view(*x.shape[:-1], weight.shape[0])
    return result


def addmm(x: Tensor, weight: Tensor, bias: Tensor, catcher: Catcher) -> Tensor:
    """bias + x weight with the weight stored as (inputs, outputs), as in the Conv1D of transformers."""
    flat = _Addmm.apply(x.view(-1, x.shape[-1]), weight, bias, catcher)  # type: ignore[no-untyped-call]
    result: Tensor = flat.view(*x.shape[:-1], weight.shape[1])
    return result


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, catcher: Catcher) -> Tensor:
    """A convolution, transposed or not, of a batch or of one sample."""
    batched = x.dim() == weight.dim()
    result: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
        x if batched else x.unsqueeze(0), weight, bias, geometry, catcher
    )
    return result if batched else result.squeeze(0)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fused: bool, catcher: Catcher) -> Tensor:
        ctx.save_for_backward(*_needed(ctx, x, weight))
        ctx.by_column, ctx.catcher, ctx.inputs = _by_column(x), catcher, weight.shape[1]
        if bias is None:
            return x.mm(weight.t())
        return torch.addmm(bias, x, weight.t()) if fused else x.mm(weight.t()).add_(bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        if ctx.catcher.sparse:
            x, weight = ctx.saved_tensors
            return *_sparse_linear(ctx, g, x, weight), None, None
        g_x, g_w = _caught(ctx, g)
        x, weight = ctx.catcher.operands(*ctx.saved_tensors, (0,))
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = weight.t().mm(g_x.t()).t() if ctx.by_column else g_x.mm(weight)
        if ctx.needs_input_grad[1]:
            d_weight = g_w.t().mm(x)
        return d_x, d_weight, _bias_gradient(ctx, g_w), None, None


class _Addmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, catcher: Catcher) -> Tensor:
        ctx.save_for_backward(*_needed(ctx, x, weight))
        ctx.by_column, ctx.catcher, ctx.inputs = _by_column(x), catcher, weight.shape[0]
        return torch.addmm(bias, x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        if ctx.catcher.sparse:
            x, weight = ctx.saved_tensors
            d_x, d_weight, d_bias = _sparse_linear(ctx, g, x, None if weight is None else weight.t())
            return d_x, None if d_weight is None else d_weight.t(), d_bias, None
        g_x, g_w = _caught(ctx, g)
        x, weight = ctx.catcher.operands(*ctx.saved_tensors, (1,))
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = weight.mm(g_x.t()).t() if ctx.by_column else g_x.mm(weight.t())
        if ctx.needs_input_grad[1]:
            d_weight = x.t().mm(g_w)
        return d_x, d_weight, _bias_gradient(ctx, g_w), None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, catcher: Catcher
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        ctx.geometry, ctx.catcher = geometry, catcher
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        if ctx.catcher.sparse:
            x, weight = ctx.saved_tensors
            stride, padding, dilation, _, _, groups = ctx.geometry
            return *_sparse(ctx, g, x, weight, (*stride, *padding, *dilation, groups)), None, None
        g_x, g_w = _caught(ctx, g)
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        # Each product reads one of the two; of the other it needs the shape only.
        x, weight = ctx.saved_tensors
        for_weight, for_input = ctx.catcher.operands(
            x if need_weight else None, weight if need_x else None, (1,) if ctx.geometry.transposed else (0,)
        )
        x, weight = x if for_weight is None else for_weight, weight if for_input is None else for_input

        def products(gradient: Tensor, mask: list[bool]) -> Gradients:
            result: Gradients = torch.ops.aten.convolution_backward.default(
                gradient, x, weight, ctx.bias_sizes, *ctx.geometry, mask
            )
            return result

        if g_x is g_w or not need_x or not (need_weight or need_bias):
            d_x, d_weight, d_bias = products(g_x if need_x else g_w, [need_x, need_weight, need_bias])
        else:
            d_x, _, _ = products(g_x, [True, False, False])
            _, d_weight, d_bias = products(g_w, [False, need_weight, need_bias])
        return d_x, d_weight, d_bias, None, None


def _sparse_linear(ctx: Any, g: Tensor, x: Tensor | None, weight: Tensor | None) -> Gradients:
    """With a weight of (outputs, inputs); what is not needed was not saved, and is not read."""
    x = g.new_empty(()).expand(g.shape[0], ctx.inputs) if x is None else x
    weight = g.new_empty(()).expand(g.shape[1], ctx.inputs) if weight is None else weight
    return _sparse(ctx, g, x, weight, ())


def _sparse(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, geometry: tuple[int, ...]) -> Gradients:
    _refuse_second_derivatives()
    need = tuple(ctx.needs_input_grad[:3])
    found = ctx.catcher.products_of(g, x, weight, geometry, need)
    return tuple(one if wanted else None for one, wanted in zip(found, need, strict=True))


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise DoubleBackward(
            "a treated gradient cannot be differentiated again (create_graph=True); "
            "take second derivatives after handle.remove()."
        )


def _caught(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
    _refuse_second_derivatives()
    result: tuple[Tensor, Tensor] = ctx.catcher.split(
        g, ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    )
    return result


def _needed(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What the products of a linear layer will read: x for dW, the weight for dX."""
    return x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None


def _by_column(x: Tensor) -> bool:
    """Autograd lays the gradient of a column-major matrix out by columns, too, and so orders the product otherwise."""
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]


def _bias_gradient(ctx: Any, g: Tensor) -> Tensor | None:
    return g.sum(0) if ctx.needs_input_grad[2] else None
