"""The dense products of each kind of layer, by the very operators that autograd itself would call.

So treatments that change nothing leave every bit as it was.  The output is not saved: a ReLU may overwrite it in place.
`linear`, `addmm` and `convolution` are the layers as functions; in their backward an `Engine` meets the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.geometry import LINEAR, Geometry
from .autograd import Engine, Gradients, Need, differentiable


def cast_as_autocast_would(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any, Any]:
    """Return the tensors of a layer in the type that autocast gives them; outside of it as they are.

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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, engine: Engine) -> Tensor:
    """Return x weight^T + bias for any leading dimensions, as F.linear does."""
    # F.linear adds the bias inside the product only where it can; the sum's bits depend on it.
    fused = bias is not None and x.dim() > 1 and (x.dim() == 2 or x.is_contiguous())
    rows = x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])
    flat = differentiable(rows, weight, bias, Linear(fused, _by_column(rows), weight.shape[1]), engine)
    if x.dim() == 2:
        return flat
    # No view: hooks on a view, such as those of fully_shard, are lost when it is changed in place.
    result: Tensor = torch.ops.aten._unsafe_view.default(flat, (*x.shape[:-1], weight.shape[0]))
    return result


def addmm(x: Tensor, weight: Tensor, bias: Tensor, engine: Engine) -> Tensor:
    """Return bias + x weight with the weight stored as (inputs, outputs), as in the Conv1D of transformers."""
    rows = x.view(x.shape[:-1].numel(), x.shape[-1])
    flat = differentiable(rows, weight, bias, Addmm(_by_column(rows), weight.shape[0]), engine)
    return flat.view(*x.shape[:-1], weight.shape[1])


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, form: Convolution, engine: Engine) -> Tensor:
    """Return a convolution, transposed or not, of a batch or of one sample."""
    batched = x.dim() == weight.dim()
    result = differentiable(x if batched else x.unsqueeze(0), weight, bias, form, engine)
    return result if batched else result.squeeze(0)


class Linear(NamedTuple):
    """x weight^T + bias of matrices."""

    fused: bool
    """True if the bias is added inside the product."""
    by_column: bool
    """True if dX is laid out by columns."""
    inputs: int
    transposed: bool = False

    @property
    def geometry(self) -> Geometry:
        """The geometry of a linear layer, which is empty."""
        return LINEAR

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return Y."""
        if bias is None:
            return x.mm(weight.t())
        return torch.addmm(bias, x, weight.t()) if self.fused else x.mm(weight.t()).add_(bias)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """Return the tensors that the backward reads: x for dW, the weight for dX."""
        return _read(x, weight, need)

    def summed(self, product: str) -> tuple[int, ...]:
        """Return the dimensions of the weight that a product sums over."""
        return (1,) if product == "output" else (0,)

    def products(self, g: Tensor, x: Any, weight: Any, need: Need) -> Gradients:
        """Return dX, dW and dbias, None where not needed."""
        d_x = d_weight = None
        if need[0]:
            d_x = weight.t().mm(g.t()).t() if self.by_column else g.mm(weight)
        if need[1]:
            d_weight = g.t().mm(x)
        return d_x, d_weight, g.sum(0) if need[2] else None

    def operands(self, g: Tensor, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x and the weight as (outputs, inputs), for a backend; one that is None only has its shape."""
        return _shaped(g, self.inputs, x, weight)

    def oriented(self, weight: Tensor) -> Tensor:
        """Return the weight as (outputs, inputs)."""
        return weight

    def as_stored(self, d_weight: Tensor) -> Tensor:
        """Return dW of a weight of (outputs, inputs) in the layer's own orientation."""
        return d_weight


class Addmm(NamedTuple):
    """x weight + bias of matrices."""

    by_column: bool
    """True if dX is laid out by columns."""
    inputs: int
    transposed: bool = False

    @property
    def geometry(self) -> Geometry:
        """The geometry of a linear layer, which is empty."""
        return LINEAR

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return Y."""
        return x.mm(weight) if bias is None else torch.addmm(bias, x, weight)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """Return the tensors that the backward reads: x for dW, the weight for dX."""
        return _read(x, weight, need)

    def summed(self, product: str) -> tuple[int, ...]:
        """Return the dimensions of the weight that a product sums over."""
        return (0,) if product == "output" else (1,)

    def products(self, g: Tensor, x: Any, weight: Any, need: Need) -> Gradients:
        """Return dX, dW and dbias, None where not needed."""
        d_x = d_weight = None
        if need[0]:
            d_x = weight.mm(g.t()).t() if self.by_column else g.mm(weight.t())
        if need[1]:
            d_weight = x.t().mm(g)
        return d_x, d_weight, g.sum(0) if need[2] else None

    def operands(self, g: Tensor, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x and the weight as (outputs, inputs), for a backend; one that is None only has its shape."""
        return _shaped(g, self.inputs, x, None if weight is None else weight.t())

    def oriented(self, weight: Tensor) -> Tensor:
        """Return the weight as (outputs, inputs)."""
        return weight.t()

    def as_stored(self, d_weight: Tensor) -> Tensor:
        """Return dW of a weight of (outputs, inputs) in the layer's own orientation."""
        return d_weight.t()


class Convolution(NamedTuple):
    """A convolution over one, two or three dimensions."""

    geometry: Geometry
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    @property
    def _arguments(self) -> tuple[Any, ...]:
        """The arguments of aten::convolution behind the tensors."""
        stride, padding, dilation, groups = self.geometry
        return stride, padding, dilation, self.transposed, self.output_padding or (0,) * len(stride), groups

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return Y."""
        return torch.convolution(x, weight, bias, *self._arguments)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """Return both operands: each product reads one of the two, and of the other the shape."""
        return x, weight

    def summed(self, product: str) -> tuple[int, ...]:
        """Return the dimensions of the weight that a product sums over; over the kernel, each output sums apart."""
        return (1,) if self.transposed != (product == "output") else (0,)

    def products(self, g: Tensor, x: Any, weight: Any, need: Need) -> Gradients:
        """Return dX, dW and dbias, None where not needed."""
        result: Gradients = torch.ops.aten.convolution_backward.default(
            g, x, weight, [g.shape[1]] if need[2] else None, *self._arguments, list(need)
        )
        return result

    def operands(self, g: Tensor, x: Any, weight: Any) -> tuple[Tensor, Tensor]:
        """Return x and the weight as a backend takes them."""
        return x, weight

    def oriented(self, weight: Tensor) -> Tensor:
        """Return the weight as a backend takes it."""
        return weight

    def as_stored(self, d_weight: Tensor) -> Tensor:
        """Return dW in the layer's own orientation."""
        return d_weight


def _read(x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
    """Return what the backward of a linear layer reads: x for dW, the weight for dX."""
    return x if need[1] else None, weight if need[0] else None


def _shaped(g: Tensor, inputs: int, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x and the weight, with a tensor that has its shape and no memory in the place of one that is not read."""
    return (
        g.new_empty(()).expand(g.shape[0], inputs) if x is None else x,
        g.new_empty(()).expand(g.shape[1], inputs) if weight is None else weight,
    )


def _by_column(x: Tensor) -> bool:
    """Return True if autograd lays dX out by columns, as it does where x lies so; the order of sums follows."""
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]
