"""Products of codes in exact integers, by the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import native
from ..reference import integer_products as plain
from ..registry import add_kernel

_BYTE, _FLOAT = torch.uint8, torch.float32
_LONGEST_BLOCK = 2**14
"""Sums of products of bytes over so many stay within 32 bits."""


def integer_matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, rows: Tensor | None, columns: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The kernel of `integer_matmul`; transposed and batched views are read where they lie."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = a.shape[0] if a.dim() == 3 else 1
    if 0 in (batch, m, n, k):
        return plain.integer_matmul(a, b, a_zero, b_zero, rows, columns, bias)
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
        out=native.address("out", out, _FLOAT, batch * m * n),
        threads=torch.get_num_threads(),
    )
    return out


def integer_convolution(
    x: Tensor, weight: Tensor, x_zero: int, weight_zero: int, columns: Tensor | None, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """The kernel of `integer_convolution`."""
    geometry = (stride, padding, dilation)
    sizes = plain.output_size(x.shape[2:], weight.shape[2:], *geometry)
    out = plain.empty_images(x, (x.shape[0], weight.shape[0], *sizes))
    if 0 in (x.numel(), weight.numel()):
        return plain.integer_convolution(x, weight, x_zero, weight_zero, columns, bias, *geometry, groups)
    image, kernel = _channels_last(x), _channels_last(weight)
    native.kernel("integer_convolution")(
        **_layer(x.shape, weight.shape, sizes, geometry, groups),
        input=native.address("x", image, _BYTE, x.numel()),
        input_zero=x_zero,
        weight=native.address("weight", kernel, _BYTE, weight.numel()),
        weight_zero=weight_zero,
        columns=_floats("columns", columns),
        columns_count=0 if columns is None else columns.numel(),
        bias=_floats("bias", bias),
        out=native.address("out", out, _FLOAT, out.numel()),
        threads=torch.get_num_threads(),
    )
    return out


def integer_convolution_input_gradient(
    g: Tensor, weight: Tensor, g_zero: int, weight_zero: int, columns: Tensor | None, stride: list[int],
    padding: list[int], dilation: list[int], groups: int, input_size: list[int],
) -> Tensor:  # fmt: skip
    """The kernel of `integer_convolution_input_gradient`."""
    geometry, shape = (stride, padding, dilation), (g.shape[0], groups * weight.shape[1], *input_size)
    if 0 in (g.numel(), weight.numel()):
        return plain.integer_convolution_input_gradient(
            g, weight, g_zero, weight_zero, columns, *geometry, groups, input_size
        )
    out, gradient, kernel = plain.empty_images(g, shape), _channels_last(g), _channels_last(weight)
    native.kernel("integer_convolution_input_gradient")(
        **_layer(shape, weight.shape, g.shape[2:], geometry, groups),
        g=native.address("g", gradient, _BYTE, g.numel()),
        g_zero=g_zero,
        weight=native.address("weight", kernel, _BYTE, weight.numel()),
        weight_zero=weight_zero,
        columns=_floats("columns", columns),
        columns_count=0 if columns is None else columns.numel(),
        out=native.address("out", out, _FLOAT, out.numel()),
        threads=torch.get_num_threads(),
    )
    return out


def integer_convolution_weight_gradient(
    g: Tensor, x: Tensor, g_zero: int, x_zero: int, rows: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, kernel_size: list[int],
) -> Tensor:  # fmt: skip
    """The kernel of `integer_convolution_weight_gradient`."""
    geometry, shape = (stride, padding, dilation), (g.shape[1], x.shape[1] // groups, *kernel_size)
    if 0 in (g.numel(), x.numel()):
        return plain.integer_convolution_weight_gradient(g, x, g_zero, x_zero, rows, *geometry, groups, kernel_size)
    out, gradient, image = plain.empty_images(g, shape), _channels_last(g), _channels_last(x)
    native.kernel("integer_convolution_weight_gradient")(
        **_layer(x.shape, shape, g.shape[2:], geometry, groups),
        g=native.address("g", gradient, _BYTE, g.numel()),
        g_zero=g_zero,
        input=native.address("x", image, _BYTE, x.numel()),
        input_zero=x_zero,
        rows=_floats("rows", rows),
        rows_count=0 if rows is None else rows.numel(),
        out=native.address("out", out, _FLOAT, out.numel()),
        threads=torch.get_num_threads(),
    )
    return out


def integer_block_matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, scale: Tensor,
    bias: Tensor | None, size: int,
) -> Tensor:  # fmt: skip
    """The kernel of `integer_block_matmul`."""
    (m, k), n = a.shape, b.shape[0]
    if 0 in (m, n, k) or size % 4 or size > _LONGEST_BLOCK:
        return plain.integer_block_matmul(a, b, a_zero, b_zero, a_scales, b_scales, scale, bias, size)
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
        out=native.address("out", out, _FLOAT, m * n),
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


def _channels_last(x: Tensor) -> Tensor:
    """Images, or a row of pixels as an image of height one, in channels-last memory."""
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


for _kernel in (
    integer_matmul,
    integer_convolution,
    integer_convolution_input_gradient,
    integer_convolution_weight_gradient,
    integer_block_matmul,
):
    if native.kernel(_kernel.__name__) is not None:
        add_kernel(_kernel.__name__, "cpu", _kernel)
