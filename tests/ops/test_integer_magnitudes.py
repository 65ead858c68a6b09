"""Integer products of operands of any magnitude: right wherever the true value is a float32 number.

The product of two steps may overflow or vanish where the scaled sum does not.  Everything is held against float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lograd
from lograd import Plan, ops, parse_format
from lograd.nn.softmax_attention import integer_attention, integer_attention_backward
from lograd.ops.coded import CodedTensor, Folded
from lograd.ops.geometry import Geometry
from lograd.ops.scaled_products import Steps

MAGNITUDES = [1e-38, 1e-30, 1e-20, 1e-5, 1.0, 1e10, 1e20, 1e25, 1e37]
PAIRS = [(a, b) for a in MAGNITUDES for b in MAGNITUDES]
LARGEST, SMALLEST = torch.finfo(torch.float32).max, 2.0**-149
GEOMETRY = Geometry((1, 1), (1, 1), (1, 1))


def random(*shape: int) -> Tensor:
    """Numbers up to 3 in size; a row of zeros, whose sums are 0, and a last element that keeps a range of its own."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).clamp(-3, 3)
    x[0] = 0
    return x


def exactly(coded: CodedTensor) -> Tensor:
    """What a coded tensor stands for, in float64."""
    by_row = [-1] + [1] * (coded.codes.dim() - 1)
    zero = torch.zeros(1) if coded.zero is None else coded.zero
    value = (coded.codes.double() - zero.double().reshape(by_row)) / coded.scale.double().reshape(by_row)
    for step in coded.transform:
        assert isinstance(step, Folded)
        value = value / step.factors.double().reshape([-1 if dim == step.dim else 1 for dim in range(value.dim())])
    return value


def near(found: Tensor | None, exact: Tensor, size: Tensor) -> None:
    """Equal to a few roundings of the terms, whose magnitudes add up to `size`; infinite beyond float32, never NaN."""
    assert found is not None
    finite = exact.abs() < LARGEST * (1 - 1e-6)
    error = (found.double() - exact).abs()
    assert not bool(found.isnan().any())
    assert bool((error[finite] <= 2.0**-20 * size[finite] + SMALLEST).all())
    assert bool(found[exact.abs() > LARGEST * (1 + 1e-6)].isinf().all())


def packed(x: Tensor, **options: Any) -> CodedTensor:
    coded: CodedTensor = ops.pack_integers(x, 8, **options)
    return coded


WEIGHTS = {"tensor": {}, "channel": {"per": "channel", "symmetric": True}}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_linear(one: float, other: float, weights: str) -> None:
    x, weight = packed(one * random(6, 40)), packed(other * random(9, 40), **WEIGHTS[weights])
    a, b = exactly(x), exactly(weight)
    bias = 1e30 * random(9)
    near(ops.integer_linear(x, weight), a @ b.t(), a.abs() @ b.abs().t())
    near(
        ops.integer_linear(x, weight, bias),
        F.linear(a, b, bias.double()),
        F.linear(a.abs(), b.abs(), bias.abs().double()),
    )


