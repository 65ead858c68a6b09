"""ops.log_histogram: native equal to plain PyTorch, the sample as documented, and the law and moments that it gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lograd import native, ops
from lograd.errors import InvalidType
from lograd.laws import Empirical
from lograd.ops import histogram
from lograd.ops.contracts import FLOAT_TYPES

DTYPES = list(FLOAT_TYPES)
WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
BLOCK = 2048  # kBlock in csrc/kernels/histogram/log_histogram.cpp


def every_16_bit(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def any_bits(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    """All exponents equally likely: NaN with payloads, infinities, subnormals and zeros come often."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (size,), generator=generator)
    x = bits.to(WORDS[dtype]).view(dtype)
    rare = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 6e-8, -1e-39], dtype=dtype)
    chosen = torch.rand(size, generator=generator) < 0.2
    return torch.where(chosen, rare[torch.randint(0, len(rare), (size,), generator=generator)], x)


def table(x: torch.Tensor, stride: int = 1) -> list[int]:
    return ops.log_histogram(x, 1 / stride).table.tolist()


def plain(x: torch.Tensor, stride: int = 1) -> list[int]:
    return histogram._histogram_reference(x, stride).tolist()


def definition(x: torch.Tensor) -> list[int]:
    """|x| = m 2^e with 1 <= m < 2, by NumPy in float64: octave e, and within it the bin floor(16 (m - 1))."""
    values = np.abs(x.double().numpy())
    finite = values[np.isfinite(values) & (values > 0)]
    mantissa, exponent = np.frexp(finite)
    bins = (exponent.astype(np.int64) - 1 + 149) * 16 + np.floor((2 * mantissa - 1) * 16).astype(np.int64)
    counts = np.bincount(bins, minlength=histogram.BINS).tolist()
    return [*counts, int((values == 0).sum()), int(np.isnan(values).sum()), int(np.isinf(values).sum())]


