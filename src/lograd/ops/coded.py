"""Coded tensors: a tensor in few bits per element, as a plain value from which it can be made again exactly.

Operators and treatments that quantize give them; products of integers and packets take them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils import _pytree

from ..errors import InvalidValue
from ..formats import BlockFormat, IntFormat, parse_format
from .layouts import kept_finite


@final
@dataclass(frozen=True)
class Layout:
    """Shape, strides and type of a tensor, and how its codes lie.

    Codes have the shape of the tensor.  Where `order` is given they are a matrix instead: the dimensions of the tensor
    in that order, the last of them as `columns` columns.  A row of codes may be longer than that, as it was filled up
    with zeros to whole blocks.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None = None
    columns: int = 0
    bits: int = 8
    """Bits of a stored code: 8, or 4 where two share a byte."""
    width: int = 0
    """Codes in a row where two share a byte, which holds one or two of them at the end."""

    @classmethod
    def of(cls, x: Tensor) -> Layout:
        """The layout of a tensor without gaps or overlaps, with codes of its own shape."""
        return cls(tuple(x.shape), tuple(x.stride()), x.dtype)

    @classmethod
    def summed_last(cls, x: Tensor, summed: tuple[int, ...]) -> Layout:
        """The layout of a tensor without gaps as a matrix whose columns are the dimensions that a product sums over.

        Without such dimensions the last one is taken.
        """
        sums = (summed or (x.dim() - 1,)) if x.dim() else ()
        order = tuple(dim for dim in range(x.dim()) if dim not in sums) + sums
        columns = math.prod(x.shape[dim] for dim in sums)
        return cls(tuple(x.shape), tuple(x.stride()), x.dtype, order, columns)

    def matrix(self, x: Tensor) -> Tensor:
        """A tensor of this layout as a contiguous matrix with `columns` columns."""
        assert self.order is not None
        return x.permute(self.order).reshape(-1 if self.columns else 0, self.columns).contiguous()

    def shaped(self, values: Tensor) -> Tensor:
        """Codes, or values that lie as they do, in the shape of the tensor; a view where that can be."""
        if self.order is None:
            return values
        moved = values[:, : self.columns].reshape([self.shape[dim] for dim in self.order])
        return moved.permute([self.order.index(dim) for dim in range(len(self.shape))])

    def restore(self, values: Tensor) -> Tensor:
        """Values that lie as the codes do, as a tensor of this layout."""
        return self.laid(self.shaped(values))

    def laid(self, values: Tensor) -> Tensor:
        """Values in the shape of the tensor, with its strides."""
        if values.stride() == self.strides:
            return values
        out = torch.empty_strided(self.shape, self.strides, dtype=values.dtype, device=values.device)
        return out.copy_(values)


# ----------------------------------------------------------------------------------------------------------- transforms


@final
@dataclass(frozen=True, eq=False)
class Householder:
    """Rows were stretched and reflected in groups: the T of `ops.quantize_block_householder`."""

    groups: Tensor
    """int64 (2, rows): the rows group by group, the largest of each first; where in that list each group begins."""
    stretch: Tensor
    """float32 (rows,): the factor of the row at each place of that list, before the reflection."""


@final
@dataclass(frozen=True, eq=False)
class Rotated:
    """Blocks of neighbours in a row were transformed by `ops.hadamard`."""

    block: int
    key: Tensor | None
    """The int64 pair whose first element names the random signs; None where there are none."""