def folded(g: Tensor, weight: CodedTensor) -> CodedTensor:
    fold = ops.fold_of(weight)
    return packed(g) if fold is None else packed(g, fold=fold)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_linear_backward(one: float, other: float, weights: str) -> None:
    """The gradient against weights and against activations; one that was folded has the magnitude of both."""
    plain = packed(other * random(9, 40))
    weight = packed(other * random(9, 40), **WEIGHTS[weights]) if 1e-28 < one * other < 1e28 else plain
    gradient, x = one * random(6, 9), packed(other * random(6, 40))
    g, inputs, matrix = folded(gradient, weight), exactly(x), exactly(weight)
    rows = exactly(g)
    d_x, _, _ = ops.integer_linear_backward(g, None, weight, need=(True, False, False))
    near(d_x, rows @ matrix, rows.abs() @ matrix.abs())
    g = packed(gradient)
    rows = exactly(g)
    _, d_weight, d_bias = ops.integer_linear_backward(g, x, None, need=(False, True, True))
    near(d_weight, rows.t() @ inputs, rows.abs().t() @ inputs.abs())
    near(d_bias, rows.sum(0), rows.abs().sum(0))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_rows_and_columns_with_steps_of_their_own(one: float, other: float) -> None:
    """Rows of one result have magnitudes from 1 to `one`, its columns from 1 to `other`."""
    x, weight = random(6, 40), random(9, 40)
    x[::2] *= one
    weight[::2] *= other
    first, second = (packed(each, per="channel", symmetric=True) for each in (x, weight))
    a, b = exactly(first), exactly(second)
    near(ops.integer_linear(first, second), a @ b.t(), a.abs() @ b.abs().t())


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_matmul(one: float, other: float) -> None:
    a, b = packed(one * random(2, 6, 40)), packed(other * random(2, 9, 40))
    first, second = exactly(a), exactly(b)
    found = ops.integer_matmul(a, b, transpose_b=True)
    near(found, first @ second.mT, first.abs() @ second.abs().mT)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_convolution(one: float, other: float, weights: str) -> None:
    x, weight = packed(one * random(3, 8, 5, 6)), packed(other * random(7, 8, 3, 3), **WEIGHTS[weights])
    a, b, bias = exactly(x), exactly(weight), 1e30 * random(7)
    exact, size = (F.conv2d(*each, padding=1) for each in ((a, b), (a.abs(), b.abs())))
    near(ops.integer_convolution(x, weight, None, GEOMETRY), exact, size)
    along = bias.double().view(-1, 1, 1)
    near(ops.integer_convolution(x, weight, bias, GEOMETRY), exact + along, size + along.abs())


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_convolution_backward(one: float, other: float, weights: str) -> None:
    plain = packed(other * random(7, 8, 3, 3))
    weight = packed(other * random(7, 8, 3, 3), **WEIGHTS[weights]) if 1e-28 < one * other < 1e28 else plain
    gradient, x = one * random(3, 7, 5, 6), packed(other * random(3, 8, 5, 6))
    for g, need in ((folded(gradient, weight), (True, False, False)), (packed(gradient), (False, True, True))):
        results = ops.integer_convolution_backward(g, x, weight, GEOMETRY, need)
        rows, inputs, matrix = exactly(g), exactly(x), exactly(weight)
        expected = [
            torch.ops.aten.convolution_backward(*each, [7], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(need))
            for each in ((rows, inputs, matrix), (rows.abs(), inputs.abs(), matrix.abs()))
        ]
        for found, exact, size in zip(results, *expected, strict=True):
            if found is not None:
                near(found, exact, size)


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("formats", [("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"), ("nvfp4", "int8"), ("int8", "mxfp4")])
def test_blocks(formats: tuple[str, str], one: float, other: float) -> None:
    coded = []
    for format, magnitude, rows in zip(formats, (one, other), (6, 9), strict=True):
        x = magnitude * random(rows, 64)
        scale = {"tensor_scale": magnitude} if format == "nvfp4" else {}
        coded.append(
            packed(x, per="channel", symmetric=True) if format == "int8"
            else ops.quantize_block_codes(x, parse_format(format), **scale)
        )  # fmt: skip
    first, second = (
        exactly(each) if each.block_scales is None else each.decode(torch.float32).double() for each in coded
    )
    near(ops.integer_linear(*coded), first @ second.t(), first.abs() @ second.abs().t())


