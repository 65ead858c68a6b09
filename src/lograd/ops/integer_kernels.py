"""Products of codes in exact integers, as operators: matrices, convolutions and their backward, blocks.

A code stands for the whole number code - zero.  Products and sums of these are exact: in float64 here, as they stay
below 2^53, in integers in the native kernels.  A sum is rounded once, to float32, and then scaled in a fixed order,
each step rounded to float32: times `columns`, times `rows`, plus `bias`.  So every kernel gives the same bits.

Convolutions give channels-last memory, whatever that of their operands: the order in which the kernels read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidValue
from .contracts import Takes
from .geometry import check_geometry, output_size
from .registry import register, when_native

_BYTE, _FLOAT = torch.uint8, torch.float32
_LONGEST_BLOCK = 2**14
"""Sums of products of bytes over so many stay within 32 bits."""


def integer_matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, rows: Tensor | None, columns: Tensor | None, bias: Tensor | None
) -> Tensor:
    """(a - a_zero) (b - b_zero), of matrices or batches of them."""
    return scaled(_whole(a, a_zero) @ _whole(b, b_zero), -1, columns, rows, bias)


def integer_convolution(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """The convolution of x - x_zero, padded with zeros, with weight - weight_zero."""
    sums = torch.ops.aten.convolution.default(
        _whole(x, x_zero), _whole(weight, weight_zero), None, stride, padding, dilation, False, [0] * len(stride),
        groups,
    )  # fmt: skip
    return _channels_last(scaled(sums, 1, columns, None, bias))


def integer_convolution_input_gradient(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, stride: list[int],
    padding: list[int], dilation: list[int], groups: int, input_size: list[int],
) -> Tensor:  # fmt: skip
    """The gradient of a convolution with respect to its input, whose height and width are `input_size`."""
    x = g.new_zeros((g.shape[0], groups * weight.shape[1], *input_size), dtype=torch.float64)
    sums = _backward(_whole(g, g_zero), x, _whole(weight, weight_zero), stride, padding, dilation, groups, 0)
    return _channels_last(scaled(sums, 1, columns, None, None))


def integer_convolution_weight_gradient(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, kernel_size: list[int],
) -> Tensor:  # fmt: skip
    """The gradient of a convolution with respect to its weight, whose height and width are `kernel_size`."""
    weight = g.new_zeros((g.shape[1], x.shape[1] // groups, *kernel_size), dtype=torch.float64)
    sums = _backward(_whole(g, g_zero), _whole(x, x_zero), weight, stride, padding, dilation, groups, 1)
    return _channels_last(scaled(sums, 0, rows, None, None))


def integer_block_matmul(
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
    return scaled(result, -1, scale, None, bias)


def scaled(sums: Tensor, channel: int, columns: Tensor | None, rows: Tensor | None, bias: Tensor | None) -> Tensor:
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
        return torch.empty(shape, dtype=_FLOAT, device=like.device, memory_format=torch.channels_last)
    batch, channels, *sizes = shape
    out = like.new_empty((batch, *sizes, channels), dtype=torch.float32)
    return out.permute(0, out.dim() - 1, *range(1, out.dim() - 1))


def _channels_last(x: Tensor) -> Tensor:
    return empty_images(x, x.shape).copy_(x)


# --------------------------------------------------------------------------------------------------------------- checks


def check_matmul(
    a: Tensor, b: Tensor, a_zero: int = 0, b_zero: int = 0, rows: Tensor | None = None, columns: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Refuse what does not make a product of matrices."""
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise InvalidValue(
            "a product of matrices takes (m, k) and (k, n), or batches of them; got "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    check_numbers("rows", rows, 1, a.shape[-2])
    check_numbers("columns", columns, 1, b.shape[-1])
    check_numbers("bias", bias, b.shape[-1])


def check_block_matmul(
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
    check_numbers("bias", bias, b.shape[0])


def check_numbers(what: str, given: Tensor | None, *counts: int) -> None:
    """Refuse scales or a bias that are not as many as the product takes."""
    if given is not None and given.numel() not in counts:
        expected = " or ".join(str(count) for count in dict.fromkeys(counts))
        raise InvalidValue(f"{what} must have {expected} elements; got {given.numel()}.")


def _check_gradient(g: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(g.shape) != shape:
        raise InvalidValue(f"g must have the shape of the layer's result, {shape}; got {tuple(g.shape)}.")


def check_convolution(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> None:  # fmt: skip
    """Refuse what does not make a convolution."""
    check_geometry(x.shape, weight.shape, stride, padding, dilation, groups)
    check_numbers("columns", columns, 1, weight.shape[0])
    check_numbers("bias", bias, weight.shape[0])


def check_input_gradient(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, stride: list[int],
    padding: list[int], dilation: list[int], groups: int, input_size: list[int],
) -> None:  # fmt: skip
    """Refuse what does not make dX of a convolution."""
    x = (*g.shape[:1], *(groups * count for count in weight.shape[1:2]), *input_size)
    _check_gradient(g, check_geometry(x, weight.shape, stride, padding, dilation, groups))
    check_numbers("columns", columns, 1)


def check_weight_gradient(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, kernel_size: list[int],
) -> None:  # fmt: skip
    """Refuse what does not make dW of a convolution."""
    weight = (*g.shape[1:2], *(count // max(groups, 1) for count in x.shape[1:2]), *kernel_size)
    _check_gradient(g, check_geometry(x.shape, weight, stride, padding, dilation, groups))
    check_numbers("rows", rows, 1, g.shape[1])


# --------------------------------------------------------------------------------------------------------------- native


def _matmul_native(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, rows: Tensor | None, columns: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Transposed and batched views are read where they lie."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = a.shape[0] if a.dim() == 3 else 1
    if 0 in (batch, m, n, k):
        return integer_matmul(a, b, a_zero, b_zero, rows, columns, bias)
    a, b = _readable(a), _readable(b)
    out = a.new_empty((*a.shape[:-1], n), dtype=_FLOAT)
    native.kernel("integer_matmul")(
        batch=batch,
        m=m,
        n=n,
        k=k,
        a=native.view_address("a", a, _BYTE),
        a_strides=_strides(a),
        a_zero=a_zero,
        b=native.view_address("b", b, _BYTE),
        b_strides=_strides(b),
        b_zero=b_zero,
        rows=_floats("rows", rows),
        rows_count=0 if rows is None else rows.numel(),
        columns=_floats("columns", columns),
        columns_count=0 if columns is None else columns.numel(),
        bias=_floats("bias", bias),
        out=native.own_address(out),
        threads=torch.get_num_threads(),
    )
    return out


def _convolution_native(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> Tensor:  # fmt: skip
    geometry = (stride, padding, dilation)
    sizes = output_size(x.shape[2:], weight.shape[2:], *geometry)
    out = empty_images(x, (x.shape[0], weight.shape[0], *sizes))
    if 0 in (x.numel(), weight.numel()):
        return integer_convolution(x, weight, x_zero, weight_zero, columns, bias, *geometry, groups)
    image, kernel = _images(x), _images(weight)
    native.kernel("integer_convolution")(
        **_layer(x.shape, weight.shape, sizes, geometry, groups),
        input=native.address("x", image, _BYTE, x.numel()),
        input_zero=x_zero,
        weight=native.address("weight", kernel, _BYTE, weight.numel()),
        weight_zero=weight_zero,
        columns=_floats("columns", columns),
        columns_count=0 if columns is None else columns.numel(),
        bias=_floats("bias", bias),
        out=native.own_address(out),
        threads=torch.get_num_threads(),
    )
    return out


def _convolution_input_gradient_native(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, stride: list[int],
    padding: list[int], dilation: list[int], groups: int, input_size: list[int],
) -> Tensor:  # fmt: skip
    geometry, shape = (stride, padding, dilation), (g.shape[0], groups * weight.shape[1], *input_size)
    if 0 in (g.numel(), weight.numel()):
        return integer_convolution_input_gradient(
            g, weight, g_zero, weight_zero, columns, *geometry, groups, input_size
        )
    out, gradient, kernel = empty_images(g, shape), _images(g), _images(weight)
    native.kernel("integer_convolution_input_gradient")(
        **_layer(shape, weight.shape, g.shape[2:], geometry, groups),
        g=native.address("g", gradient, _BYTE, g.numel()),
        g_zero=g_zero,
        weight=native.address("weight", kernel, _BYTE, weight.numel()),
        weight_zero=weight_zero,
        columns=_floats("columns", columns),
        columns_count=0 if columns is None else columns.numel(),
        out=native.own_address(out),
        threads=torch.get_num_threads(),
    )
    return out


def _convolution_weight_gradient_native(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, kernel_size: list[int],
) -> Tensor:  # fmt: skip
    geometry, shape = (stride, padding, dilation), (g.shape[1], x.shape[1] // groups, *kernel_size)
    if 0 in (g.numel(), x.numel()):
        return integer_convolution_weight_gradient(g, x, g_zero, x_zero, rows, *geometry, groups, kernel_size)
    out, gradient, image = empty_images(g, shape), _images(g), _images(x)
    native.kernel("integer_convolution_weight_gradient")(
        **_layer(x.shape, shape, g.shape[2:], geometry, groups),
        g=native.address("g", gradient, _BYTE, g.numel()),
        g_zero=g_zero,
        input=native.address("x", image, _BYTE, x.numel()),
        input_zero=x_zero,
        rows=_floats("rows", rows),
        rows_count=0 if rows is None else rows.numel(),
        out=native.own_address(out),
        threads=torch.get_num_threads(),
    )
    return out


def _block_matmul_native(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, scale: Tensor,
    bias: Tensor | None, size: int,
) -> Tensor:  # fmt: skip
    (m, k), n = a.shape, b.shape[0]
    if 0 in (m, n, k) or size % 4 or size > _LONGEST_BLOCK:
        return integer_block_matmul(a, b, a_zero, b_zero, a_scales, b_scales, scale, bias, size)
    a, b, a_scales, b_scales = a.contiguous(), b.contiguous(), a_scales.contiguous(), b_scales.contiguous()
    out = a.new_empty((m, n), dtype=_FLOAT)
    native.kernel("integer_block_matmul")(
        m=m,
        n=n,
        k=k,
        block=size,
        a=native.address("a", a, _BYTE, m * k),
        a_zero=a_zero,
        a_scales=native.address("a_scales", a_scales, _FLOAT, m * (k // size)),
        b=native.address("b", b, _BYTE, n * k),
        b_zero=b_zero,
        b_scales=native.address("b_scales", b_scales, _FLOAT, n * (k // size)),
        scale=float(scale),
        bias=_floats("bias", bias),
        out=native.own_address(out),
        threads=torch.get_num_threads(),
    )
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


def _layer(
    x: Sequence[int], weight: Sequence[int], output: Sequence[int], geometry: Sequence[Sequence[int]], groups: int
) -> dict[str, Any]:
    """The shapes and the geometry of a convolution for the native kernels; one dimension is an image of height one."""
    axes = list(zip(x[2:], output, weight[2:], *geometry, strict=True))
    if len(axes) == 1:
        axes.insert(0, (1, 1, 1, 1, 0, 1))
    return {"batch": x[0], "channels": x[1], "outputs": weight[0], "groups": groups, "y": axes[0], "x": axes[1]}


def _floats(what: str, values: Tensor | None) -> int:
    return 0 if values is None else native.address(what, values, _FLOAT, values.numel())


# --------------------------------------------------------------------------------------------------------- registration

CODES = Takes((torch.uint8,))
SCALES = Takes((torch.float32,))
_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"


def _define(
    signature: str,
    reference: Callable[..., Tensor],
    kernel: Callable[..., Tensor],
    fake: Callable[..., Tensor],
    check: Any,
) -> None:
    codes = dict.fromkeys(("a", "b", "x", "g", "weight"), CODES)
    scales = dict.fromkeys(("rows", "columns", "bias", "a_scales", "b_scales"), SCALES)
    register(f"{signature} -> Tensor", reference, when_native(kernel), fake, check, codes | scales)


def _fake_matmul(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)


def _fake_convolution(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    sizes = output_size(x.shape[2:], weight.shape[2:], *rest[4:7])
    return empty_images(x, (x.shape[0], weight.shape[0], *sizes))


def _fake_input_gradient(g: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return empty_images(g, (g.shape[0], rest[6] * weight.shape[1], *rest[7]))


def _fake_weight_gradient(g: Tensor, x: Tensor, *rest: Any) -> Tensor:
    return empty_images(g, (g.shape[1], x.shape[1] // rest[6], *rest[7]))


_define(
    "integer_matmul(Tensor a, Tensor b, int a_zero, int b_zero, Tensor? rows, Tensor? columns, Tensor? bias)",
    integer_matmul,
    _matmul_native,
    _fake_matmul,
    check_matmul,
)
_define(
    "integer_convolution(Tensor x, Tensor weight, int x_zero, int weight_zero, Tensor? columns, Tensor? bias, "
    f"{_GEOMETRY})",
    integer_convolution,
    _convolution_native,
    _fake_convolution,
    check_convolution,
)
_define(
    "integer_convolution_input_gradient(Tensor g, Tensor weight, int g_zero, int weight_zero, Tensor? columns, "
    f"{_GEOMETRY}, SymInt[] input_size)",
    integer_convolution_input_gradient,
    _convolution_input_gradient_native,
    _fake_input_gradient,
    check_input_gradient,
)
_define(
    "integer_convolution_weight_gradient(Tensor g, Tensor x, int g_zero, int x_zero, Tensor? rows, "
    f"{_GEOMETRY}, SymInt[] kernel_size)",
    integer_convolution_weight_gradient,
    _convolution_weight_gradient_native,
    _fake_weight_gradient,
    check_weight_gradient,
)
_define(
    "integer_block_matmul(Tensor a, Tensor b, int a_zero, int b_zero, Tensor a_scales, Tensor b_scales, Tensor scale, "
    "Tensor? bias, int size)",
    integer_block_matmul,
    _block_matmul_native,
    lambda a, b, *rest: a.new_empty((a.shape[0], b.shape[0]), dtype=torch.float32),
    check_block_matmul,
)
