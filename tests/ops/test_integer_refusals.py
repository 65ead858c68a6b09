"""Coded tensors that cannot meet in integers: each reason is one sentence, and NaN is never silent garbage."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from integers import coded
from torch import Tensor

from lograd import InvalidType, InvalidValue, ops, parse_format
from lograd.ops.coded import CodedTensor, Folded, Layout, Table
from lograd.ops.geometry import Geometry


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X, W, G = (ops.pack_integers(random(*shape), 4) for shape in ((6, 32), (5, 32), (6, 5)))
BY_ROW = ops.pack_integers(random(5, 32), 4, per="channel", symmetric=True)
IMAGE, KERNEL, D_IMAGE = (ops.pack_integers(random(*s), 4) for s in ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3)))
CODES = torch.zeros(6, 32, dtype=torch.uint8)
MX = parse_format("mxfp4")

REASONS: dict[str, tuple[str, Callable[[], CodedTensor], CodedTensor, str]] = {
    "a low": ("output", lambda: ops.pack_per_sample(random(6, 32), 4), W, "activations count from a `low` that is not"),
    "reflected rows": ("output", lambda: ops.pack_block_householder(random(6, 32), 4), W, r"formed \(Householder\)"),
    "a table": ("output", lambda: replace(X, transform=(Table(torch.zeros(256)),)), W, r"transformed \(Table\)"),
    "a wide format": ("output", lambda: ops.pack_codes(random(6, 32), parse_format("1-4-3")), W, "span 491520 of its"),
    "a format with NaN": (
        "output", lambda: ops.pack_codes(random(6, 32), parse_format("1-2-1:fnuz")), W, "has codes for NaN or infinity",
    ),
    "two zeros": (
        "output", lambda: replace(coded(CODES, 1, torch.ones(6)), zero=torch.arange(6.0)), W, "different codes for",
    ),
    "half a zero": (
        "output", lambda: replace(coded(CODES, 1, 1.0), zero=torch.tensor(0.5)), W, "from 0 to 255; got 0.5",
    ),
    "no zero": (
        "output", lambda: replace(coded(CODES, 1, 1.0), zero=torch.tensor(torch.nan)), W, "0 to 255; got nan",
    ),
    "folded activations": ("output", lambda: coded(CODES, 1, 1.0, torch.ones(32)), W, "only a gradient may be"),
    "scales along the sum of dX": ("input_gradient", lambda: G, BY_ROW, r"the gradient by `fold_of\(weight\)`"),
    "other factors": (
        "input_gradient", lambda: ops.pack_integers(random(6, 5), 4, fold=torch.ones(5)), BY_ROW, "by other factors",
    ),
    "factors without scales": (
        "input_gradient", lambda: ops.pack_integers(random(6, 5), 4, fold=torch.ones(5)), W, "by other factors than",
    ),
    "factors of rows": (
        "weight_gradient", lambda: replace(G, transform=(Folded(torch.ones(6), 0),)), X, "its channels are dimension 1",
    ),
    "rows of G in dW": (
        "weight_gradient", lambda: ops.pack_integers(random(6, 5), 4, per="channel", symmetric=True), X,
        "sums over the rows of the gradient, which have scales of their own",
    ),
    "rows of X in dW": (
        "weight_gradient", lambda: G, ops.pack_integers(random(6, 32), 4, per="channel", symmetric=True),
        "sums over the rows of the activations, which have",
    ),
    "blocks along rows": (
        "weight_gradient", lambda: ops.quantize_block_codes(random(6, 5), MX), X, "blocks of the gradient lie along",
    ),
    "blocks that are folded": (
        "input_gradient", lambda: ops.pack_integers(random(6, 5), 4, fold=torch.ones(5)),
        ops.quantize_block_codes(random(5, 32), MX), "blocks of the weights lie along another dimension",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REASONS)
def test_the_reason_is_one_sentence(why: str) -> None:
    product, make, other, expected = REASONS[why]
    reason = ops.reason_not_integer(product, make(), other)  # type: ignore[arg-type]
    assert reason is not None
    assert re.search(expected, reason), reason
    assert reason.endswith(".")
    assert "\n" not in reason
    product_of = {"output": ops.integer_linear, "input_gradient": _d_x, "weight_gradient": _d_weight}[product]
    with pytest.raises(InvalidValue, match=expected):
        product_of(make(), other)


def _d_x(g: CodedTensor, weight: CodedTensor) -> Any:
    return ops.integer_linear_backward(g, None, weight, (True, False, False))


def _d_weight(g: CodedTensor, x: CodedTensor) -> Any:
    return ops.integer_linear_backward(g, x, None, (False, True, False))


def test_those_that_can_meet_have_no_reason() -> None:
    folded = ops.pack_integers(random(6, 5), 4, fold=ops.fold_of(BY_ROW))
    assert ops.reason_not_integer("output", X, BY_ROW) is None
    assert ops.reason_not_integer("input_gradient", folded, BY_ROW) is None
    assert ops.reason_not_integer("weight_gradient", folded, X) is None
    assert ops.reason_not_integer("output", IMAGE, KERNEL, convolution=True) is None
    assert ops.fold_of(W) is None


CONVOLUTIONS: dict[str, tuple[str, CodedTensor, CodedTensor, str]] = {
    "scales of samples": (
        "output", ops.pack_integers(random(2, 3, 5, 5), 4, per="channel", symmetric=True), KERNEL,
        "samples of the activations have scales of their own; a convolution takes one",
    ),
    "blocks": (
        "output", IMAGE, ops.quantize_block_codes(random(4, 3, 3, 3), MX), "blocks of the weights lie along another",
    ),
    "scales along the sum of dX": (
        "input_gradient", D_IMAGE, ops.pack_integers(random(4, 3, 3, 3), 4, per="channel", symmetric=True),
        "the product sums over the rows of the weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", CONVOLUTIONS)
def test_convolutions_have_reasons_too(why: str) -> None:
    product, first, second, expected = CONVOLUTIONS[why]
    reason = ops.reason_not_integer(product, first, second, convolution=True)  # type: ignore[arg-type]
    assert reason is not None
    assert expected in reason


SHAPES: dict[str, tuple[Callable[[], Any], str]] = {
    "inputs": (lambda: ops.integer_linear(X, G), r"got \(6, 5\) and \(6, 32\)\."),
    "a weight of images": (lambda: ops.integer_linear(X, KERNEL), r"\(outputs, inputs\); got \(4, 3, 3, 3\)"),
    "a long bias": (lambda: ops.integer_linear(X, W, torch.ones(6)), "bias must have 5 elements; got 6"),
    "outputs": (lambda: _d_x(X, W), r"gives results of \(\.\.\., 5\); got a gradient of \(6, 32\)"),
    "rows": (lambda: _d_weight(W, X), r"must have the same rows; got shapes \(5, 32\) and \(6, 32\)"),
    "a gradient of another size": (
        lambda: ops.integer_convolution_backward(D_IMAGE, IMAGE, KERNEL, Geometry((1, 1), (1, 1), (1, 1))),
        r"the shape of the layer's result, \(2, 4, 5, 5\); got \(2, 4, 3, 3\)",
    ),
    "a kernel that is too large": (
        lambda: ops.integer_convolution(D_IMAGE, ops.pack_integers(random(2, 4, 9, 9), 4)), "is too large for an x of",
    ),
    "three dimensions": (
        lambda: ops.integer_convolution(*(ops.pack_integers(random(2, 2, 3, 3, 3), 4) for _ in range(2))),
        "for each of the last 1 to 2; got",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SHAPES)
def test_shapes_that_do_not_fit_are_refused(what: str) -> None:
    call, expected = SHAPES[what]
    with pytest.raises(InvalidValue, match=expected):
        call()


def test_a_tensor_is_no_coded_tensor() -> None:
    plain: Any = random(6, 32)
    for call in (
        lambda: ops.reason_not_integer("output", plain, W),
        lambda: ops.integer_linear(plain, W),
        lambda: ops.integer_linear_backward(G, plain, W),
        lambda: ops.integer_convolution(plain, KERNEL),
        lambda: ops.integer_convolution_backward(D_IMAGE, IMAGE, plain),
    ):
        with pytest.raises(InvalidType, match=r"\w+ must be a CodedTensor; got an object of type Tensor\."):
            call()


@pytest.mark.parametrize("make", [lambda x: ops.pack_integers(x, 4), lambda x: ops.pack_per_tensor(x, 4)])
def test_nan_in_an_operand_is_nan_in_the_result(make: Callable[[Tensor], CodedTensor]) -> None:
    x = random(6, 32)
    x[3, 4] = torch.nan
    assert bool(ops.integer_linear(make(x), W).isnan().all())
    g = random(6, 5)
    g[0, 0] = torch.nan
    for part in ops.integer_linear_backward(make(g), X, W):
        assert part is not None
        assert bool(part.isnan().all())


def test_nan_in_a_channel_of_the_weight_is_nan_in_its_outputs() -> None:
    weight = random(5, 32)
    weight[2, 7] = torch.inf
    packed = ops.pack_integers(weight, 4, per="channel", symmetric=True)
    found = ops.integer_linear(X, packed)
    assert bool(found[:, 2].isnan().all())
    assert not bool(found[:, [0, 1, 3, 4]].isnan().any())


def test_a_broken_layout_is_refused() -> None:
    layout = Layout((6, 32), (32, 1), torch.float32, bits=4, width=9)
    with pytest.raises(InvalidValue, match="got length=9"):
        ops.integer_linear(replace(X, layout=layout), W)
