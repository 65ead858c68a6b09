"""Products of coded tensors in exact integers: a linear layer and a convolution with their backward, and matrices.

Codes are multiplied as they are; only sums become float32, scaled once.  Results are float32 and exact up to these few
roundings, the same bits on any machine and for any number of threads.  NaN comes from a scale: where that of an operand
is NaN, so is the result.

Operands whose scales cannot be taken out of the sum are refused in one sentence; `reason_not_integer` gives it without
an error.  Convolutions give channels-last memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue
from ..formats import BlockFormat, parse_format
from . import scaled_products
from .blocks import block_coding_of
from .coded import CodedTensor, Folded, ThreeQuarters
from .codes import levels_of
from .geometry import Geometry, check_geometry
from .registry import call
from .scaled_products import Steps

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
Product = Literal["output", "input_gradient", "weight_gradient"]

OPERANDS: dict[str, tuple[str, str]] = {
    "output": ("the activations", "the weights"),
    "input_gradient": ("the gradient", "the weights"),
    "weight_gradient": ("the gradient", "the activations"),
}
"""The two operands of each product, in words."""


def integer_linear(x: CodedTensor, weight: CodedTensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, as float32.

    Args:
        x: (..., inputs); one scale, one for each row (first dimension), or blocks along the inputs.
        weight: (outputs, inputs); one scale, one for each output, or blocks along the inputs.
        bias: (outputs,).
    """
    _check_coded(x=x, weight=weight)
    shape = _linear_shape(x, weight)
    a, b = _operands("output", x, weight)
    return _rows_times_rows(a, b, _float(bias)).view(shape)


def integer_linear_backward(
    g: CodedTensor, x: CodedTensor | None, weight: CodedTensor | None, need: Sequence[bool] = (True, True, True)
) -> Gradients:
    """dX, dW and dbias of a linear layer as float32, None where `need` says that one is not wanted.

    Args:
        g: the gradient of the result, (..., outputs).  Where the weight has a scale for each output, dX needs a
            gradient that was multiplied by `fold_of(weight)` before it was quantized.
        x, weight: as in `integer_linear`; None is enough for one that is not needed: dX needs the weight, dW needs x.
        need: whether dX, dW and dbias are wanted.
    """
    _check_coded(g=g, **({"weight": weight} if need[0] else {}), **({"x": x} if need[1] else {}))
    d_x = d_weight = None
    if need[0]:
        assert weight is not None
        outputs, inputs = _matrix_shape(weight)
        if not g.layout.shape or g.layout.shape[-1] != outputs:
            raise InvalidValue(
                f"a weight of {(outputs, inputs)} gives results of (..., {outputs}); got a gradient of "
                f"{tuple(g.layout.shape)}."
            )
        a, b = _operands("input_gradient", g, weight)
        d_x = _rows_times_rows(a, b, None).view(*g.layout.shape[:-1], inputs)
    if need[1]:
        assert x is not None
        if x.layout.shape[:-1] != g.layout.shape[:-1]:
            raise InvalidValue(
                f"g and x must have the same rows; got shapes {tuple(g.layout.shape)} and {tuple(x.layout.shape)}."
            )
        a, b = _operands("weight_gradient", g, x)
        d_weight = _rows_times_rows(a, b, None)
    return d_x, d_weight, _column_sums(g, len(g.layout.shape) - 1) if need[2] else None


def integer_convolution(
    x: CodedTensor, weight: CodedTensor, bias: Tensor | None = None, geometry: Geometry | None = None
) -> Tensor:
    """The convolution of x with weight, plus bias, as float32 in channels-last memory.

    Args:
        x: (batch, channels, width) or (batch, channels, height, width); one scale for the tensor.
        weight: (outputs, channels / groups, ...); one scale, or one for each output.
        bias: (outputs,).
        geometry: stride, padding, dilation and groups; stride 1 without padding if not given.
    """
    _check_coded(x=x, weight=weight)
    geometry = _geometry(geometry, x)
    a, b = _operands("output", x, weight, convolution=True)
    columns = Steps((b.step.reshape(-1), a.step.reshape(-1)))
    return scaled_products.scaled_convolution(a.codes, b.codes, a.zero, b.zero, columns, _float(bias), geometry)


