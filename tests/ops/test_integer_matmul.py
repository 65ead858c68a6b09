"""Products of matrices of codes: exact against int64, for all widths, layouts, instruction sets and threads."""

from __future__ import annotations

import pytest
import torch
from bits import compiled, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from integers import MACHINES, SIZES, codes, machines, matmul, scaled, whole
from torch import Tensor

from lograd import native

needs_native = pytest.mark.skipif(not native.status().available, reason="no native kernels")


@st.composite
def factors(draw: st.DrawFn, *counts: int) -> Tensor | None:
    """None, or so many numbers of any size; or one in place of them."""
    count = draw(st.sampled_from([None, *counts]))
    if count is None:
        return None
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    return torch.randn(count, generator=generator) * 2.0 ** draw(st.integers(-20, 20))


@st.composite
def products(draw: st.DrawFn) -> tuple[tuple[object, ...], Tensor]:
    """Arguments of the operator, in any layout, and the result in int64 and float32."""
    m, k, n = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = draw(st.sampled_from([(), (), (1,), (3,)]))
    (a, a_zero), (b, b_zero) = draw(codes((*batch, m, k))), draw(codes((*batch, k, n)))
    rows, columns, bias = draw(factors(1, m)), draw(factors(1, n)), draw(factors(n))
    expected = scaled(matmul(whole(a, a_zero), whole(b, b_zero)), columns, rows, bias)
    a, b = (LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](each) for each in (a, b))
    return (a, b, a_zero, b_zero, rows, columns, bias), expected


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _within(x: Tensor) -> Tensor:
    """A part of a larger matrix: rows with gaps between them."""
    return torch.full((*x.shape[:-1], x.shape[-1] + 5), 77, dtype=x.dtype)[..., 3 : 3 + x.shape[-1]].copy_(x)


def _gaps(x: Tensor) -> Tensor:
    """Neither rows nor columns without gaps."""
    return torch.full((*x.shape[:-1], 2 * x.shape[-1]), 77, dtype=x.dtype)[..., ::2].copy_(x)


def _heads(x: Tensor) -> Tensor:
    """Batches side by side in each row, as the heads of attention lie."""
    return x.movedim(0, 1).contiguous().movedim(1, 0) if x.dim() == 3 else x


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": _transposed,
    "within": _within,
    "transposed within": lambda x: _within(x.transpose(-1, -2)).transpose(-1, -2),
    "gaps": _gaps,
    "heads": _heads,
}


@given(products())
@settings(max_examples=150, deadline=None)
def test_the_definition_is_exact(case: tuple[tuple[object, ...], Tensor]) -> None:
    arguments, expected = case
    assert torch.equal(plain("integer_matmul")(*arguments), expected)


@needs_native
@given(products())
@settings(max_examples=150, deadline=None)
def test_every_instruction_set_and_number_of_threads_is_exact(case: tuple[tuple[object, ...], Tensor]) -> None:
    arguments, expected = case
    for where in machines():
        assert torch.equal(compiled("integer_matmul")(*arguments), expected), where


@needs_native
@pytest.mark.parametrize("zeros", [(0, 0), (255, 0), (0, 255), (255, 255), (128, 127)], ids=str)
def test_long_sums_do_not_overflow(zeros: tuple[int, int]) -> None:
    """40,000 products of 255 x 255 are beyond 32 bits."""
    for fill in (0, 255):
        a, b = torch.full((3, 40_000), fill, dtype=torch.uint8), torch.full((40_000, 17), 255, dtype=torch.uint8)
        sums = whole(a, zeros[0])[:1, :1] * whole(b, zeros[1])[:1, :1] * 40_000
        for where in machines():
            found = compiled("integer_matmul")(a, b, *zeros, None, None, None)
            assert torch.equal(found, sums.float().expand(3, 17)), (fill, where)


@needs_native
@pytest.mark.parametrize("isa", MACHINES[2:3], ids=str)
def test_large_matrices(isa: tuple[str, int]) -> None:
    """More rows, columns and summands than are blocked for the caches; with tails."""
    generator = torch.Generator().manual_seed(5)
    for most in (15, 63, 255):
        a = torch.randint(0, most + 1, (301, 2501), generator=generator).to(torch.uint8)
        b = torch.randint(0, most + 1, (2501, 333), generator=generator).to(torch.uint8)
        arguments = (a, b, most // 2, 0, torch.rand(301), torch.rand(333), torch.rand(333))
        expected = plain("integer_matmul")(*arguments)
        for where in machines():
            assert torch.equal(compiled("integer_matmul")(*arguments), expected), (most, where)


@needs_native
@pytest.mark.parametrize("bits", [4, 5, 6, 7])
def test_few_large_codes_among_small_ones(bits: int) -> None:
    """Sums of 16 bits take more units where few codes are large; here, runs of any length at any place."""
    most, zero, k = 2**bits - 1, 2 ** (bits - 1) - 1, 1201
    a = torch.full((131, k), most, dtype=torch.uint8)
    b = torch.full((k, 97), zero, dtype=torch.uint8)
    for column in range(97):
        begin = 37 * column % k
        b[begin : begin + 3 * column, column] = most if column % 2 else 0
    expected = (whole(a, 0).double() @ whole(b, zero).double()).float()
    for where in machines():
        assert torch.equal(compiled("integer_matmul")(a, b, 0, zero, None, None, None), expected), where


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_empty_matrices(shape: tuple[int, int, int], backend: str) -> None:
    """Without summands the sum is zero, and the bias is the result."""
    m, k, n = shape
    if backend == "cpu" and not native.status().available:
        pytest.skip("no native kernels")
    kernel = plain("integer_matmul") if backend == "reference" else compiled("integer_matmul")
    a, b = torch.zeros((m, k), dtype=torch.uint8), torch.zeros((k, n), dtype=torch.uint8)
    found = kernel(a, b, 3, 5, None, torch.rand(1), torch.ones(n))
    assert torch.equal(found, torch.ones(m, n))


def test_a_scale_that_is_not_a_number_reaches_its_row_alone() -> None:
    a, b = torch.full((2, 8), 3, dtype=torch.uint8), torch.full((8, 4), 1, dtype=torch.uint8)
    rows = torch.tensor([1.0, torch.nan])
    found = torch.ops.lograd.integer_matmul(a, b, 0, 0, rows, None, None)
    assert torch.equal(found[0], torch.full((4,), 24.0))
    assert bool(found[1].isnan().all())
