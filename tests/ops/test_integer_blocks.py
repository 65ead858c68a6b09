"""Products of matrices whose blocks have scales: exact sums in each block, added up in one order by every kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bits import compiled, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from integers import codes, machines, matmul, whole
from torch import Tensor

from lograd import native

needs_native = pytest.mark.skipif(not native.status().available, reason="no native kernels")


@st.composite
def products(draw: st.DrawFn, sizes: tuple[int, ...] = (16, 32)) -> tuple[Any, ...]:
    """Arguments of the operator; scales over many octaves, zero and NaN among them."""
    size = draw(st.sampled_from(sizes))
    m, n, blocks = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(1, 9))
    (a, a_zero), (b, b_zero) = draw(codes((m, blocks * size))), draw(codes((n, blocks * size)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scales = [torch.exp2(8 * torch.randn(rows, blocks, generator=generator)) for rows in (m, n)]
    if draw(st.booleans()):
        scales[0][0, 0], scales[1][-1, -1] = 0.0, torch.nan
    bias = torch.randn(n, generator=generator) if draw(st.booleans()) else None
    return a, b, a_zero, b_zero, *scales, torch.rand((), generator=generator), bias, size


def by_hand(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_scales: Tensor, b_scales: Tensor, scale: Tensor,
    bias: Tensor | None, size: int,
) -> Tensor:  # fmt: skip
    total = torch.zeros(len(a), len(b))
    for place in range(a.shape[1] // size):
        block = slice(place * size, (place + 1) * size)
        sums = matmul(whole(a[:, block], a_zero), whole(b[:, block], b_zero).t()).float()
        total = total + (sums * a_scales[:, place, None]) * b_scales[None, :, place]
    return total * scale if bias is None else total * scale + bias


@given(products(sizes=(1, 3, 16, 32)))
@settings(max_examples=60, deadline=None)
def test_the_definition_is_what_it_says(arguments: tuple[Any, ...]) -> None:
    assert torch.equal(plain("integer_block_matmul")(*arguments).nan_to_num(7.0), by_hand(*arguments).nan_to_num(7.0))


@needs_native
@given(products(sizes=(16, 32, 4, 8, 64, 5)))
@settings(max_examples=80, deadline=None)
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(arguments: tuple[Any, ...]) -> None:
    expected = plain("integer_block_matmul")(*arguments).nan_to_num(7.0)
    for where in machines():
        found = compiled("integer_block_matmul")(*arguments).nan_to_num(7.0)
        assert torch.equal(found, expected), where


@needs_native
def test_large_matrices() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(0, 25, (rows, 1024), generator=generator).to(torch.uint8) for rows in (131, 77))
    scales = [torch.exp2(torch.randint(-4, 5, (len(each), 32), generator=generator).float()) for each in (a, b)]
    arguments = (a, b, 12, 12, *scales, torch.tensor(0.25), torch.rand(77), 32)
    expected = plain("integer_block_matmul")(*arguments)
    for where in machines():
        assert torch.equal(compiled("integer_block_matmul")(*arguments), expected), where


@pytest.mark.parametrize("shape", [(0, 3, 32), (3, 0, 32), (3, 4, 0)], ids=str)
def test_empty_matrices(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = torch.zeros((m, k), dtype=torch.uint8), torch.zeros((n, k), dtype=torch.uint8)
    scales = torch.ones(m, k // 32), torch.ones(n, k // 32)
    found = torch.ops.lograd.integer_block_matmul(a, b, 3, 5, *scales, torch.ones(()), torch.ones(n), 32)
    assert torch.equal(found, torch.ones(m, n))
