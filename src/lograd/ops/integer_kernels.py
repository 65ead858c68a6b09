"""Products of codes in exact integers, as operators: matrices, convolutions and their backward, blocks.

A code stands for the whole number code - zero.  Products and sums of these are exact: in float64 here, as they stay
below 2^53, in integers in the native kernels.  A sum is rounded once, to float32, and then scaled in a fixed order,
each step rounded to float32: times `columns`, times `rows`, plus `bias`.  So every kernel gives the same bits.

Convolutions give channels-last memory, whatever that of their operands: the order in which the kernels read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidValue
from .contracts import Takes
from .geometry import check_geometry, output_size
from .registry import register, run, when_native

_LONGEST_BLOCK = 2**14
"""Sums of products of bytes over so many stay within 32 bits."""


def _matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, rows: Tensor | None, columns: Tensor | None, bias: Tensor | None
) -> Tensor:
    """(a - a_zero) (b - b_zero), of matrices or batches of them."""
    return _scaled(_whole(a, a_zero) @ _whole(b, b_zero), -1, columns, rows, bias)


def _convolution(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None, *where: Any
) -> Tensor:
    """The convolution of x - x_zero, padded with zeros, with weight - weight_zero; `where` is its geometry."""
    *steps, groups = where
    whole = _whole(x, x_zero), _whole(weight, weight_zero)
    sums = torch.ops.aten.convolution.default(*whole, None, *steps, False, [0] * len(steps[0]), groups)
    return _channels_last(_scaled(sums, 1, columns, None, bias))


def _convolution_input_gradient(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, *where: Any
) -> Tensor:
    """The gradient of a convolution with respect to its input, whose height and width are the last of `where`."""
    *geometry, input_size = where
    x = g.new_zeros((g.shape[0], geometry[-1] * weight.shape[1], *input_size), dtype=torch.float64)
    sums = _backward(_whole(g, g_zero), x, _whole(weight, weight_zero), *geometry, 0)
    return _channels_last(_scaled(sums, 1, columns, None, None))


def _convolution_weight_gradient(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, *where: Any
) -> Tensor:
    """The gradient of a convolution with respect to its weight, whose height and width are the last of `where`."""
    *geometry, kernel_size = where
    weight = g.new_zeros((g.shape[1], x.shape[1] // geometry[-1], *kernel_size), dtype=torch.float64)
    sums = _backward(_whole(g, g_zero), _whole(x, x_zero), weight, *geometry, 1)
    return _channels_last(_scaled(sums, 0, rows, None, None))


def _block_matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, scale: Tensor,
    bias: Tensor | None, size: int,
) -> Tensor:  # fmt: skip
    """(a - a_zero) (b - b_zero)^T, where `size` neighbours in a row share a scale.

    The sum of each block is exact, and rounded once; then times the scale of a, times that of b, added up in order.
    """
    first, second = _whole(a, a_zero), _whole(b, b_zero)
    result = a.new_zeros((a.shape[0], b.shape[0]), dtype=torch.float32)
    for place in range(a.shape[1] // size):
        block = slice(place * size, (place + 1) * size)
        sums = (first[:, block] @ second[:, block].t()).float()
        result = result + sums * a_scales[:, place, None] * b_scales[:, place]
    return _scaled(result, -1, scale, None, bias)


def _scaled(sums: Tensor, channel: int, columns: Tensor | None, rows: Tensor | None, bias: Tensor | None) -> Tensor:
    """Exact sums rounded to float32 and scaled; `columns` and `bias` lie along the dimension `channel`."""
    result = sums.float()
    along = [1] * result.dim()
    along[channel] = -1
    if columns is not None:
        result = result * columns.reshape(along)
    if rows is not None:
        result = result * rows.reshape(-1, 1)
    if bias is not None:
        result = result + bias.reshape(along)
    return result


def _whole(codes: Tensor, zero: int) -> Tensor:
    return codes.double() - zero


def _backward(g: Tensor, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor:
    """dX (which = 0) or dW (which = 1) of a convolution, in float64."""
    stride, padding, dilation, groups, which = geometry
    found: Tensor = torch.ops.aten.convolution_backward.default(
        g, x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups, [which == 0, which == 1, False]
    )[which]
    return found


def empty_images(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Room for float32 results of shape (batch, channels, ...) in channels-last memory."""
    if len(shape) == 4:
        return torch.empty(shape, dtype=torch.float32, device=like.device, memory_format=torch.channels_last)
    batch, channels, *sizes = shape
    out = like.new_empty((batch, *sizes, channels), dtype=torch.float32)
    return out.permute(0, out.dim() - 1, *range(1, out.dim() - 1))


