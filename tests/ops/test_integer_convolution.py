"""Convolutions of codes and their backward: exact against int64, tap by tap, for any geometry."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from bits import compiled, plain
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from integers import Taps, codes, machines, scaled, whole
from torch import Tensor

from lograd.ops.geometry import output_size
from lograd.ops.registry import operators

PRODUCTS = ["integer_convolution", "integer_convolution_input_gradient", "integer_convolution_weight_gradient"]


class Case(NamedTuple):
    """Arguments of one of the three operators, and its result."""

    name: str
    arguments: tuple[Any, ...]
    expected: Tensor


def _scales(draw: st.DrawFn, *counts: int) -> Tensor | None:
    count = draw(st.sampled_from([None, *counts]))
    return None if count is None else torch.rand(count, generator=torch.Generator().manual_seed(count)) + 0.1


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    """Any geometry that leaves an output, with codes of any width in any layout."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inner, outer = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 17, 33])), draw(st.sampled_from([1, 2, 7, 16, 19]))
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    batch = draw(st.integers(1, 5))
    out = output_size(size, kernel, stride, padding, dilation)
    assume(min(out) > 0)
    (x, x_zero), (weight, weight_zero), (g, g_zero) = (
        draw(codes(shape))
        for shape in (
            (batch, groups * inner, *size), (groups * outer, inner, *kernel), (batch, groups * outer, *out),
        )
    )  # fmt: skip
    geometry = (list(stride), list(padding), list(dilation), groups)
    taps = Taps(stride, padding, dilation, groups)
    columns, bias = _scales(draw, 1, groups * outer), _scales(draw, groups * outer)
    lay = draw(st.sampled_from(LAYOUTS))
    if name == PRODUCTS[0]:
        sums = taps.output(whole(x, x_zero), whole(weight, weight_zero), out)
        expected = scaled(sums.movedim(1, -1), columns, None, bias).movedim(-1, 1)
        return Case(name, (lay(x), lay(weight), x_zero, weight_zero, columns, bias, *geometry), expected)
    if name == PRODUCTS[1]:
        one = _scales(draw, 1)
        sums = taps.input_gradient(whole(g, g_zero), whole(weight, weight_zero), size)
        arguments = (lay(g), lay(weight), g_zero, weight_zero, one, *geometry, list(size))
        return Case(name, arguments, scaled(sums, one, None, None))
    sums = taps.weight_gradient(whole(g, g_zero), whole(x, x_zero), kernel)
    arguments = (lay(g), lay(x), g_zero, x_zero, columns, *geometry, list(kernel))
    return Case(name, arguments, scaled(sums.movedim(0, -1), columns, None, None).movedim(-1, 0))


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(2, 3).contiguous().transpose(2, 3)


def _gaps(x: Tensor) -> Tensor:
    return torch.stack([x, 255 - x], dim=-1).flatten(-2)[..., ::2]


LAYOUTS = [lambda x: x, _channels_last, _transposed, _gaps]


def check(case: Case, kernel: Any, where: object = "") -> None:
    found = kernel(*case.arguments)
    assert torch.equal(found, case.expected), where
    assert found.movedim(1, -1).is_contiguous(), "channels-last memory is promised"


@pytest.mark.parametrize("name", PRODUCTS)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_definition_is_exact(name: str, data: st.DataObject) -> None:
    check(data.draw(cases(name)), plain(name))


@pytest.mark.parametrize("name", PRODUCTS)
@given(st.data())
@settings(max_examples=80, deadline=None)
def test_every_instruction_set_and_number_of_threads_is_exact(name: str, data: st.DataObject) -> None:
    if "cpu" not in operators[name].kernels:
        pytest.skip("no native kernels")
    case = data.draw(cases(name))
    for where in machines():
        check(case, compiled(name), where)


