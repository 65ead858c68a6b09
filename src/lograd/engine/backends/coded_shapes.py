"""Shapes and layouts of a layer whose operands are codes: what its operators take, and what tracers expect of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidValue, sentence
from ...ops.geometry import Geometry, check_geometry
from ...ops.integer_kernels import check_numbers
from ..autograd import is_turned
from ..coding import check_sentence, parsed

Coded = tuple[Tensor, ...]


def image(x: Tensor) -> Tensor:
    """Return a sequence as an image of height 1; all else as it is."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def flat(result: Tensor, stride: Sequence[int]) -> Tensor:
    """Return an image of height 1 as a sequence, in a convolution over one dimension."""
    return result.squeeze(2) if len(stride) == 1 and result.dim() == 4 else result


def planar(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Geometry:
    """Return the geometry with two dimensions where it has one."""
    if len(stride) == 1:
        return Geometry((1, *stride), (0, *padding), (1, *dilation), groups)
    return Geometry(tuple(stride), tuple(padding), tuple(dilation), groups)


def turned_output(x: Tensor, weight: Tensor, turns: bool) -> bool:
    """Return True if the output of a convolution is given channels-last: where it is asked for, or PyTorch would."""
    return x.dim() == 4 and (turns or is_turned(x) or is_turned(weight))


def laid(x: Tensor, turned: bool) -> Tensor:
    """Return a result in the layout that tracers were promised."""
    if turned:
        return x.t().contiguous().t() if x.dim() == 2 else x.contiguous(memory_format=torch.channels_last)
    # Where dimensions have one element, strides of channels-last images pass for contiguous ones.
    return x.contiguous().view(x.shape) if x.dim() < 4 or x.shape[2] > 1 < x.shape[3] else x.reshape(-1).view(x.shape)


def owned(x: Tensor) -> Tensor:
    """Return a result as no view: autograd refuses to change a view in place that a function gave, as a ReLU may."""
    if not x._is_view():
        return x
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def empty(like: Tensor, shape: Sequence[Any], turned: bool) -> Tensor:
    """Return a result without elements, laid out as `laid` does it."""
    if not turned:
        return like.new_empty(shape, dtype=torch.float32)
    if len(shape) == 2:
        return like.new_empty(shape[::-1], dtype=torch.float32).t()
    return torch.empty(shape, dtype=torch.float32, device=like.device, memory_format=torch.channels_last)


# -------------------------------------------------------------------------------------------------- results and checks


def _fake_codes(x: Tensor, text: str, packs: bool) -> Coded:
    """Return codes, scale and zero without elements."""
    shape = list(image(x).shape)
    if packs:
        shape[1] = (shape[1] + 1) // 2
    memory = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    last = parsed(text)[-1]
    rows = x.shape[0] if last.per_channel or (last.per_row and x.dim() == 2) else 1
    return (
        torch.empty(shape, dtype=torch.uint8, device=x.device, memory_format=memory),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(1, dtype=torch.float32),
    )


def fake_output(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, x_text: str, *rest: Any,
) -> Coded:  # fmt: skip
    """Return Y and the codes of both operands without elements."""
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    y = empty(x, (x.shape[0], weight.shape[0], *sizes), turned_output(x, weight, rest[-2]))
    return (y, *_fake_codes(x, x_text, rest[-1]), *_fake_codes(weight, rest[4], False))


def fake_products(
    g: Tensor, x_codes: Tensor, x_scale: Tensor, x_zero_point: Tensor, weight_codes: Tensor, weight_scale: Tensor,
    weight_zero_point: Tensor, stride: Sequence[int], *rest: Any,
) -> Coded:  # fmt: skip
    """Return dX, dW and dbias without elements."""
    groups, x_turned, weight_turned = rest[2:5]
    need_x, need_weight, need_bias = rest[-3:]

    def shape(codes: Tensor, channels: int | None = None) -> Sequence[Any]:
        first = codes.shape[:2] if channels is None else (codes.shape[0], channels)
        return (*first, *codes.shape[3 if len(stride) == 1 else 2 :])

    return (
        empty(g, shape(x_codes, groups * weight_codes.shape[1]), x_turned) if need_x else g.new_empty(0),
        empty(g, shape(weight_codes), weight_turned) if need_weight else g.new_empty(0),
        g.new_empty(weight_codes.shape[0]) if need_bias else g.new_empty(0),
    )


def check_output(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, x_text: str, x_numbers: Tensor, x_key: Tensor, x_memory: Tensor,
    x_counters: Tensor, weight_text: str, weight_numbers: Tensor, weight_key: Tensor, weight_memory: Tensor,
    *rest: object,
) -> None:  # fmt: skip
    """Refuse operands that make no layer, and sites that do not give levels."""
    _shape_of_output(x, weight, stride, padding, dilation, groups)
    check_numbers("bias", bias, weight.shape[0])
    check_sentence(x_text, x_numbers, x_memory)
    check_sentence(weight_text, weight_numbers, weight_memory)
    for text in (x_text, weight_text):
        if not (parsed(text) and parsed(text)[-1].levels):
            raise InvalidValue(sentence("the treatments of a coded operand", text, "ended by one that gives levels"))


def check_products(
    g: Tensor, x_codes: Tensor, x_scale: Tensor, x_zero: Tensor, weight_codes: Tensor, weight_scale: Tensor,
    weight_zero: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    x_turned: bool, weight_turned: bool, text: str, contracted: Sequence[int], numbers: Tensor, control: Tensor,
    key: Tensor, memory: Tensor, *rest: object,
) -> None:  # fmt: skip
    """Refuse a gradient and codes that make no layer."""
    x = x_codes
    if x.dim() > 1 < weight_codes.dim() and x.shape[1] == (groups * weight_codes.shape[1] + 1) // 2:  # two to a byte
        x = x.new_empty(()).expand(x.shape[0], groups * weight_codes.shape[1], *x.shape[2:])
    shape = _shape_of_output(x, weight_codes, *planar(stride, padding, dilation, groups))
    if tuple(image(g).shape) != shape:
        raise InvalidValue(f"g must have the shape of the layer's output, {shape}; got {tuple(g.shape)}.")
    check_numbers("x_scale", x_scale, 1, *(() if stride else x.shape[:1]))
    check_numbers("weight_scale", weight_scale, 1, weight_codes.shape[0])
    check_sentence(text, numbers, memory)


def _shape_of_output(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> tuple[int, ...]:
    """Return the shape of Y; refuse operands and a geometry that make no layer."""
    if stride or padding or dilation or weight.dim() != 2:
        return check_geometry(x.shape, weight.shape, stride, padding, dilation, groups)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise InvalidValue(
            "a linear layer has a weight of (outputs, inputs) and an x of (samples, inputs); got "
            f"{tuple(weight.shape)} and {tuple(x.shape)}."
        )
    return x.shape[0], weight.shape[0]
