"""Rows: norms that never overflow, exact thresholds, unbiased draws, and the identities of theory on their law."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lograd import theory
from lograd.laws import Empirical
from lograd.ops.row_pruning import expected_rows, keep_rows, nonzero_rows, row_norms, row_threshold

SPREAD = torch.distributions.LogNormal(0.0, 2.0)


def norms(count: int = 4000, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return SPREAD.sample((count,)).double()


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-18, 1.0, 1e18, 1e30, 3e38])
def test_norms_neither_overflow_nor_vanish(size: float) -> None:
    rows = torch.randn(20, 7, generator=torch.Generator().manual_seed(1)).clamp(-1, 1) * size
    expected = np.linalg.norm(rows.double().numpy(), axis=1)
    assert np.allclose(row_norms(rows).numpy(), expected, rtol=1e-6, atol=0)


def test_rows_of_zeros_alone_are_dropped_and_nan_is_kept() -> None:
    rows = torch.zeros(6, 5)
    rows[1, 4], rows[2, 0], rows[4, 3], rows[5, 0] = 1e-45, float("nan"), float("inf"), -0.0
    assert nonzero_rows(rows).tolist() == [1, 2, 4]
    kept = keep_rows(row_norms(rows), torch.tensor(1.0), torch.tensor([0, 0]))
    assert {2, 4} <= set(kept.places.tolist())
    assert all(f == 1.0 for i, f in zip(kept.places.tolist(), kept.factors.tolist(), strict=True) if i in (2, 4))


@given(
    values=st.lists(st.floats(0, 1e30), min_size=1, max_size=40),
    noise=st.floats(1e-6, 0.9),
)
@settings(max_examples=200, deadline=None)
def test_threshold_adds_the_noise_that_was_asked_for(values: list[float], noise: float) -> None:
    weights = torch.tensor(values, dtype=torch.float64)
    a = float(row_threshold(weights, noise=noise))
    if not bool((weights > 0).any()):
        assert a == 0
        return
    below = weights[weights < a] / a
    assert float((below * (1 - below)).sum()) * a * a == pytest.approx(noise * float((weights**2).sum()), rel=1e-6)


@given(
    values=st.lists(st.floats(1e-20, 1e20), min_size=2, max_size=40), sparsity=st.floats(0.01, 0.95),
    zeros=st.integers(0, 20),
)  # fmt: skip
@example(values=[2.0, 2.0, 1e-16], sparsity=0.5, zeros=1)
@settings(max_examples=200, deadline=None)
def test_threshold_drops_the_share_that_was_asked_for(values: list[float], sparsity: float, zeros: int) -> None:
    weights = torch.tensor(values + [0.0] * zeros, dtype=torch.float64)
    a = row_threshold(weights, sparsity=sparsity)
    share = 1 - expected_rows(weights, a) / weights.numel()
    assert share == pytest.approx(max(sparsity, zeros / weights.numel()), rel=1e-6)


def test_the_law_of_norms_predicts_rows_and_noise() -> None:
    # The same identities as for elements (theory.pruning), on one histogram of norms.
    weights = norms(20_000)
    law = Empirical.fit(weights.float())
    for noise in (0.001, 0.02, 0.1):
        a = float(theory.threshold_for_noise(law, noise))
        exact = float(row_threshold(weights, noise=noise))
        assert a == pytest.approx(exact, rel=0.02)
        assert 1 - float(theory.sparsity(law, a)) == pytest.approx(expected_rows(weights, exact) / 20_000, rel=0.02)


def test_kept_rows_are_unbiased_within_four_sigma() -> None:
    weights, draws = norms(200), 4000
    a = row_threshold(weights, noise=0.1)
    total = torch.zeros(200, dtype=torch.float64)
    counts = 0
    for seed in range(draws):
        kept = keep_rows(weights, a, torch.tensor([seed, 0]))
        total[kept.places] += kept.factors.double()
        counts += kept.places.numel()
    p = (weights / a).clamp(max=1.0)
    sigma = ((1 / p - 1) / draws).sqrt()
    assert bool(((total / draws - 1).abs() <= 4.5 * sigma + 1e-6).all())  # 200 rows: 4.5 sigma for the largest of them
    band = 4 * math.sqrt(float((p * (1 - p)).sum()) * draws)
    assert abs(counts - float(p.sum()) * draws) <= band


def test_nothing_to_keep() -> None:
    for empty in (torch.zeros(0, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)):
        a = row_threshold(empty, noise=0.1)
        assert keep_rows(empty, a, torch.tensor([0, 0])).places.numel() == 0
    one = torch.tensor([3.0], dtype=torch.float64)
    assert keep_rows(one, row_threshold(one, noise=0.0), torch.tensor([0, 0])).places.tolist() == [0]