def integer_convolution_backward(
    g: CodedTensor,
    x: CodedTensor | Sequence[int],
    weight: CodedTensor | Sequence[int],
    geometry: Geometry | None = None,
    need: Sequence[bool] = (True, True, True),
) -> Gradients:
    """dX, dW and dbias of a convolution as float32, None where not needed; dX and dW in channels-last memory.

    Arguments as in `integer_linear_backward`, with the geometry of the convolution.  For an x or a weight that is not
    needed its shape is enough.
    """
    _check_coded(g=g, **({"weight": weight} if need[0] else {}), **({"x": x} if need[1] else {}))
    geometry = _geometry(geometry, g)
    x_shape, weight_shape = (each.layout.shape if isinstance(each, CodedTensor) else each for each in (x, weight))
    shape = check_geometry(x_shape, weight_shape, *geometry)
    if g.layout.shape != shape:
        raise InvalidValue(f"g must have the shape of the layer's result, {shape}; got {tuple(g.layout.shape)}.")
    d_x = d_weight = None
    if need[0]:
        assert isinstance(weight, CodedTensor)
        a, b = _operands("input_gradient", g, weight, convolution=True)
        d_x = scaled_products.convolution_input_gradient(
            a.codes, b.codes, a.zero, b.zero, Steps((a.step, b.step)), geometry, x_shape[2:]
        )
    if need[1]:
        assert isinstance(x, CodedTensor)
        a, b = _operands("weight_gradient", g, x, convolution=True)
        rows = Steps((a.step, b.step), None if a.folded is None else a.folded.factors)
        d_weight = scaled_products.convolution_weight_gradient(
            a.codes, b.codes, a.zero, b.zero, rows, geometry, weight_shape[2:]
        )
    return d_x, d_weight, _column_sums(g, 1) if need[2] else None


