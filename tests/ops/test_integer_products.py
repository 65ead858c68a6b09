"""Integer products of coded tensors against the products of what they decode to, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lograd import InvalidValue, ops, parse_format
from lograd.ops.coded import CodedTensor, Layout
from lograd.ops.geometry import Geometry

EPSILON = 2.0**-23

Pack = Callable[[Tensor], CodedTensor]


def integers(bits: int, **options: Any) -> Pack:
    return lambda x: ops.pack_integers(x, bits, **options)


def numbers(name: str) -> Pack:
    """Codes of a format, with a scale."""
    return lambda x: ops.pack_codes(x, parse_format(name), 1.5)


def blocks(name: str, **options: Any) -> Pack:
    return lambda x: ops.quantize_block_codes(x, parse_format(name), **options)


ACTIVATIONS: dict[str, Pack] = {
    "int4": integers(4),
    "int8": integers(8),
    "int6, behind a ReLU": lambda x: ops.pack_integers(x.relu(), 6),
    "in nibbles": lambda x: ops.pack_integers(x, 4).in_nibbles(),
    "int3 in two's complement": numbers("int3"),
    "uint5": numbers("uint5"),
    "e2m3": numbers("e2m3"),
    "one range": lambda x: ops.pack_per_tensor(x, 5),
}
WEIGHTS: dict[str, Pack] = {
    "int4 by channel": integers(4, per="channel", symmetric=True),
    "int8": integers(8, symmetric=True),
    "e2m1": numbers("e2m1"),
    "1-3-0": numbers("1-3-0"),
}
GRADIENTS: dict[str, Pack] = {
    "int4": integers(4, rounding="stochastic"),
    "luq": ops.pack_luq,
    "int8": integers(8, rounding="stochastic"),
    "interval": lambda x: ops.pack_interval(x, 4, 0.9).result,
}


def magnitude(coded: CodedTensor) -> Tensor:
    return coded.decode(torch.float32).double().abs()


def near(found: Tensor | None, exact: Tensor, size: Tensor) -> None:
    """Equal up to the roundings of decoded values and of the scaled sum; `size` is the product of the magnitudes."""
    assert found is not None
    assert found.dtype == torch.float32
    assert found.shape == exact.shape
    assert bool(((found.double() - exact).abs() <= 4 * EPSILON * size).all())


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def for_weight(pack: str, g: Tensor, weight: CodedTensor, dim: int) -> CodedTensor:
    """The gradient, multiplied by the weight's steps first where dX needs it."""
    fold = ops.fold_of(weight)
    if fold is None:
        return GRADIENTS[pack](g)
    return ops.pack_integers(g, 4, rounding="stochastic", fold=fold, fold_dim=dim)


@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 4, 33), (40,), (3, 0, 8)], ids=str)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_linear(activations: str, weights: str, shape: tuple[int, ...]) -> None:
    x, weight = ACTIVATIONS[activations](random(*shape)), WEIGHTS[weights](random(19, shape[-1]))
    bias = random(19)
    exact, sizes = x.decode().double(), weight.decode().double()
    found = ops.integer_linear(x, weight, bias)
    near(found, F.linear(exact, sizes, bias.double()), F.linear(exact.abs(), sizes.abs(), bias.double().abs()))
    assert torch.equal(ops.integer_linear(x, weight), ops.integer_linear(x, weight, torch.zeros(19)))


@pytest.mark.parametrize("shape", [(50, 37), (2, 3, 4, 33), (40,)], ids=str)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("gradients", GRADIENTS)
def test_linear_backward(gradients: str, weights: str, shape: tuple[int, ...]) -> None:
    for activations in ("int4", "int6, behind a ReLU", "e2m3"):
        x, weight = ACTIVATIONS[activations](random(*shape)), WEIGHTS[weights](random(19, shape[-1]))
        if len(shape) == 1 and ops.fold_of(weight) is not None:
            continue  # a single row has no channels of dimension 1
        g = for_weight(gradients, random(*shape[:-1], 19), weight, len(shape) - 1)
        d_x, d_weight, d_bias = ops.integer_linear_backward(g, x, weight)
        rows, inputs = (each.decode().double().reshape(-1, each.layout.shape[-1]) for each in (g, x))
        matrix = weight.decode().double()
        near(d_x, (rows @ matrix).view(shape), (rows.abs() @ matrix.abs()).view(shape))
        near(d_weight, rows.t() @ inputs, rows.abs().t() @ inputs.abs())
        near(d_bias, rows.sum(0), rows.abs().sum(0))


def test_rows_of_activations_have_scales_of_their_own() -> None:
    """One for each of the first dimension, in the result and in dX; not where the product sums over them."""
    by_row = integers(4, per="channel", symmetric=True)
    weight, other = integers(5)(random(7, 20)), integers(4)(random(20, 7))
    for shape in ((4, 20), (4, 3, 20)):
        rows = by_row(random(*shape))
        exact, matrix = rows.decode().double(), weight.decode().double()
        near(ops.integer_linear(rows, weight), exact @ matrix.t(), exact.abs() @ matrix.abs().t())
        d_x, _, d_bias = ops.integer_linear_backward(rows, None, other, (True, False, True))
        near(d_x, exact @ other.decode().double(), exact.abs() @ magnitude(other))
        near(d_bias, exact.flatten(0, -2).sum(0), exact.abs().flatten(0, -2).sum(0))