def _channels_last(x: Tensor) -> Tensor:
    return empty_images(x, x.shape).copy_(x)


# --------------------------------------------------------------------------------------------------------------- checks


def _check_matmul(
    a: Tensor, b: Tensor, a_zero: int = 0, b_zero: int = 0, rows: Tensor | None = None, columns: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Refuse what does not make a product of matrices."""
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise InvalidValue(
            "a product of matrices takes (m, k) and (k, n), or batches of them; got "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    _check_numbers("rows", rows, 1, a.shape[-2])
    _check_numbers("columns", columns, 1, b.shape[-1])
    _check_numbers("bias", bias, b.shape[-1])


def _check_block_matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, scale: Tensor,
    bias: Tensor | None, size: int,
) -> None:  # fmt: skip
    """Refuse what does not make a product of matrices in blocks."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise InvalidValue(
            f"a product in blocks takes matrices (m, k) and (n, k); got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    if size < 1 or a.shape[1] % size:
        raise InvalidValue(f"rows of {a.shape[1]} codes must be whole blocks; got blocks of {size}.")
    for what, codes, scales in (("a_scales", a, a_scales), ("b_scales", b, b_scales)):
        if tuple(scales.shape) != (codes.shape[0], codes.shape[1] // size):
            raise InvalidValue(
                f"{what} must have the shape {(codes.shape[0], codes.shape[1] // size)}, one scale for each block; got "
                f"{tuple(scales.shape)}."
            )
    _check_numbers("bias", bias, b.shape[0])


def _check_numbers(what: str, given: Tensor | None, *counts: int) -> None:
    """Refuse scales or a bias that are not as many as the product takes."""
    if given is not None and given.numel() not in counts:
        expected = " or ".join(str(count) for count in dict.fromkeys(counts))
        raise InvalidValue(f"{what} must have {expected} elements; got {given.numel()}.")


def _check_gradient(g: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(g.shape) != shape:
        raise InvalidValue(f"g must have the shape of the layer's result, {shape}; got {tuple(g.shape)}.")


def _check_convolution(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None, *where: Any
) -> None:
    """Refuse what does not make a convolution."""
    check_geometry(x.shape, weight.shape, *where)
    _check_numbers("columns", columns, 1, weight.shape[0])
    _check_numbers("bias", bias, weight.shape[0])


def _check_input_gradient(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, *where: Any
) -> None:
    """Refuse what does not make dX of a convolution."""
    *geometry, input_size = where
    x = (*g.shape[:1], *(geometry[-1] * count for count in weight.shape[1:2]), *input_size)
    _check_gradient(g, check_geometry(x, weight.shape, *geometry))
    _check_numbers("columns", columns, 1)


def _check_weight_gradient(g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, *where: Any) -> None:
    """Refuse what does not make dW of a convolution."""
    *geometry, kernel_size = where
    weight = (*g.shape[1:2], *(count // max(geometry[-1], 1) for count in x.shape[1:2]), *kernel_size)
    _check_gradient(g, check_geometry(x.shape, weight, *geometry))
    _check_numbers("rows", rows, 1, g.shape[1])


# --------------------------------------------------------------------------------------------------------------- native


def _matmul_native(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, rows: Tensor | None, columns: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Transposed and batched views are read where they lie."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = a.shape[0] if a.dim() == 3 else 1
    if 0 in (batch, m, n, k):
        return _matmul(a, b, a_zero, b_zero, rows, columns, bias)
    a, b = _readable(a), _readable(b)
    out = a.new_empty((*a.shape[:-1], n), dtype=torch.float32)
    run(
        "integer_matmul", batch=batch, m=m, n=n, k=k,
        a=native.view_address("a", a, torch.uint8), a_strides=_strides(a), a_zero=a_zero,
        b=native.view_address("b", b, torch.uint8), b_strides=_strides(b), b_zero=b_zero,
        rows=rows, rows_count=_count(rows), columns=columns, columns_count=_count(columns), bias=bias, out=out,
    )  # fmt: skip
    return out


def _convolution_native(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None, *where: Any
) -> Tensor:
    if 0 in (x.numel(), weight.numel()):
        return _convolution(x, weight, x_zero, weight_zero, columns, bias, *where)
    sizes = output_size(x.shape[2:], weight.shape[2:], *where[:3])
    out = empty_images(x, (x.shape[0], weight.shape[0], *sizes))
    run(
        "integer_convolution", **_layer(x.shape, weight.shape, sizes, *where), input=_images(x),
        input_zero=x_zero, weight=_images(weight), weight_zero=weight_zero, columns=columns,
        columns_count=_count(columns), bias=bias, out=out,
    )  # fmt: skip
    return out


def _convolution_input_gradient_native(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, *where: Any
) -> Tensor:
    if 0 in (g.numel(), weight.numel()):
        return _convolution_input_gradient(g, weight, g_zero, weight_zero, columns, *where)
    *geometry, input_size = where
    shape = (g.shape[0], geometry[-1] * weight.shape[1], *input_size)
    out = empty_images(g, shape)
    run(
        "integer_convolution_input_gradient", **_layer(shape, weight.shape, g.shape[2:], *geometry),
        g=_images(g), g_zero=g_zero, weight=_images(weight), weight_zero=weight_zero, columns=columns,
        columns_count=_count(columns), out=out,
    )  # fmt: skip
    return out


def _convolution_weight_gradient_native(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, *where: Any
) -> Tensor:
    if 0 in (g.numel(), x.numel()):
        return _convolution_weight_gradient(g, x, g_zero, x_zero, rows, *where)
    *geometry, kernel_size = where
    shape = (g.shape[1], x.shape[1] // geometry[-1], *kernel_size)
    out = empty_images(g, shape)
    run(
        "integer_convolution_weight_gradient", **_layer(x.shape, shape, g.shape[2:], *geometry), g=_images(g),
        g_zero=g_zero, input=_images(x), input_zero=x_zero, rows=rows, rows_count=_count(rows), out=out,
    )  # fmt: skip
    return out


def _block_matmul_native(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, scale: Tensor,
    bias: Tensor | None, size: int,
) -> Tensor:  # fmt: skip
    (m, k), n = a.shape, b.shape[0]
    if 0 in (m, n, k) or size % 4 or size > _LONGEST_BLOCK:
        return _block_matmul(a, b, a_zero, b_zero, a_scales, b_scales, scale, bias, size)
    out = a.new_empty((m, n), dtype=torch.float32)
    run(
        "integer_block_matmul", m=m, n=n, k=k, block=size, a=a.contiguous(), a_zero=a_zero,
        a_scales=a_scales.contiguous(), b=b.contiguous(), b_zero=b_zero, b_scales=b_scales.contiguous(),
        scale=float(scale), bias=bias, out=out,
    )  # fmt: skip
    return out


def _readable(x: Tensor) -> Tensor:
    """A view of which rows or columns lie without gaps; a copy of any other."""
    strides = _strides(x)
    return x if 1 in strides[1:] and 0 not in strides else x.contiguous()


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of the batch, of rows and of columns; where there is only one, any will do."""
    steps = [step if size > 1 else 1 for size, step in zip(x.shape, x.stride(), strict=True)]
    return (steps[0] if x.dim() == 3 else 1, steps[-2], steps[-1])


def _images(x: Tensor) -> Tensor:
    """Return images, or a row of pixels as an image of height one, in channels-last memory."""
    return (x.unsqueeze(2) if x.dim() == 3 else x).contiguous(memory_format=torch.channels_last)


def _layer(x: Sequence[int], weight: Sequence[int], output: Sequence[int], *geometry: Any) -> dict[str, Any]:
    """The shapes and the geometry of a convolution for the native kernels; one dimension is an image of height one."""
    *steps, groups = geometry
    axes = list(zip(x[2:], output, weight[2:], *steps, strict=True))
    if len(axes) == 1:
        axes.insert(0, (1, 1, 1, 1, 0, 1))
    return {"batch": x[0], "channels": x[1], "outputs": weight[0], "groups": groups, "y": axes[0], "x": axes[1]}


def _count(scales: Tensor | None) -> int:
    return 0 if scales is None else scales.numel()


# --------------------------------------------------------------------------------------------------------- registration

_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"
_TAKES = {
    **dict.fromkeys(("a", "b", "x", "g", "weight"), Takes((torch.uint8,))),
    **dict.fromkeys(("rows", "columns", "bias", "a_scales", "b_scales"), Takes((torch.float32,))),
}


def _fake_matmul(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)


def _fake_convolution(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    sizes = output_size(x.shape[2:], weight.shape[2:], *rest[4:7])
    return empty_images(x, (x.shape[0], weight.shape[0], *sizes))


def _fake_input_gradient(g: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return empty_images(g, (g.shape[0], rest[6] * weight.shape[1], *rest[7]))


def _fake_weight_gradient(g: Tensor, x: Tensor, *rest: Any) -> Tensor:
    return empty_images(g, (g.shape[1], x.shape[1] // rest[6], *rest[7]))


for _signature, _reference, _kernel, _fake, _check in (
    (
        "integer_matmul(Tensor a, Tensor b, int a_zero, int b_zero, Tensor? rows, Tensor? columns, Tensor? bias)",
        _matmul, _matmul_native, _fake_matmul, _check_matmul,
    ),
    (
        "integer_convolution(Tensor x, Tensor weight, int x_zero, int weight_zero, Tensor? columns, Tensor? bias, "
        f"{_GEOMETRY})",
        _convolution, _convolution_native, _fake_convolution, _check_convolution,
    ),
    (
        "integer_convolution_input_gradient(Tensor g, Tensor weight, int g_zero, int weight_zero, Tensor? columns, "
        f"{_GEOMETRY}, SymInt[] input_size)",
        _convolution_input_gradient, _convolution_input_gradient_native, _fake_input_gradient,
        _check_input_gradient,
    ),
    (
        "integer_convolution_weight_gradient(Tensor g, Tensor x, int g_zero, int x_zero, Tensor? rows, "
        f"{_GEOMETRY}, SymInt[] kernel_size)",
        _convolution_weight_gradient, _convolution_weight_gradient_native, _fake_weight_gradient,
        _check_weight_gradient,
    ),
    (
        "integer_block_matmul(Tensor a, Tensor b, int a_zero, int b_zero, Tensor a_scales, Tensor b_scales, Tensor "
        "scale, Tensor? bias, int size)",
        _block_matmul, _block_matmul_native,
        lambda a, b, *rest: a.new_empty((a.shape[0], b.shape[0]), dtype=torch.float32), _check_block_matmul,
    ),
):  # fmt: skip
    register(f"{_signature} -> Tensor", _reference, when_native(_kernel), _fake, _check, _TAKES)
