"""Gradients of learned ranges: the native kernel against the definition, bit for bit, sums included."""

from __future__ import annotations

import math

import pytest
import torch
from bits import DTYPES, MACHINES, any_bits, assert_same_bits, compiled, machine, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lograd import InvalidValue, LogradError
from lograd.ops.registry import call

RANGES = [(-7, 7), (0, 15), (-1, 1), (0, 255), (-127, 127)]


@settings(max_examples=30, deadline=None)
@given(pair=any_bits(3000, rows=2), factor=st.floats(1e-3, 1e3), ends=st.sampled_from(RANGES), same_place=st.booleans())
@pytest.mark.parametrize("isa", MACHINES, ids=str)
def test_native_equals_the_definition(
    isa: tuple[str, int], pair: Tensor, factor: float, ends: tuple[int, int], same_place: bool
) -> None:
    g, x = pair.clone().unbind()
    x = x if same_place else pair.new_zeros(len(x) + 1)[1:].copy_(x)  # another alignment
    wanted = plain("range_gradients")(g, x, factor, *ends)
    with machine(*isa):
        found = compiled("range_gradients")(g, x, factor, *ends)
    assert_same_bits(_one_nan(found[0]), _one_nan(wanted[0]))
    assert torch.equal(_without_nan(found[1]), _without_nan(wanted[1]))


def _one_nan(x: Tensor) -> Tensor:
    """The sign and payload of a NaN that arithmetic makes are the machine's."""
    return torch.where(x.isnan(), math.nan, x)


def _without_nan(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), 1.5, x)


@pytest.mark.parametrize("isa", MACHINES, ids=str)
def test_large_tensors_on_many_threads(isa: tuple[str, int]) -> None:
    """Written past the cache, in pieces of several threads, the last of them ragged."""
    torch.manual_seed(0)
    g, x = torch.randn(1_100_003), torch.randn(1_100_003)
    wanted = plain("range_gradients")(g, x, 3.1, -7, 7)
    with machine(*isa):
        found = compiled("range_gradients")(g, x, 3.1, -7, 7)
    assert_same_bits(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_meet(dtype: torch.dtype) -> None:
    """The result lies as g does, and the order of the sum is that of its memory."""
    torch.manual_seed(1)
    g, x = torch.randn(3, 5, 7, 9).to(dtype), torch.randn(3, 5, 7, 9).to(dtype)
    turned = g.to(memory_format=torch.channels_last)
    d_x, total = call("range_gradients", turned, x, 2.0, 0, 15)
    assert d_x.stride() == turned.stride()
    other, close = call("range_gradients", g, x, 2.0, 0, 15)
    assert torch.equal(d_x, other)
    assert float(total) == pytest.approx(float(close), abs=1e-12 * g.numel())


def test_the_sum_is_that_of_float64() -> None:
    torch.manual_seed(2)
    g, x = torch.randn(50_000), torch.randn(50_000)
    y = x.double() * 2.0
    slope = torch.where(y.abs() <= 7, y.round() - y, 7 * y.sign())
    assert float(call("range_gradients", g, x, 2.0, -7, 7)[1]) == pytest.approx(float((g * slope).sum()), rel=1e-6)
    assert float(call("range_gradients", g[:0], x[:0], 2.0, -7, 7)[1]) == 0.0


def test_elements_beyond_all_numbers_count_as_the_last_level() -> None:
    x = torch.tensor([1e38, -math.inf, 0.0])
    d_x, total = call("range_gradients", torch.ones(3), x, 10.0, -7, 7)
    assert d_x.tolist() == [0, 0, 1]
    assert float(total) == 0.0


def test_refusals() -> None:
    x = torch.zeros(4)
    operator = torch.ops.lograd.range_gradients.default
    with pytest.raises(LogradError, match="g must be like x"):
        operator(x, torch.zeros(5), 1.0, -7, 7)
    with pytest.raises(LogradError, match="g must be like x"):
        operator(x, x.bfloat16(), 1.0, -7, 7)
    with pytest.raises(InvalidValue, match="-255 and 255"):
        operator(x, x, 1.0, 1, 7)
