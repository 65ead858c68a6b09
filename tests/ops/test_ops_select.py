"""ops.kth_magnitude against torch.kthvalue and a plain sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lograd import ops
from lograd.ops import histogram
from lograd.ops.contracts import FLOAT_TYPES

DTYPES = list(FLOAT_TYPES)
WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
FEW = 4096  # kFew in csrc/kernels/select/select.cpp


def normal(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def special(size: int, seed: int) -> torch.Tensor:
    values = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 1e-39, 6e-8, 1.0, -1.0])
    return values[torch.randint(0, len(values), (size,), generator=torch.Generator().manual_seed(seed))]


KINDS = {
    "normal": normal,
    "lognormal": lambda size, seed: normal(size, seed).mul(5).exp(),
    "constant": lambda size, seed: torch.full((size,), -1.5),
    "two values of one bin": lambda size, seed: 1 + (normal(size, seed) > 0) * 2.0**-7,
    "many values of one bin": lambda size, seed: 1 + normal(size, seed).abs().clamp(max=4) * 2.0**-7,
    "mostly zero": lambda size, seed: normal(size, seed).sub(2).clamp(min=0),
    "subnormal": lambda size, seed: normal(size, seed) * 1e-40,
    "special": special,
}


def expected(x: torch.Tensor, k: int) -> torch.Tensor:
    return torch.kthvalue(x.abs().float().reshape(-1), x.numel() + 1 - k).values


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    assert a.dtype == b.dtype == torch.float32
    assert a.shape == b.shape == ()
    return bool((a.isnan() & b.isnan()) | (a == b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 31, 33, 1000, FEW, FEW + 1, 20_000, 150_001])
def test_equals_kthvalue(dtype: torch.dtype, kind: str, size: int) -> None:
    x = KINDS[kind](size, size).to(dtype)
    for k in {1, 2, size // 100, size // 10, size // 2, size - 1, size} - {0, size + 1, -1}:
        if k <= size:
            assert same(ops.kth_magnitude(x, k), expected(x, k)), (k, size)
            assert same(histogram._magnitude_reference(x, k), expected(x, k))


@given(data=st.data(), bits=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40))
@example(data=None, bits=[2**31 - 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bits(dtype: torch.dtype, data: st.DataObject | None, bits: list[int]) -> None:
    x = torch.tensor(bits).to(WORDS[dtype]).view(dtype)
    k = data.draw(st.integers(1, len(bits))) if data else 1
    assert same(ops.kth_magnitude(x, k), expected(x, k))


@given(size=st.integers(FEW + 1, 3 * FEW), seed=st.integers(0, 2**31), rank=st.floats(0, 1))
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bits_of_many_elements(dtype: torch.dtype, size: int, seed: int, rank: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-(2**31), 2**31, (size,), generator=generator).to(WORDS[dtype]).view(dtype)
    k = 1 + int(rank * (size - 1))
    assert same(ops.kth_magnitude(x, k), expected(x, k))


def test_every_view_and_any_threads() -> None:
    x = normal(8 * 30 * 20 * 40, 1).view(8, 30, 20, 40)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for view in (
                x,
                x.transpose(0, 3),
                x[:, ::3],
                x.to(memory_format=torch.channels_last),
                x[0, :1].expand(9, 20, 40),
            ):
                for k in (1, 700, view.numel() // 2):
                    assert same(ops.kth_magnitude(view, k), expected(view, k))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["normal", "mostly zero", "two values of one bin"])
def test_sparsity_is_the_smallest_threshold_that_gives_it(kind: str, share: float) -> None:
    x = KINDS[kind](10_000, 7)
    threshold = ops.kth_magnitude(x, sparsity=share)
    wanted = round(share * x.numel())
    assert int((ops.threshold_prune(x, threshold) == 0).sum()) >= wanted
    if threshold > 0:
        below = torch.nextafter(threshold, torch.tensor(-1.0))
        assert int((ops.threshold_prune(x, below) == 0).sum()) < wanted