LAYERS = {
    "3x3": ((16, 64, 16, 16), (64, 64, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    "3x3, stride 2": ((9, 48, 17, 15), (80, 48, 3, 3), [2, 2], [1, 1], [1, 1], 1),
    "1x1": ((5, 100, 14, 14), (37, 100, 1, 1), [1, 1], [0, 0], [1, 1], 1),
    "1x1, stride 2": ((4, 64, 9, 9), (128, 64, 1, 1), [2, 2], [0, 0], [1, 1], 1),
    "7x7, three channels": ((3, 3, 30, 30), (64, 3, 7, 7), [2, 2], [3, 3], [1, 1], 1),
    "groups": ((6, 64, 8, 8), (96, 16, 3, 3), [1, 1], [1, 1], [1, 1], 4),
    "depthwise": ((3, 20, 9, 9), (20, 1, 3, 3), [1, 1], [1, 1], [1, 1], 20),
    "wide padding": ((2, 8, 3, 3), (8, 8, 3, 3), [1, 2], [4, 5], [1, 1], 1),
    "dilation": ((2, 17, 12, 11), (15, 17, 3, 2), [1, 1], [2, 0], [2, 3], 1),
    "one pixel": ((33, 70, 1, 1), (40, 70, 3, 3), [1, 1], [1, 1], [1, 1], 1),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_layers_of_real_networks(name: str, layer: str) -> None:
    """Larger than the blocks of the caches, against the definition."""
    if "cpu" not in operators[name].kernels:
        pytest.skip("no native kernels")
    x, weight, *geometry = LAYERS[layer]
    out = output_size(x[2:], weight[2:], *geometry[:3])
    generator = torch.Generator().manual_seed(1)
    for bits in (4, 6, 8):
        image, kernel, g = (
            torch.randint(0, 2**bits, shape, generator=generator).to(torch.uint8)
            for shape in (x, weight, (x[0], weight[0], *out))
        )
        zero, columns = 2 ** (bits - 1), torch.rand(weight[0])
        arguments: tuple[Any, ...] = {
            PRODUCTS[0]: (image, kernel, 0, zero, columns, columns, *geometry),
            PRODUCTS[1]: (g, kernel, zero, zero, columns[:1], *geometry, list(x[2:])),
            PRODUCTS[2]: (g, image, zero, 0, columns, *geometry, list(weight[2:])),
        }[name]
        expected = plain(name)(*arguments)
        for where in machines():
            assert torch.equal(compiled(name)(*arguments), expected), (bits, where)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_one_dimension_is_an_image_of_height_one(name: str, backend: str) -> None:
    if backend not in operators[name].kernels:
        pytest.skip("no native kernels")
    kernel = operators[name].kernels[backend]
    x, weight, g = (torch.randint(0, 16, shape, dtype=torch.uint8) for shape in ((3, 12, 20), (10, 6, 5), (3, 10, 9)))
    flat, tall = ([2], [1], [1], 2), ([1, 2], [0, 1], [1, 1], 2)
    if name == PRODUCTS[0]:
        found = kernel(x, weight, 3, 7, None, None, *flat)
        expected = kernel(x[:, :, None], weight[:, :, None], 3, 7, None, None, *tall)
    elif name == PRODUCTS[1]:
        found = kernel(g, weight, 3, 7, None, *flat, [20])
        expected = kernel(g[:, :, None], weight[:, :, None], 3, 7, None, *tall, [1, 20])
    else:
        found = kernel(g, x, 3, 7, None, *flat, [5])
        expected = kernel(g[:, :, None], x[:, :, None], 3, 7, None, *tall, [1, 5])
    assert torch.equal(found, expected.squeeze(2))
    assert found.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_no_images(backend: str) -> None:
    """An empty batch has an empty result, and a weight gradient of zeros."""
    weight, geometry = torch.zeros((5, 4, 3, 3), dtype=torch.uint8), ([1, 1], [1, 1], [1, 1], 1)
    x, g = (torch.zeros((0, channels, 6, 6), dtype=torch.uint8) for channels in (4, 5))
    for name, arguments, shape in (
        (PRODUCTS[0], (x, weight, 1, 2, None, None, *geometry), (0, 5, 6, 6)),
        (PRODUCTS[1], (g, weight, 1, 2, None, *geometry, [6, 6]), (0, 4, 6, 6)),
        (PRODUCTS[2], (g, x, 1, 2, None, *geometry, [3, 3]), (5, 4, 3, 3)),
    ):
        if backend in operators[name].kernels:
            assert torch.equal(operators[name].kernels[backend](*arguments), torch.zeros(shape)), name


def test_weight_gradients_of_many_pixels_do_not_overflow() -> None:
    """40,000 products of 255 x 255 are beyond 32 bits."""
    name = PRODUCTS[2]
    if "cpu" not in operators[name].kernels:
        pytest.skip("no native kernels")
    g, x = (torch.full((10, channels, 64, 64), 255, dtype=torch.uint8) for channels in (7, 18))
    expected = torch.full((7, 18, 1, 1), 255 * 255 * 40960).float()
    for where in machines():
        found = compiled(name)(g, x, 0, 0, None, [1, 1], [0, 0], [1, 1], 1, [1, 1])
        assert torch.equal(found, expected), where