@pytest.mark.parametrize(("one", "other"), [(1e-30, 1e-20), (1e25, 1e15), (1e-30, 1e30), (1.0, 1.0), (1e-20, 1e32)])
def test_attention(one: float, other: float) -> None:
    """Queries, and values and gradients, of any magnitude; keys make up for that of the queries."""
    q, k, v, g = one * random(2, 6, 8), random(2, 5, 8) / one, other * random(2, 5, 8), random(2, 6, 8) / other
    key = torch.tensor([3, 0])
    reference = [each.double().requires_grad_() for each in (q, k, v)]
    F.scaled_dot_product_attention(*reference).backward(g.double())
    out, *codes = integer_attention(q, k, v, None, key, 8**-0.5, 0.0, 8)
    found = integer_attention_backward(g, *codes, None, key, 8**-0.5, 0.0, 8)
    exact = F.scaled_dot_product_attention(*(each.detach() for each in reference))
    for one_found, one_exact in zip((out, *found), (exact, *(each.grad for each in reference)), strict=True):
        assert one_exact is not None
        assert bool(((one_found.double() - one_exact).abs() <= 0.05 * one_exact.abs().max() + SMALLEST).all())


LAYERS = {
    "linear": (lambda: nn.Linear(96, 33), (20, 96)),
    "convolution": (lambda: nn.Conv2d(16, 20, 3, padding=1), (2, 16, 7, 6)),
}


@pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")
@pytest.mark.parametrize("recipe", ["int8-full", "fqt8-psq"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("x_size", "weight_size", "g_size"),
    [(1e25, 1e-20, 1e-10), (1e-30, 1e-12, 1e5), (1e-25, 1e20, 1e-30), (1e30, 1e5, 1e-32), (1e-35, 1.0, 1e35)],
)
def test_attached_layers(x_size: float, weight_size: float, g_size: float, layer: str, recipe: str) -> None:
    """Y, dX and dW of a layer in integers are those of the dense layer, up to what 8 bits leave."""
    make, shape = LAYERS[layer]
    torch.manual_seed(1)
    model = nn.Sequential(make())
    with torch.no_grad():
        model[0].weight.copy_(weight_size * torch.randn_like(model[0].weight))
        model[0].bias.zero_()
    x = (x_size * torch.randn(shape)).requires_grad_()
    y = F.linear if layer == "linear" else lambda *two: F.conv2d(*two, padding=1)
    wide = x.detach().double().requires_grad_(), model[0].weight.detach().double().requires_grad_()
    expected = y(*wide)
    g = g_size * torch.randn(expected.shape)
    expected.backward(g.double())
    with lograd.attach(model, Plan.uniform(recipe), backend="integer"):
        found = model(x)
        found.backward(g)
    pairs = ((found, expected), (x.grad, wide[0].grad), (model[0].weight.grad, wide[1].grad))
    for one, exact in pairs:
        assert one is not None
        assert exact is not None
        size = exact.detach().abs().max()
        assert size > LARGEST or bool(((one.double() - exact).abs() <= 0.1 * size + SMALLEST).all())


def test_ordinary_steps_are_multiplied_once() -> None:
    one, other, divisor = torch.rand(3, 7) + 0.1
    assert torch.equal(Steps((one, other)).product(), one * other)
    assert torch.equal(Steps((one, other), divisor).product(), one * other / divisor)
    assert Steps((torch.tensor([1e-39]),)).product() is not None  # nothing is multiplied
    assert Steps((1e-39 * one, 1e10 * other)).product() is not None
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([torch.nan, 1.0])
    assert torch.equal(Steps((zero, zero)).product(), zero)
    assert torch.equal(Steps((nan, torch.ones(1))).product().isnan(), nan.isnan())
    for size in (1e-20, 1e20):
        assert Steps((size * one, size * other)).product() is None
        assert Steps((size * one, size * other), size * divisor).product() is None, "on the way"


def test_a_scale_of_nan_gives_nan() -> None:
    x, weight = random(6, 40), random(9, 40)
    x[3, 3] = torch.nan
    for size in (1e-30, 1.0, 1e30):
        assert bool(ops.integer_linear(packed(size * x), packed(size * weight)).isnan().all())
        images = (packed(size * each.reshape(len(each), 8, 5, 1)) for each in (x, weight))
        assert bool(ops.integer_convolution(*images).isnan().all())
