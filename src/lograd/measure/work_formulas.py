"""Operations of each PyTorch operator that multiplies, from the shapes of its arguments; a multiply-add is two.

Formulas here are for matrix products, convolutions, attention and recurrent kernels.  For other operators, such as the
attention kernels of CUDA, PyTorch's own counter is asked.  Lookups, norms and elementwise operators count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

Formula = Callable[..., int]
"""Takes the arguments of an operator and its output, and returns its multiply-adds."""
aten = torch.ops.aten


def operations(operator: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> int:
    """Return the operations of one call of an operator; 0 for one that computes no product."""
    packet = getattr(operator, "overloadpacket", operator)
    if packet in _FORMULAS:
        return 2 * _FORMULAS[packet](*arguments, output=output)
    if packet in flop_registry:
        counted: int = flop_registry[packet](*arguments, **keywords, out_val=output)
        return counted
    return 0


def operands(operator: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
    """Return the two tensors that a matrix product or convolution multiplies; nothing for other operators."""
    packet = getattr(operator, "overloadpacket", operator)
    first = 1 if packet in _ADDING else 0
    return [one for one in arguments[first : first + 2] if isinstance(one, Tensor)] if packet in _FORMULAS else []


def _matrices(first: Tensor, second: Tensor, *_: Any, output: Any) -> int:
    """Return the multiply-adds of (..., n, m) times (..., m, p)."""
    return first.numel() * second.shape[-1]


def _added_matrices(added: Tensor, first: Tensor, second: Tensor, *_: Any, output: Any) -> int:
    return first.numel() * second.shape[-1]


def _vector(matrix: Tensor, vector: Tensor, *_: Any, output: Any) -> int:
    return matrix.numel()


def _added_vector(added: Tensor, matrix: Tensor, vector: Tensor, *_: Any, output: Any) -> int:
    return matrix.numel()


def _linear(x: Tensor, weight: Tensor, *_: Any, output: Any) -> int:
    return x.numel() * weight.shape[0]


def _convolution_count(x: Tensor, weight: Tensor, y: Tensor, transposed: bool) -> int:
    """Each element of the output (of the input, if transposed) is multiplied with one filter of the weight."""
    return (x if transposed else y).numel() * math.prod(weight.shape[1:])


def _convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *_: Any,
    output: Any,
) -> int:  # fmt: skip
    return _convolution_count(x, weight, output, transposed)


def _convolution_backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: Any, needed: list[bool], *_: Any, output: Any,
) -> int:  # fmt: skip
    """dX and dW cost as much as the forward each, if they are needed.

    PyTorch's own formula is not used: it counts dW of a grouped convolution once for each group.
    """
    return (needed[0] + needed[1]) * _convolution_count(x, weight, g, transposed)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, output: Any) -> int:
    """Every query meets every key, and their scores weigh the values; a mask skips nothing."""
    return math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(g: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, output: Any) -> int:
    """The scores are computed again, then the gradients of values, scores, queries and keys."""
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return scores * (3 * query.shape[-1] + 2 * value.shape[-1])


def _recurrent(x: Tensor, weight_input: Tensor, weight_hidden: Tensor, *_: Any, output: Any) -> int:
    """One direction of one layer multiplies with both weights at each step of each sample."""
    return math.prod(x.shape[:-1]) * (weight_input.numel() + weight_hidden.numel())


def _recurrent_backward(x: Tensor, weight_input: Tensor, weight_hidden: Tensor, *_: Any, output: Any) -> int:
    return 2 * _recurrent(x, weight_input, weight_hidden, output=output)


def _trilinear(
    first: Tensor, second: Tensor, third: Tensor, expand1: list[int], expand2: list[int], expand3: list[int], *_: Any,
    output: Any,
) -> int:  # fmt: skip
    """The product of three tensors in nn.Bilinear, broadcast against each other along the new dimensions."""
    shapes = []
    for tensor, new in ((first, expand1), (second, expand2), (third, expand3)):
        shape = list(tensor.shape)
        for place in sorted(new):
            shape.insert(place, 1)
        shapes.append(shape)
    return math.prod(max(sizes) for sizes in zip(*shapes, strict=True))


_ADDING = {
    aten.addmm, aten.addmm_, aten._addmm_activation, aten.baddbmm, aten.baddbmm_, aten.addbmm, aten.addbmm_, aten.addmv,
    aten.addmv_,
}  # fmt: skip
"""Operators whose first argument is a tensor to which the product is added."""

_FORMULAS: dict[Any, Formula] = {
    aten.mm: _matrices,
    aten.bmm: _matrices,
    aten.mv: _vector,
    aten.dot: _vector,
    aten.vdot: _vector,
    aten.linear: _linear,
    **{operator: _added_vector if operator in (aten.addmv, aten.addmv_) else _added_matrices for operator in _ADDING},
    aten.convolution: _convolution,
    aten._convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mkldnn_rnn_layer: _recurrent,
    aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    aten._trilinear: _trilinear,
}