@final
@dataclass(frozen=True)
class ThreeQuarters:
    """Elements of blocks were multiplied by 3/4, so that none is cut off: `variant="unbiased"` of `quantize_blocks`."""


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Elements were mapped by a function of their own; it is undone by looking each code up."""

    values: Tensor
    """(256,) in the type of the tensor: what each code stands for."""


@final
@dataclass(frozen=True, eq=False)
class Folded:
    """Channels were multiplied by factors, those of a weight that a product sums over; decoding divides by them."""

    factors: Tensor
    """float32, one for each channel; 0 for one that the product does not need, which is zero afterwards."""
    dim: int = 1
    """The dimension of the tensor along which its channels lie."""

    def undone(self, x: Tensor) -> Tensor:
        """Return a tensor of multiplied channels divided by the factors; NaN stays NaN."""
        factors = self.factors.reshape([-1 if dim == self.dim % x.dim() else 1 for dim in range(x.dim())])
        return torch.where(factors != 0, x / factors, x * 0)


Transform = Folded | Householder | Rotated | ThreeQuarters | Table
"""What was done to a tensor before its elements were rounded to codes; decoding undoes it."""

# ----------------------------------------------------------------------------------------------------------- the tensor


@final
@dataclass(frozen=True, eq=False)
class CodedTensor:
    """A tensor as codes; `decode` makes it again.

    With V(code) the number that a code of the format stands for, t = `scale` and i the row of an element, its value is

        V(code) / t                             if there is nothing but a scale;
        (code - zero_i) / scale_i               with `zero`, a whole number, where codes are levels;
        (code - zero_i) / scale_i + low_i       with `zero` and `low`, where codes count from 0 up;
        t V(block scale) V(code)                with `block_scales`, for a block format.

    Arithmetic is float32, in this order, so decoding gives the bits that quantizing gives.  Then `transform` is undone.

    Three things have no code.  The sign of zero is lost in integers and in "fnuz" formats: -0.0 becomes 0.0.  Infinity
    has saturated before, as in the operators.  NaN is a code of its own where the format has room; where it has none, a
    scale, a `low` or a block's scale is NaN, so that all that it scales decodes to NaN, and no NaN is lost unseen.
    """

    codes: Tensor
    """uint8."""
    scale: Tensor
    """float32: one for the tensor, or one for each row (first dimension of the codes)."""
    format: str
    """Text of the format, as `parse_format` reads it."""
    layout: Layout
    """Shape, strides and type of the tensor, and bits per stored code."""
    zero: Tensor | None = None
    """float32, as many as `scale`, or one: the code that `low` has, or that zero has where there is no `low`."""
    low: Tensor | None = None
    """float32, as many as `scale`."""
    block_scales: Tensor | None = None
    """uint8: codes of the scales of blocks along the last dimension of the codes."""
    transform: tuple[Transform, ...] = ()
    """In the order in which they are undone."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and of all scales, without the transform."""
        parts = (self.codes, self.scale, self.zero, self.low, self.block_scales)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    @property
    def largest_code(self) -> int:
        """The largest code of a number where codes count from 0 up; one of 255 beyond it is NaN."""
        format = parse_format(self.format)
        assert isinstance(format, IntFormat)
        return int(2**format.bits - (2 if format.symmetric else 1))

    def decode(self, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, in the type that it had, or in another one.

        The bits are those of the quantized tensor if the type is its own.
        """
        dtype = dtype or self.layout.dtype
        folded = next((step for step in self.transform if isinstance(step, Folded)), None)
        if folded is None:
            return self.layout.restore(self._unfolded(dtype))
        values = self.layout.shaped(self._unfolded(torch.float32))
        return self.layout.laid(kept_finite(folded.undone(values), dtype).to(dtype))

    def in_bytes(self) -> Tensor:
        """The codes, one to a byte."""
        layout = self.layout
        codes: Tensor = self.codes if layout.bits == 8 else _operator("unpack_nibbles")(self.codes, layout.width)
        return codes

    def _unfolded(self, dtype: torch.dtype) -> Tensor:
        """Numbers in place of codes, where these lie, before channels are divided by factors."""
        values = self._values(self.in_bytes(), dtype)
        for step in self.transform:
            if isinstance(step, Rotated):
                values = _operator("hadamard")(values, step.block, step.key, True)
        return values

    def _values(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Numbers in place of codes, with all undone that single rows and elements have."""
        first = self.transform[0] if self.transform else None
        if isinstance(first, Table):
            table: Tensor = first.values[codes.long()]
            return table.to(dtype)
        result: Tensor
        if self.block_scales is not None:
            unbiased = isinstance(first, ThreeQuarters)
            result = _operator("dequantize_block_codes")(
                codes, self.block_scales, self.scale, self.format, unbiased, dtype
            )
        elif self.zero is not None and self.low is None:
            result = _operator("dequantize_levels")(codes, self.scale, self.zero, dtype)
        elif self.zero is None or self.low is None:
            result = _operator("dequantize_codes")(codes, self.scale, self.format, dtype)
        else:
            parameters = torch.stack([self.scale, self.low, self.zero])
            if isinstance(first, Householder):
                result = _operator("dequantize_block_householder")(
                    codes, parameters, first.groups, first.stretch, self.largest_code, dtype
                )
            else:
                result = _operator("dequantize_rows")(codes, parameters, self.largest_code, dtype)
        return result

    def in_nibbles(self) -> CodedTensor:
        """Two codes to a byte, for formats of at most 4 bits; refused where a NaN has a code beyond them."""
        format = parse_format(self.format)
        bits = format.element.bits if isinstance(format, BlockFormat) else format.bits
        if bits > 4 or self.layout.bits != 8:
            raise InvalidValue(f"two codes share a byte where each has at most 4 bits of one; these have {bits}.")
        codes, layout = self.codes, self.layout
        if codes.dim() > 2 and self.scale.numel() == 1 and codes.movedim(1, -1).is_contiguous():  # channels last
            order = (0, *range(2, codes.dim()), 1)
            codes = codes.permute(order).flatten(0, -2)
            layout = replace(layout, order=order, columns=codes.shape[1])
        layout = replace(layout, bits=4, width=codes.shape[-1] if codes.dim() else 0)
        return replace(self, codes=_operator("pack_nibbles")(codes), layout=layout)


class Encoded(NamedTuple):
    """A coded tensor, with what was counted on the way."""

    coded: CodedTensor
    counts: Tensor
    """int64: zeros, NaN and saturated elements of the quantized tensor."""


def _operator(name: str) -> Any:
    """An operator of PyTorch's table, whose contract refuses codes and scales that do not fit together."""
    return getattr(torch.ops.lograd, name).default


def _register(kind: type, tensors: tuple[str, ...]) -> None:
    """Make a class a node of PyTorch's trees, so that tree_map reaches its tensors."""

    def flatten(value: Any) -> tuple[list[Any], Any]:
        present = tuple(name for name in tensors if getattr(value, name) is not None)
        rest = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in present}
        return [getattr(value, name) for name in present], (present, rest)

    def unflatten(children: Any, context: Any) -> Any:
        present, rest = context
        return kind(**dict(zip(present, children, strict=True)), **rest)

    _pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=f"lograd.{kind.__name__}")


_register(Householder, ("groups", "stretch"))
_register(Rotated, ("key",))
_register(Folded, ("factors",))
_register(ThreeQuarters, ())
_register(Table, ("values",))
_register(CodedTensor, ("codes", "scale", "zero", "low", "block_scales", "transform"))
