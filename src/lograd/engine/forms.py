"""The dense products of each kind of layer, by the very operators that autograd itself would call.

So treatments that change nothing leave every bit as it was.  The output is not saved: a ReLU may overwrite it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

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


class LinearForm(NamedTuple):
    """x weight^T + bias of matrices."""

    fused: bool
    """True if the bias is added inside the product."""
    by_column: bool
    """True if dX is laid out by columns."""
    inputs: int
    length: int = 1
    """Rows of a sample, where anybody asks."""
    by_input: bool = False
    """True if the weight is stored as (inputs, outputs), as in the Conv1D of transformers."""

    @property
    def geometry(self) -> Geometry:
        """The geometry of a linear layer, which is empty."""
        return LINEAR

    @property
    def transposed(self) -> bool:
        """True for a transposed convolution."""
        return False

    @property
    def numbers(self) -> list[int]:
        """Whole numbers of which `form_of` makes the form again: operators take them."""
        return [0, *map(int, self)]

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return Y."""
        columns = self.oriented(weight).t()
        if bias is None:
            return x.mm(columns)
        return torch.addmm(bias, x, columns) if self.fused else x.mm(columns).add_(bias)

    def saved(self, x: Tensor, weight: Tensor, need: Need) -> tuple[Tensor | None, Tensor | None]:
        """Return the tensors that the backward reads: x for dW, the weight for dX."""
        return x if need[1] else None, weight if need[0] else None

    def summed(self, product: str) -> tuple[int, ...]:
        """Return the dimensions of the weight that a product sums over."""
        return (1,) if (product == "output") != self.by_input else (0,)

    def products(self, g: Tensor, x: Any, weight: Any, need: Need) -> Gradients:
        """Return dX, dW and dbias, None where not needed."""
        d_x = d_weight = None
        if need[0]:
            rows = self.oriented(weight)
            d_x = rows.t().mm(g.t()).t() if self.by_column else g.mm(rows)
        if need[1]:
            d_weight = x.t().mm(g) if self.by_input else g.t().mm(x)
        return d_x, d_weight, g.sum(0) if need[2] else None

    def operands(self, g: Tensor, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x and the weight as (outputs, inputs), for a backend; one that is None only has its shape."""
        return (
            g.new_empty(()).expand(g.shape[0], self.inputs) if x is None else x,
            g.new_empty(()).expand(g.shape[1], self.inputs) if weight is None else self.oriented(weight),
        )

    def oriented(self, weight: Tensor) -> Tensor:
        """Return the weight, or dW, as (outputs, inputs); and one of that orientation as it is stored."""
        return weight.t() if self.by_input else weight


class ConvolutionForm(NamedTuple):
    """A convolution over one, two or three dimensions."""

    geometry: Geometry
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    @property
    def numbers(self) -> list[int]:
        """Whole numbers of which `form_of` makes the form again."""
        stride, padding, dilation, groups = self.geometry
        return [1, int(self.transposed), groups, *stride, *padding, *dilation, *self.output_padding]

    def is_pixelwise(self, weight_shape: Sequence[int]) -> bool:
        """Return True for a convolution of one pixel, which is a linear layer whose rows are pixels."""
        stride, padding, _, groups = self.geometry
        return {*weight_shape[2:], *stride, groups} == {1} and not any(padding) and not self.transposed

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
        """Return the weight, or dW, which a backend takes as it is stored."""
        return weight


Form = LinearForm | ConvolutionForm
"""The dense products of a kind of layer."""


@lru_cache(maxsize=1024)
def form_of(numbers: tuple[int, ...]) -> Form:
    """Return the form that has these `numbers`.

    >>> form_of(tuple(LinearForm(True, False, 16).numbers)) == LinearForm(True, False, 16)
    True
    """
    kind, *rest = numbers
    if kind == 0:
        return LinearForm(bool(rest[0]), bool(rest[1]), rest[2], rest[3], bool(rest[4]))
    transposed, groups, *sizes = rest
    spatial = len(sizes) // (4 if transposed else 3)
    stride, padding, dilation, more = (tuple(sizes[part * spatial : (part + 1) * spatial]) for part in range(4))
    return ConvolutionForm(Geometry(stride, padding, dilation, groups), bool(transposed), more)


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


def lies_by_column(x: Tensor) -> bool:
    """Return True if autograd lays dX out by columns, as it does where x lies so; the order of sums follows."""
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]
