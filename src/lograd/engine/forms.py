"""Linear layers and convolutions that hand the gradient of their output to a catcher before it enters its two products.

Forward and products are the very operators that autograd itself would call, so a catcher that changes nothing leaves
every bit as it was.  The output is not saved: a ReLU may overwrite it in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .autograd import Gradients, Need, differentiable


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
        """The layer is being copied, pickled, traced or exported, and the copy will have no catcher."""

    def move_to(self, device: torch.device) -> None:
        """The layer's parameters are on this device now."""


def cast_as_autocast_would(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any, Any]:
    """The tensors of a layer in the type that autocast gives them; outside of it as they are.

    Autograd records the casts, so that gradients of the parameters come back in their own types.
    """
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
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
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    flat = differentiable(rows, weight, bias, Linear(fused, _by_column(rows), weight.shape[1]), catcher)
    if x.dim() == 2:
        return flat
    # No view: hooks on a view, such as those of fully_shard, are lost when it is changed in place.
    result: Tensor = torch.ops.aten._unsafe_view.default(flat, (*x.shape[:-1], weight.shape[0]))
    return result


def addmm(x: Tensor, weight: Tensor, bias: Tensor, catcher: Catcher) -> Tensor:
    """bias + x weight with the weight stored as (inputs, outputs), as in the Conv1D of transformers."""
    rows = x.view(-1, x.shape[-1])
    flat = differentiable(rows, weight, bias, Addmm(_by_column(rows), weight.shape[0]), catcher)
    return flat.view(*x.shape[:-1], weight.shape[1])


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, catcher: Catcher) -> Tensor:
    """A convolution, transposed or not, of a batch or of one sample."""
    batched = x.dim() == weight.dim()
    result = differentiable(x if batched else x.unsqueeze(0), weight, bias, geometry, catcher)
    return result if batched else result.squeeze(0)


class Linear(NamedTuple):
    """x weight^T + bias of matrices."""

    fused: bool
    """Whether the bias is added inside the product."""
    by_column: bool
    """Whether dX is laid out by columns."""
    inputs: int

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return x.mm(weight.t())
        return torch.addmm(bias, x, weight.t()) if self.fused else x.mm(weight.t()).add_(bias)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        return _for_products(x, weight, need)

    def products(self, g: Tensor, x: Any, weight: Any, catcher: Catcher, need: Need) -> Gradients:
        if catcher.sparse:
            return _sparse_linear(self.inputs, g, x, weight, catcher, need)
        g_x, g_w = catcher.split(g, need[0], need[1] or need[2])
        x, weight = catcher.operands(*_for_products(x, weight, need), (0,))
        d_x = d_weight = None
        if need[0]:
            d_x = weight.t().mm(g_x.t()).t() if self.by_column else g_x.mm(weight)
        if need[1]:
            d_weight = g_w.t().mm(x)
        return d_x, d_weight, g_w.sum(0) if need[2] else None


class Addmm(NamedTuple):
    """x weight + bias of matrices."""

    by_column: bool
    """Whether dX is laid out by columns."""
    inputs: int

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.mm(weight) if bias is None else torch.addmm(bias, x, weight)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        return _for_products(x, weight, need)

    def products(self, g: Tensor, x: Any, weight: Any, catcher: Catcher, need: Need) -> Gradients:
        if catcher.sparse:
            weight = None if weight is None else weight.t()
            d_x, d_weight, d_bias = _sparse_linear(self.inputs, g, x, weight, catcher, need)
            return d_x, None if d_weight is None else d_weight.t(), d_bias
        g_x, g_w = catcher.split(g, need[0], need[1] or need[2])
        x, weight = catcher.operands(*_for_products(x, weight, need), (1,))
        d_x = d_weight = None
        if need[0]:
            d_x = weight.mm(g_x.t()).t() if self.by_column else g_x.mm(weight.t())
        if need[1]:
            d_weight = x.t().mm(g_w)
        return d_x, d_weight, g_w.sum(0) if need[2] else None


class Geometry(NamedTuple):
    """A convolution: its arguments beside the tensors, in the order of aten::convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(x, weight, bias, *self)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """Both: each product reads one of the two, and of the other the shape."""
        return x, weight

    def products(self, g: Tensor, x: Any, weight: Any, catcher: Catcher, need: Need) -> Gradients:
        if catcher.sparse:
            geometry = (*self.stride, *self.padding, *self.dilation, self.groups)
            return catcher.products_of(g, x, weight, geometry, need)
        need_x, need_weight, need_bias = need
        g_x, g_w = catcher.split(g, need_x, need_weight or need_bias)
        for_weight, for_input = catcher.operands(
            x if need_weight else None, weight if need_x else None, (1,) if self.transposed else (0,)
        )
        operands = x if for_weight is None else for_weight, weight if for_input is None else for_input
        if g_x is g_w or not need_x or not (need_weight or need_bias):
            return self._dense_products(g_x if need_x else g_w, operands, need)
        d_x, _, _ = self._dense_products(g_x, operands, (True, False, False))
        _, d_weight, d_bias = self._dense_products(g_w, operands, (False, need_weight, need_bias))
        return d_x, d_weight, d_bias

    def _dense_products(self, g: Tensor, operands: tuple[Tensor, Tensor], need: Need) -> Gradients:
        result: Gradients = torch.ops.aten.convolution_backward.default(
            g, *operands, [g.shape[1]] if need[2] else None, *self, list(need)
        )
        return result


def _sparse_linear(
    inputs: int, g: Tensor, x: Tensor | None, weight: Tensor | None, catcher: Catcher, need: Need
) -> Gradients:
    """With a weight of (outputs, inputs); what is not needed was not saved, and is not read."""
    x = g.new_empty(()).expand(g.shape[0], inputs) if x is None else x
    weight = g.new_empty(()).expand(g.shape[1], inputs) if weight is None else weight
    return catcher.products_of(g, x, weight, (), need)


def _for_products(x: Any, weight: Any, need: Need) -> tuple[Any, Any]:
    """What the products of a linear layer read: x for dW, the weight for dX."""
    return x if need[1] else None, weight if need[0] else None


def _by_column(x: Tensor) -> bool:
    """Autograd lays the gradient of a column-major matrix out by columns, too, and so orders the product otherwise."""
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]