@pytest.mark.parametrize("dtype", DTYPES)
class TestCounts:
    @given(size=st.integers(0, 3 * BLOCK + 40), seed=st.integers(0, 2**31), stride=st.sampled_from([1, 2, 3, 7, 100]))
    @example(size=0, seed=0, stride=1)
    @example(size=0, seed=0, stride=3)
    @example(size=1, seed=0, stride=100)
    @example(size=BLOCK, seed=0, stride=1)
    @example(size=BLOCK + 1, seed=1, stride=1)
    def test_native_equals_plain_pytorch(self, dtype: torch.dtype, size: int, seed: int, stride: int) -> None:
        x = any_bits(dtype, size, seed)
        assert table(x, stride) == plain(x, stride)
        if stride == 1:
            assert table(x) == definition(x)

    def test_every_view_of_a_tensor(self, dtype: torch.dtype) -> None:
        x = any_bits(dtype, 4 * 6 * 10 * 14, 5).view(4, 6, 10, 14)
        views = [x.transpose(0, 3), x.to(memory_format=torch.channels_last), x[:, ::2], x[1:, :, 3:], x[0, 0, 0, 1:]]
        views.append(x[0, 0, 0].expand(5, 14))
        for view in views:
            assert table(view) == definition(view.reshape(-1))
            assert table(view, 3) == plain(view, 3)

    def test_threads_do_not_show(self, dtype: torch.dtype) -> None:
        x = any_bits(dtype, 300_001, 3)
        before = torch.get_num_threads()
        try:
            found = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append([table(x), table(x, 2)])
        finally:
            torch.set_num_threads(before)
        assert found[0] == found[1] == found[2]
        assert found[0][0] == definition(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_16_bits(dtype: torch.dtype) -> None:
    x = every_16_bit(dtype)
    assert table(x) == plain(x) == definition(x)
    assert table(x) == table(x.float()), "widening is exact"


def test_flushing_of_subnormals_changes_nothing() -> None:
    x = any_bits(torch.float32, 5000, 8)
    expected = definition(x)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        assert table(x) == expected
    finally:
        torch.set_flush_denormal(False)


# --------------------------------------------------------------------------------------------------------------- sample


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_line_of_every_group(dtype: torch.dtype) -> None:
    size = histogram.LINE_BYTES // dtype.itemsize
    lines = torch.arange(1000)[:, None].expand(1000, size).reshape(-1)
    seen = histogram.lines_of(lines.to(torch.int32 if dtype.itemsize == 4 else torch.int16), 10).view(-1, size)
    assert (seen == seen[:, :1]).all(), "whole lines"
    assert (seen[:, 0] // 10).tolist() == list(range(100)), "one of each group"
    places = torch.bincount(seen[:, 0].long() % 10, minlength=10)
    assert places.min() >= 9, "every place of a group equally often"
    assert places.max() <= 11


def test_a_sample_sees_every_column_of_a_matrix_whose_rows_fit_the_stride() -> None:
    column = torch.arange(1600).div(16, rounding_mode="floor").float().sub(50).mul(0.25).exp2()
    x = column.expand(2000, 1600).contiguous()
    sampled, full = ops.log_histogram(x, 0.01).law(), ops.log_histogram(x).law()
    # With every 100th line one column would be all of it.  The golden ratio is within 3 of 2000 groups of evenness.
    assert np.abs(sampled.cdf(full.edges) - full.cdf(full.edges)).max() <= 3 / 100
    assert sampled.log_std == pytest.approx(full.log_std, rel=0.01)


def test_a_one_percent_sample_is_within_its_band() -> None:
    n, sample = 4_000_000, 0.01
    x = torch.randn(n, generator=torch.Generator().manual_seed(1)).mul(2).exp()
    found = ops.log_histogram(x, sample)
    count = int(found.counts.sum())
    assert count == pytest.approx(n * sample, abs=32)
    assert found.law().log_mean == pytest.approx(0.0, abs=4 * 2 / math.sqrt(count) + 2e-4)
    assert found.law().log_std == pytest.approx(2.0, abs=4 * 2 / math.sqrt(2 * count) + 2e-4)


# ------------------------------------------------------------------------------------------------------ law and moments


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_law_is_the_one_that_fit_gives(dtype: torch.dtype) -> None:
    x = torch.randn(64, 500, generator=torch.Generator().manual_seed(3)).mul(3).exp().clamp(max=6e4).to(dtype)
    x[0] = 0
    expected = Empirical.fit(x.double().numpy())
    for view in (x, x.t(), x[:, ::2]):
        assert ops.log_histogram(view).law() == Empirical.fit(view) == Empirical.fit(view.double().numpy())
    assert expected.zeros == ops.log_histogram(x).zeros == 500 + int((x[1:] == 0).sum())


@given(st.lists(st.floats(2.0**-149, 2.0**127, width=32), min_size=1, max_size=50), st.floats(0, 1))
def test_moments_of_the_logarithm_are_within_the_bound(values: list[float], edge: float) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    if edge < 0.5:  # onto the lower edges of bins, the worst case
        x = (x.view(torch.int32) >> 19 << 19).view(torch.float32)
        x = torch.where(x == 0, 1.0, x)
    logs = np.log(x.double().numpy())
    found = ops.log_histogram(x)
    bound = math.log(33 / 32) + 1e-9
    assert abs(found.law().log_mean - logs.mean()) <= bound
    assert abs(found.law().log_std - logs.std()) <= bound


def test_histograms_add_up() -> None:
    x = any_bits(torch.float32, 5000, 1)
    parts = ops.log_histogram(x[:1234]) + ops.log_histogram(x[1234:])
    assert parts.table.tolist() == table(x)
    assert (parts.zeros, parts.nan, parts.infinities) == tuple(definition(x)[-3:])
    assert parts.counts.tolist() == definition(x)[:-3]
    with pytest.raises(InvalidType, match=r"^what is added to a LogHistogram must be a LogHistogram; got 3\.$"):
        parts + 3


def test_the_layout_is_the_one_of_the_native_module() -> None:
    assert native.histogram_layout(np.float32) == (histogram.LOWEST, histogram.BINS)
    assert native.histogram_layout("bfloat16") == native.histogram_layout(np.float16) == (-149, 4432)
