"""The dense products of each kind of layer, by the very operators that autograd itself would call.

So treatments that change nothing leave every bit as it was.  The output is not saved: a ReLU may overwrite it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..ops.geometry import LINEAR, Geometry

Need = tuple[bool, bool, bool]
"""Which of dX, dW and dbias are wanted."""
Gradients = tuple[Tensor | None, ...]


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


class Form(Protocol):
    """The dense products of a kind of layer."""

    @property
    def geometry(self) -> Geometry:
        """The geometry of a convolution; that of a linear layer is empty."""

    @property
    def transposed(self) -> bool:
        """True for a transposed convolution."""

    @property
    def numbers(self) -> list[int]:
        """Whole numbers of which `form_of` makes the form again: operators take them."""

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


class Linear(NamedTuple):
    """x weight^T + bias of matrices."""

    fused: bool
    """True if the bias is added inside the product."""
    by_column: bool
    """True if dX is laid out by columns."""
    inputs: int
    length: int = 1
    """Rows of a sample, where anybody asks."""
    geometry: Geometry = LINEAR
    transposed: bool = False

    @property
    def numbers(self) -> list[int]:
        """Whole numbers of which `form_of` makes the form again."""
        return [0, int(self.fused), int(self.by_column), self.inputs, self.length]

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
    length: int = 1
    """Rows of a sample, where anybody asks."""
    geometry: Geometry = LINEAR
    transposed: bool = False

    @property
    def numbers(self) -> list[int]:
        """Whole numbers of which `form_of` makes the form again."""
        return [1, int(self.by_column), self.inputs, self.length]

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
    def numbers(self) -> list[int]:
        """Whole numbers of which `form_of` makes the form again."""
        stride, padding, dilation, groups = self.geometry
        return [2, int(self.transposed), groups, *stride, *padding, *dilation, *self.output_padding]

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


@lru_cache(maxsize=1024)
def form_of(numbers: tuple[int, ...]) -> Form:
    """Return the form that has these `numbers`.

    >>> form_of(tuple(Linear(True, False, 16).numbers)) == Linear(True, False, 16)
    True
    """
    kind, *rest = numbers
    if kind == 0:
        return Linear(bool(rest[0]), bool(rest[1]), rest[2], rest[3])
    if kind == 1:
        return Addmm(bool(rest[0]), rest[1], rest[2])
    transposed, groups, *sizes = rest
    spatial = len(sizes) // (4 if transposed else 3)
    stride, padding, dilation, more = (tuple(sizes[part * spatial : (part + 1) * spatial]) for part in range(4))
    return Convolution(Geometry(stride, padding, dilation, groups), bool(transposed), more)


def is_turned(x: Tensor) -> bool:
    """Return True for images that lie channels-last, and for a matrix that lies by columns."""
    if x.is_contiguous():
        return False
    if x.dim() == 2:
        return x.stride(0) == 1 and x.stride(1) == x.shape[0]
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def laid_out(x: Tensor, turned: bool) -> Tensor:
    """Return a result in the layout that tracers were promised: `turned` as by `is_turned`, or contiguous."""
    if turned:
        return x.t().contiguous().t() if x.dim() == 2 else x.contiguous(memory_format=torch.channels_last)
    if x.dim() == 2:
        return x.contiguous()
    # Where dimensions have one element, strides of channels-last images pass for contiguous ones.
    return x.contiguous().view(x.shape) if x.dim() < 4 or x.shape[2] > 1 < x.shape[3] else x.reshape(-1).view(x.shape)


def empty(like: Tensor, shape: Sequence[Any], turned: bool) -> Tensor:
    """Return a tensor without values, laid out as `laid_out` does it."""
    if not turned:
        return like.new_empty(shape)
    if len(shape) == 2:
        return like.new_empty(shape[::-1]).t()
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _read(x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
    """Return what the backward of a linear layer reads: x for dW, the weight for dX."""
    return x if need[1] else None, weight if need[0] else None


def _shaped(g: Tensor, inputs: int, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x and the weight, with a tensor that has its shape and no memory in the place of one that is not read."""
    return (
        g.new_empty(()).expand(g.shape[0], inputs) if x is None else x,
        g.new_empty(()).expand(g.shape[1], inputs) if weight is None else weight,
    )


def lies_by_column(x: Tensor) -> bool:
    """Return True if autograd lays dX out by columns, as it does where x lies so; the order of sums follows."""
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]