def integer_matmul(a: CodedTensor, b: CodedTensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """a @ b of matrices or of batches of them, as float32: the products of attention, forward and backward.

    Args:
        a, b: (..., rows, columns), with the same leading dimensions and one scale for the tensor.
        transpose_a, transpose_b: use each matrix of a batch transposed, which costs nothing.
    """
    _check_coded(a=a, b=b)
    first, second = (_operand(name, coded, ()) for name, coded in (("a", a), ("b", b)))
    for each in (first, second):
        if each.by_row or each.blocks is not None or each.folded is not None:
            raise InvalidValue(f"{each.name} of a product of batches must have one scale for the tensor.")
    one, other = first.codes, second.codes
    if one.dim() < 2 or one.shape[:-2] != other.shape[:-2]:
        raise InvalidValue(
            "a product takes matrices, or batches with the same leading dimensions; got "
            f"{tuple(one.shape)} and {tuple(other.shape)}."
        )
    batch = one.shape[:-2]
    if len(batch) != 1:  # the operator knows one dimension of batches, or none
        one, other = (each.reshape(batch.numel(), *each.shape[-2:]) for each in (one, other))
    one, other = one.mT if transpose_a else one, other.mT if transpose_b else other
    steps = Steps((first.step,)), Steps((second.step,))
    result = scaled_products.matmul(one, other, first.zero, second.zero, *steps, None)
    return result.view(*batch, *result.shape[-2:])


def fold_of(weight: CodedTensor) -> Tensor | None:
    """The factors by which a gradient is multiplied, channel by channel, before it is quantized; None if by none.

    They are the steps of a weight with a scale for each output, over which dX sums, divided by a power of two near the
    largest of them; 0 where all weights of an output are zero.  The product for dW needs no factors, and where steps
    differ much they coarsen it: quantize the gradient once more without them.
    """
    return fold_by(weight.scale.reciprocal()).factors if weight.scale.numel() > 1 else None


def reason_not_integer(
    product: Product, first: CodedTensor, second: CodedTensor, *, convolution: bool = False
) -> str | None:
    """The reason why two coded tensors cannot meet in an integer product, as a sentence; None if they can.

    Args:
        product: "output" (of activations and weights), "input_gradient" (of the gradient and weights) or
            "weight_gradient" (of the gradient and activations), of which `first` and `second` are the operands.
        convolution: True for the product of a convolution, False for that of a linear layer.
    """
    _check_coded(first=first, second=second)
    try:
        _operands(product, first, second, convolution)
    except InvalidValue as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------------------------------------- operands

# A scale is separable if it can be taken out of a product's sum: one for the tensor, or one for each row of the result.
# Scales along the dimension that is summed over are not, unless the other operand was multiplied by them before it was
# quantized (`Folded`), or they belong to whole blocks, whose sums are scaled one by one.


class _Operand(NamedTuple):
    """The levels of a coded tensor: an element is (code - zero) step, divided by its channel's factor if folded."""

    name: str
    """The word for it in a message."""
    codes: Tensor
    """uint8, in the shape of the tensor; as a matrix with the blocks in its rows where there are blocks."""
    zero: int
    step: Tensor
    """float32: one for the tensor, or one for each row (first dimension)."""
    folded: Folded | None = None
    blocks: Tensor | None = None
    """float32 (rows, blocks): the scale of each block."""
    size: int = 0
    """Elements in a block."""

    @property
    def by_row(self) -> bool:
        """True if rows have scales of their own."""
        return self.step.numel() > 1


class Fold(NamedTuple):
    """The factors of a gradient's channels that stand for the steps of a weight, over which dX sums."""

    factors: Tensor
    """float32: the steps over `unit`; 0 for outputs whose weights are all zero, which are no part of dX."""
    unit: float
    """A power of two near the largest step, by which dX is multiplied: the bits are those of the steps themselves, but
    the product with a small gradient does not underflow."""


def fold_by(step: Tensor) -> Fold:
    """Return the factors for a weight with one step for each output."""
    step = torch.where(step > 0, step, 0.0)  # NaN, the step of weights that are not finite, becomes 0, too
    largest = float(step.max()) if step.numel() else 0.0
    unit = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0
    return Fold(step / unit, unit)


def _operand(name: str, coded: CodedTensor, summed: Sequence[int]) -> _Operand:
    """The levels of a coded tensor; refused, with the reason, where it has none.

    Args:
        name: the word for it in a message.
        summed: the dimensions of the tensor that the product sums over.
    """
    folded = next((step for step in coded.transform if isinstance(step, Folded)), None)
    others = [step for step in coded.transform if step is not folded and not isinstance(step, ThreeQuarters)]
    if others:
        raise InvalidValue(
            f"codes of {name} are not those of its elements, which were transformed ({type(others[0]).__name__}) "
            "before they were rounded."
        )
    if coded.block_scales is not None:
        return _in_blocks(name, coded, coded.block_scales, summed)
    codes = coded.layout.shaped(coded.in_bytes())
    if coded.zero is None:
        levels = levels_of(coded.format)
        if not levels.identity:
            codes = call("code_levels", codes, coded.format)
        return _Operand(name, codes, levels.zero, levels.factor / coded.scale, folded)
    return _Operand(name, codes, _zero_of(name, coded.zero), _step_of(name, coded, codes), folded)


def _zero_of(name: str, zero: Tensor) -> int:
    """The whole number that all rows have as the code of zero."""
    value = float(zero.reshape(-1)[0]) if zero.numel() else 0.0
    if zero.numel() > 1 and not bool((zero == value).all()):
        raise InvalidValue(f"rows of {name} have different codes for zero; integer products take one for all.")
    if not (value.is_integer() and 0 <= value <= 255):
        raise InvalidValue(f"the code of zero of {name} must be a whole number from 0 to 255; got {value:g}.")
    return int(value)


def _step_of(name: str, coded: CodedTensor, codes: Tensor) -> Tensor:
    """1 / scale; NaN where a code is beyond the format, as that is a NaN among codes that count from `low` up."""
    step = coded.scale.reciprocal()
    if coded.low is None:
        return step
    if bool((coded.low != 0).any()):  # a NaN is none
        raise InvalidValue(f"codes of {name} count from a `low` that is not zero, so they are no multiples of a step.")
    if coded.largest_code < 255 and codes.numel():
        step = torch.where(codes.max() > coded.largest_code, torch.nan, step)
    return step


def _in_blocks(name: str, coded: CodedTensor, scales: Tensor, summed: Sequence[int]) -> _Operand:
    """A matrix whose rows are whole blocks along the dimensions that are summed over."""
    format = parse_format(coded.format)
    assert isinstance(format, BlockFormat)
    layout, dims = coded.layout, len(coded.layout.shape)
    last = layout.order if layout.order is not None else tuple(range(dims))
    lengths = [layout.shape[dim] for dim in summed]
    columns = layout.columns if layout.order is not None else (layout.shape[-1] if dims else 1)
    if tuple(last[dims - len(summed) :]) != tuple(summed) or torch.Size(lengths).numel() != columns:
        raise InvalidValue(
            f"blocks of {name} lie along another dimension than the product sums over, so their scales are not "
            "separable; quantize it for this product."
        )
    codes, levels = coded.in_bytes(), levels_of(coded.format)
    if not levels.identity:
        codes = call("code_levels", codes, coded.format)
    blocks = -(-columns // format.size)
    rows = codes.numel() // codes.shape[-1] if codes.numel() else 0
    matrix = codes.reshape(rows, codes.shape[-1] if dims else 1)[:, :columns]
    matrix = torch.nn.functional.pad(matrix, (0, blocks * format.size - columns), value=levels.zero)
    values = _scale_table(coded.format, scales.device)[scales.reshape(rows, -1)[:, :blocks].long()]
    unbiased = any(isinstance(step, ThreeQuarters) for step in coded.transform)
    step = coded.scale * (levels.factor * 4 / 3 if unbiased else levels.factor)
    return _Operand(name, matrix, levels.zero, step, None, values, format.size)


@lru_cache(maxsize=64)
def _scale_table(format: str, device: torch.device) -> Tensor:
    return block_coding_of(format, False).scale.table(device)


def _operands(
    product: Product, first: CodedTensor, second: CodedTensor, convolution: bool = False
) -> tuple[_Operand, _Operand]:
    """The two operands of a product as levels; matrices with the summed dimension last in a linear layer."""
    summed = _summed(product, first, second, convolution)
    names = OPERANDS[product]
    a, b = _operand(names[0], first, summed[0]), _operand(names[1], second, summed[1])
    for each, over in ((a, summed[0]), (b, summed[1])):
        if each.blocks is not None and convolution:
            raise InvalidValue(f"scales of {each.name} belong to blocks; convolutions in integers take none of these.")
        if each.by_row and 0 in over and product != "input_gradient":
            raise InvalidValue(f"the product sums over the rows of {each.name}, which have scales of their own.")
        if each.by_row and convolution and each is a:
            raise InvalidValue(f"samples of {each.name} have scales of their own; a convolution takes one for all.")
    _check_folding(product, a, b, 1 if convolution else len(first.layout.shape) - 1)
    if product == "input_gradient" and a.folded is not None:  # the factors were the steps of the weights
        a, b = a._replace(folded=None), b._replace(step=torch.full_like(a.step, fold_by(b.step).unit))
    return (a, b) if convolution else (_matrix(a, summed[0]), _matrix(b, summed[1]))


def _summed(
    product: Product, first: CodedTensor, second: CodedTensor, convolution: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of either operand that a product sums over."""
    dims = len(first.layout.shape)
    pixels = tuple(range(2, dims)) if convolution else ()
    inner = (1, *pixels) if convolution else (dims - 1,)
    if product == "output":
        return inner, (1, *pixels)
    if product == "input_gradient":
        return inner, (0, *pixels)
    rows = (0, *pixels) if convolution else tuple(range(dims - 1))
    return rows, rows


def _check_folding(product: Product, a: _Operand, b: _Operand, channel: int) -> None:
    """Refuse factors of channels that the other operand does not cancel, and scales that no factors cancel."""
    if b.folded is not None or (product == "output" and a.folded is not None):
        raise InvalidValue("only a gradient may be multiplied by factors of channels before it is quantized.")
    if a.folded is not None and a.folded.dim % a.codes.dim() != channel:
        raise InvalidValue(
            f"factors of the gradient lie along dimension {a.folded.dim}; its channels are dimension {channel}."
        )
    if product == "weight_gradient":
        _check_no_output_is_lost(a)
    if product != "input_gradient" or (a.folded is None and not b.by_row):
        return
    if a.folded is None:
        raise InvalidValue(
            "the product sums over the rows of the weights, which have scales of their own; multiply the gradient by "
            "`fold_of(weight)` before it is quantized."
        )
    if not b.by_row or not torch.equal(a.folded.factors, fold_by(b.step).factors):
        raise InvalidValue("the gradient was multiplied by other factors than the steps of these weights.")


def _check_no_output_is_lost(g: _Operand) -> None:
    """Refuse dW and dbias of a gradient that factors of 0 have left without some of its outputs."""
    if g.folded is not None and not bool(g.folded.factors.all()):
        raise InvalidValue(
            "outputs of the gradient were multiplied by 0, as their weights are zero; for dW and dbias quantize the "
            "gradient once more without factors."
        )


def _matrix(each: _Operand, summed: tuple[int, ...]) -> _Operand:
    """The operand as a matrix of (rows of the result, what is summed over), with a step for each row if for any."""
    if each.blocks is not None:
        return each
    codes, step = each.codes, each.step
    matrix = codes.reshape(codes.shape[:-1].numel(), codes.shape[-1])
    if summed != (codes.dim() - 1,):
        return each._replace(codes=matrix.t())
    if each.by_row and len(step) != len(matrix):
        step = step.repeat_interleave(len(matrix) // len(step))
    return each._replace(codes=matrix, step=step)


# ------------------------------------------------------------------------------------------------------------- products


def _rows_times_rows(a: _Operand, b: _Operand, bias: Tensor | None) -> Tensor:
    """a b^T, scaled, of matrices (rows, summed)."""
    if a.blocks is not None or b.blocks is not None:
        return _blocks_times_blocks(a, b, bias)
    rows = Steps((a.step,), None if a.folded is None else a.folded.factors)
    return scaled_products.matmul(a.codes, b.codes.t(), a.zero, b.zero, rows, Steps((b.step,)), bias)


def _blocks_times_blocks(a: _Operand, b: _Operand, bias: Tensor | None) -> Tensor:
    """a b^T where one or both have scales for blocks; the other has its steps in place of them."""
    size = math.gcd(a.size, b.size)
    width = max(each.codes.shape[1] for each in (a, b))
    (first, one), (second, other) = (_with_blocks(each, size, width) for each in (a, b))
    step = Steps(tuple(each.step for each in (a, b) if each.blocks is not None))
    return scaled_products.block_matmul(first, second, a.zero, b.zero, one, other, step, bias, size)


def _with_blocks(each: _Operand, size: int, width: int) -> tuple[Tensor, Tensor]:
    """Codes in rows of `width`, and the scale of each block of `size`."""
    codes = torch.nn.functional.pad(each.codes, (0, width - each.codes.shape[1]), value=each.zero)
    count = width // size
    if each.blocks is None:
        step = each.step if each.folded is None else each.step / each.folded.factors
        return codes, step.reshape(-1, 1).expand(len(codes), count).contiguous()
    scales = each.blocks.repeat_interleave(each.size // size, dim=1)
    return codes, torch.nn.functional.pad(scales, (0, count - scales.shape[1]), value=1.0)


def _column_sums(g: CodedTensor, channel: int) -> Tensor:
    """dbias: the decoded gradient, summed over all but its channels."""
    summed = tuple(dim for dim in range(len(g.layout.shape)) if dim != channel)
    if g.block_scales is not None or g.scale.numel() > 1:
        return g.decode(torch.float32).sum(summed)
    each = _operand("gradient", g, summed)
    _check_no_output_is_lost(each)
    codes = each.codes.movedim(channel, -1).reshape(-1, g.layout.shape[channel])
    step = Steps((each.step.reshape(-1),), None if each.folded is None else each.folded.factors)
    ones = torch.ones((1, len(codes)), dtype=torch.uint8, device=codes.device)
    return scaled_products.matmul(ones, codes, 0, each.zero, None, step, None)[0]


# ---------------------------------------------------------------------------------------------------- shapes, arguments


def _check_coded(**operands: object) -> None:
    """Refuse an operand that is no coded tensor."""
    for name, coded in operands.items():
        if not isinstance(coded, CodedTensor):
            raise InvalidType(f"{name} must be a CodedTensor; got an object of type {type(coded).__name__}.")


def _linear_shape(x: CodedTensor, weight: CodedTensor) -> tuple[int, ...]:
    """The shape of a linear layer's result."""
    shape, (outputs, inputs) = x.layout.shape, _matrix_shape(weight)
    if not shape or shape[-1] != inputs:
        raise InvalidValue(
            f"a linear layer has a weight of (outputs, inputs) and an x of (..., inputs); got {(outputs, inputs)} and "
            f"{tuple(shape)}."
        )
    return (*shape[:-1], outputs)


def _matrix_shape(weight: CodedTensor) -> tuple[int, int]:
    shape = weight.layout.shape
    if len(shape) != 2:
        raise InvalidValue(f"the weight of a linear layer is a matrix (outputs, inputs); got {tuple(shape)}.")
    return shape[0], shape[1]


def _geometry(geometry: Geometry | None, x: CodedTensor) -> Geometry:
    axes = len(x.layout.shape) - 2
    return Geometry((1,) * axes, (0,) * axes, (1,) * axes) if geometry is None else geometry


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float()
