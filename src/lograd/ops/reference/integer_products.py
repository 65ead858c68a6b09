"""Products of codes in exact integers, in plain PyTorch: matrices, convolutions and their backward, matrices in blocks.

A code stands for the whole number code - zero.  Products and sums of these are exact: in float64 here, as they stay
below 2^53, in integers elsewhere.  A sum is rounded once, to float32, and then scaled in a fixed order, each step
rounded to float32: times `columns`, times `rows`, plus `bias`.  So every kernel gives the same bits.

Convolutions give channels-last memory, whatever that of their operands: the order in which the kernels read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidValue
from ..contracts import Takes
from ..registry import register


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


def output_size(
    input_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:  # fmt: skip
    """Height and width of the result of a convolution."""
    sizes = zip(input_size, kernel_size, stride, padding, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)


def check_geometry(
    x: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int,
) -> tuple[int, ...]:  # fmt: skip
    """The shape of the result of a convolution over one or two dimensions; refuses shapes that make none."""
    axes, lengths = len(weight) - 2, {len(stride), len(padding), len(dilation)}
    if axes not in (1, 2) or len(x) != len(weight) or lengths != {axes}:
        raise InvalidValue(
            "a convolution in integers has an x of (batch, channels, ...), a weight of as many dimensions, and a "
            f"stride, padding and dilation for each of the last one or two; got {tuple(x)}, {tuple(weight)}, "
            f"{list(stride)}, {list(padding)} and {list(dilation)}."
        )
    if min(*stride, *dilation, groups) < 1 or min(padding) < 0:
        raise InvalidValue(
            f"stride, dilation and groups must be at least 1 and padding at least 0; got {list(stride)}, "
            f"{list(dilation)}, {groups} and {list(padding)}."
        )
    if x[1] != groups * weight[1] or weight[0] % groups:
        raise InvalidValue(
            "a weight of (outputs, channels / groups, ...) meets an x of (batch, channels, ...); got "
            f"{tuple(weight)} and {tuple(x)} with groups={groups}."
        )
    sizes = output_size(x[2:], weight[2:], stride, padding, dilation)
    if min(*sizes, *weight[2:]) < 1:
        raise InvalidValue(f"a kernel of {tuple(weight[2:])} is too large for an x of {tuple(x)}, or has no elements.")
    return (x[0], weight[0], *sizes)


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


# --------------------------------------------------------------------------------------------------------- registration

CODES = Takes((torch.uint8,))
SCALES = Takes((torch.float32,))
_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"


def _define(signature: str, reference: Callable[..., Tensor], fake: Callable[..., Tensor], check: Any) -> None:
    codes = dict.fromkeys(("a", "b", "x", "g", "weight"), CODES)
    scales = dict.fromkeys(("rows", "columns", "bias", "a_scales", "b_scales"), SCALES)
    register(f"{signature} -> Tensor", reference, None, fake, check, codes | scales)


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
    _fake_matmul,
    check_matmul,
)
_define(
    "integer_convolution(Tensor x, Tensor weight, int x_zero, int weight_zero, Tensor? columns, Tensor? bias, "
    f"{_GEOMETRY})",
    integer_convolution,
    _fake_convolution,
    check_convolution,
)
_define(
    "integer_convolution_input_gradient(Tensor g, Tensor weight, int g_zero, int weight_zero, Tensor? columns, "
    f"{_GEOMETRY}, SymInt[] input_size)",
    integer_convolution_input_gradient,
    _fake_input_gradient,
    check_input_gradient,
)
_define(
    "integer_convolution_weight_gradient(Tensor g, Tensor x, int g_zero, int x_zero, Tensor? rows, "
    f"{_GEOMETRY}, SymInt[] kernel_size)",
    integer_convolution_weight_gradient,
    _fake_weight_gradient,
    check_weight_gradient,
)
_define(
    "integer_block_matmul(Tensor a, Tensor b, int a_zero, int b_zero, Tensor a_scales, Tensor b_scales, Tensor scale, "
    "Tensor? bias, int size)",
    integer_block_matmul,
    lambda a, b, *rest: a.new_empty((a.shape[0], b.shape[0]), dtype=torch.float32),
    check_block_matmul,
)