BLOCKS = {
    "mxfp4": (blocks("mxfp4"), blocks("mxfp4")),
    "mxfp4, unbiased": (blocks("mxfp4", rounding="stochastic", variant="unbiased"), blocks("mxfp4")),
    "nvfp4": (blocks("nvfp4", tensor_scale=0.01), blocks("nvfp4")),
    "mxfp4 x nvfp4": (blocks("mxfp4"), blocks("nvfp4")),
    "mxfp6 x mxfp4": (blocks("mxfp6-e2m3"), blocks("mxfp4")),
    "mxfp4 x int8 by channel": (blocks("mxfp4"), integers(8, per="channel", symmetric=True)),
    "luq x nvfp4": (ops.pack_luq, blocks("nvfp4")),
}


@pytest.mark.parametrize("columns", [64, 40, 7])
@pytest.mark.parametrize("pair", BLOCKS)
def test_blocks(pair: str, columns: int) -> None:
    """Sums of whole blocks are scaled one by one; any length of a row, and a plain operand beside."""
    first, second = BLOCKS[pair]
    x, weight, bias = first(random(2, 5, columns)), second(random(9, columns)), random(9)
    exact, matrix = x.decode().double(), weight.decode().double()
    found = ops.integer_linear(x, weight, bias)
    size = F.linear(exact.abs(), matrix.abs(), bias.double().abs())
    near(found, F.linear(exact, matrix, bias.double()), 2 * size)


def along(x: Tensor, format: str, summed: tuple[int, ...]) -> CodedTensor:
    """Blocks along the dimensions that a product sums over."""
    layout = Layout.summed_last(x, summed)
    return replace(ops.quantize_block_codes(layout.matrix(x), parse_format(format)), layout=layout)


@pytest.mark.parametrize("leading", [(40,), (3, 7)], ids=str)
@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_backward_of_blocks(format: str, leading: tuple[int, ...]) -> None:
    """A quantized copy for each product, with blocks along what that product sums over."""
    g, x, weight = random(*leading, 24), random(*leading, 37), random(24, 37)
    rows = tuple(range(len(leading)))
    lengthwise, across = along(g, format, (len(leading),)), along(g, format, rows)
    turned, inputs = along(weight, format, (0,)), along(x, format, rows)
    d_x, _, _ = ops.integer_linear_backward(lengthwise, None, turned, (True, False, False))
    exact, matrix = lengthwise.decode().double(), turned.decode().double()
    near(d_x, exact @ matrix, 2 * exact.abs() @ matrix.abs())
    _, d_weight, d_bias = ops.integer_linear_backward(across, inputs, None, (False, True, True))
    exact, matrix = across.decode().double().flatten(0, -2), inputs.decode().double().flatten(0, -2)
    near(d_weight, exact.t() @ matrix, 2 * exact.abs().t() @ matrix.abs())
    near(d_bias, exact.sum(0), 20 * exact.abs().sum(0))
    folded = ops.pack_integers(g, 6, fold=torch.rand(24) + 0.5, fold_dim=len(leading))
    _, d_weight, _ = ops.integer_linear_backward(folded, inputs, None, (False, True, False))
    exact = folded.decode().double().flatten(0, -2)
    near(d_weight, exact.t() @ matrix, 2 * exact.abs().t() @ matrix.abs())


LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Geometry]] = {
    "3x3": ((2, 6, 9, 8), (10, 6, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    "stride and groups": ((3, 8, 7, 9), (6, 4, 3, 2), Geometry((2, 1), (0, 2), (1, 2), 2)),
    "one dimension": ((2, 5, 17), (4, 5, 3), Geometry((2,), (1,), (1,))),
}


def convolved(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    stride, padding, dilation, groups = (list(part) if isinstance(part, tuple) else part for part in geometry)
    return torch.ops.aten.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def gradients_of(g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[Tensor, ...]:
    stride, padding, dilation, groups = (list(part) if isinstance(part, tuple) else part for part in geometry)
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        g, x, weight, [len(weight)], stride, padding, dilation, False, [0] * len(stride), groups, [True] * 3
    )
    return found


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_convolution(activations: str, weights: str, layer: str, layout: str) -> None:
    x_shape, weight_shape, geometry = LAYERS[layer]
    image, kernel = random(*x_shape), random(*weight_shape)
    if layout == "channels_last":
        image, kernel = (each.movedim(1, -1).contiguous().movedim(-1, 1) for each in (image, kernel))
    x, weight = ACTIVATIONS[activations](image), WEIGHTS[weights](kernel)
    assert x.decode().stride() == image.stride()
    found = ops.integer_convolution(x, weight, None, geometry)
    near(
        found,
        convolved(x.decode().double(), weight.decode().double(), geometry),
        convolved(magnitude(x), magnitude(weight), geometry),
    )
    bias = random(weight_shape[0])
    moved = ops.integer_convolution(x, weight, bias, geometry)
    assert torch.equal(moved, found + bias.view(-1, *[1] * (found.dim() - 2)))
    assert found.movedim(1, -1).is_contiguous()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("gradients", GRADIENTS)
def test_convolution_backward(gradients: str, weights: str, layer: str) -> None:
    x_shape, weight_shape, geometry = LAYERS[layer]
    x, weight = ACTIVATIONS["int6, behind a ReLU"](random(*x_shape)), WEIGHTS[weights](random(*weight_shape))
    shape = convolved(x.decode(), weight.decode(), geometry).shape
    g = for_weight(gradients, random(*shape), weight, 1)
    found = ops.integer_convolution_backward(g, x, weight, geometry)
    exact = gradients_of(*(each.decode().double() for each in (g, x, weight)), geometry)
    sizes = gradients_of(magnitude(g), magnitude(x), magnitude(weight), geometry)
    for one, other, size in zip(found, exact, sizes, strict=True):
        near(one, other, size)


def test_only_what_is_needed_is_computed() -> None:
    x, weight, g = (ops.pack_integers(random(*shape), 4) for shape in ((6, 8), (5, 8), (6, 5)))
    whole = ops.integer_linear_backward(g, x, weight)
    for place in range(3):
        need = [place == each for each in range(3)]
        found = ops.integer_linear_backward(g, x if place == 1 else None, weight if place == 0 else None, need)
        for index, part in enumerate(found):
            assert (part is None) == (index != place)
        assert torch.equal(found[place], whole[place])  # type: ignore[arg-type]
    image, kernel, g = (ops.pack_integers(random(*shape), 4) for shape in ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3)))
    _, d_kernel, _ = ops.integer_convolution_backward(g, image, (4, 3, 3, 3), None, (False, True, False))
    d_image, _, _ = ops.integer_convolution_backward(g, (2, 3, 5, 5), kernel, None, (True, False, False))
    expected = ops.integer_convolution_backward(g, image, kernel)
    assert torch.equal(d_image, expected[0])  # type: ignore[arg-type]
    assert torch.equal(d_kernel, expected[1])  # type: ignore[arg-type]


def test_compiled_is_eager() -> None:
    """The quantizer and all products of a step, in one function."""
    x, weight, g, bias = random(8, 24), random(12, 24), random(8, 12), random(12)

    def step(x: Tensor, weight: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
        coded = ops.pack_integers(weight, 4, per="channel", symmetric=True)
        activations = ops.pack_integers(x, 4)
        gradient = ops.pack_integers(g, 4, fold=ops.fold_of(coded))
        return ops.integer_linear(activations, coded, bias), *ops.integer_linear_backward(gradient, activations, coded)

    quick = torch.compile(step, backend="aot_eager")
    for one, other in zip(quick(x, weight, g), step(x, weight, g), strict=True):
        assert torch.equal(one, other)  # type: ignore[arg-type]


def test_the_products_of_attention() -> None:
    """Q K^T and P V of heads, and the four products of their backward."""
    q, k, v = (ops.pack_integers(random(2, 3, rows, 16), 6) for rows in (9, 11, 11))
    p, d_out = ops.pack_integers(random(2, 3, 9, 11).softmax(-1), 8), integers(5)(random(2, 3, 9, 16))
    d_scores = integers(5, symmetric=True)(random(2, 3, 9, 11))
    for a, b, turns in (
        (q, k, (False, True)), (p, v, (False, False)), (d_out, v, (False, True)), (p, d_out, (True, False)),
        (d_scores, k, (False, False)), (d_scores, q, (True, False)), (k, k, (True, False)),
    ):  # fmt: skip
        one, other = (
            each.decode().double().mT if turned else each.decode().double()
            for each, turned in zip((a, b), turns, strict=True)
        )
        found = ops.integer_matmul(a, b, transpose_a=turns[0], transpose_b=turns[1])
        near(found, one @ other, one.abs() @ other.abs())
    x, weight = integers(4)(random(5, 8)), integers(4)(random(8, 3))
    near(
        ops.integer_matmul(x, weight), x.decode().double() @ weight.decode().double(), magnitude(x) @ magnitude(weight)
    )
    heads = integers(4)(random(7, 5, 8))
    assert ops.integer_matmul(heads, heads, transpose_b=True).shape == (7, 5, 5)


def test_products_of_batches_say_what_they_cannot() -> None:
    x, y = integers(4)(random(2, 5, 8)), integers(4)(random(2, 7, 8))
    with pytest.raises(InvalidValue, match=r"takes \(m, k\) and \(k, n\), or batches of them; got \(2, 5, 8\) and"):
        ops.integer_matmul(x, y)
    with pytest.raises(InvalidValue, match="batches with the same leading dimensions"):
        ops.integer_matmul(x, integers(4)(random(8, 7)))
    by_row = integers(4, per="channel", symmetric=True)(random(2, 7, 8))
    with pytest.raises(InvalidValue, match="b of a product of batches must have one scale for the tensor"):
        ops.integer_matmul(x, by_row, transpose_b=True)
