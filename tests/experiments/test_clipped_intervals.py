"""Errors of clipped intervals: from a law against the elements themselves, the bound, and the optimal interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.clipped_intervals import (
    IntervalErrors,
    best_interval,
    interval_bound,
    interval_clipped,
    interval_error,
    interval_errors,
    measured_interval_errors,
    optimal_interval,
)
from lograd import InvalidValue, ops
from lograd.laws import Empirical, Exponential, HalfNormal, Law, LogNormal, Uniform

ROUNDINGS = ("stochastic", "nearest")


@settings(max_examples=20)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@given(bits=st.integers(2, 8), gamma=st.floats(0.05, 1.2), alpha=st.sampled_from([1e-2, 0.1, 1.0]))
def test_the_uniform_law_against_its_integral(rounding: str, bits: int, gamma: float, alpha: float) -> None:
    """On a fine grid of magnitudes each element is rounded by itself."""
    x = (np.arange(200_000) + 0.5) / 200_000
    top, end = x[x > 1 - alpha], gamma
    step = end / (2 ** (bits - 1) - 1)
    part = np.minimum(top, end) / step % 1
    inside = 2 * part * (1 - part) if rounding == "stochastic" else np.minimum(part, 1 - part)
    expected = np.where(top > end, top - end, inside * step).mean()
    found = interval_error(Uniform(0.0, 1.0), bits, gamma, alpha, rounding)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(expected, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("law", [LogNormal(0.0, 1.5), HalfNormal(1.0), Exponential(2.0)], ids=str)
def test_a_histogram_tells_what_the_elements_tell(law: Law, rounding: str) -> None:
    """A bin is a sixteenth of an octave wide at most, and the largest magnitude is known to a bin."""
    x = law.sample(100_000, seed=1)
    x[:20_000] = 0.0
    fitted = Empirical.fit(x)
    exact = float(x.max() / fitted.maximum)
    for gamma in (0.1, 0.4, 1.0):
        found = interval_errors(fitted, 4, gamma * exact, 0.01, rounding)  # type: ignore[arg-type]
        wanted = measured_interval_errors(torch.tensor(x), 4, gamma, 0.01, rounding)  # type: ignore[arg-type]
        assert float(found.clipped) == pytest.approx(float(wanted.clipped), rel=0.05, abs=2e-5)
        for one, other in ((found.all, wanted.all), (found.large, wanted.large)):
            assert float(one) == pytest.approx(float(other) * exact, rel=0.1, abs=1e-4)


def test_measured_errors_are_those_of_the_operator() -> None:
    """The mean over draws of |Q(g) - g|: within 4 sigma of what is expected, element by element summed."""
    g = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    largest, draws, alpha, gamma = float(g.abs().max()), 30, 0.01, 0.6
    large = g.abs() >= g.abs().topk(200).values[-1]
    wanted = measured_interval_errors(g, 4, gamma, alpha)
    errors = torch.stack([(ops.quantize_interval(g, 4, gamma, seed=seed).result - g).abs() for seed in range(draws)])
    for where, value in ((slice(None), wanted.all), (large, wanted.large)):
        chosen = errors[:, where] / largest
        sigma = float(chosen.var(0).sum().sqrt()) / chosen.shape[1] / math.sqrt(draws)
        assert abs(float(chosen.mean()) - float(value)) < 4 * sigma + 1e-6


@settings(max_examples=40)
@given(bits=st.integers(2, 8), gamma=st.floats(0.01, 1.0), seed=st.integers(0, 50), rounding=st.sampled_from(ROUNDINGS))
def test_the_bound_holds(bits: int, gamma: float, seed: int, rounding: str) -> None:
    x = LogNormal(0.0, 1.0 + seed / 25).sample(2000, seed)
    found = measured_interval_errors(x, bits, gamma, 0.05, rounding)  # type: ignore[arg-type]
    assert found.large <= found.bound * (1 + 1e-12)


def test_a_share_of_the_large_ones_is_clipped_at_the_optimal_interval() -> None:
    laws = [LogNormal(0.0, 1.5), Exponential(1.0), Empirical.fit(LogNormal(0.0, 2.0).sample(100_000))]
    for bits in (3, 4, 8):
        gammas = optimal_interval(laws, bits, 0.01)
        assert interval_clipped(laws, gammas) == pytest.approx(np.full(3, 0.01 / (2**bits - 1)), rel=1e-6)
        assert np.all(interval_error(laws, bits, gammas, 0.01) <= interval_bound(laws, bits, gammas, 0.01))
    assert float(optimal_interval(Empirical.fit(np.ones(10)), 4)) == pytest.approx(1.0, rel=0.05)


def test_the_best_interval_is_better_than_others() -> None:
    law = LogNormal(0.0, 1.5)
    for share in (1e-3, 1.0):
        best = best_interval(law, 4, share)
        least = interval_error(law, 4, best, share)
        assert all(interval_error(law, 4, best * factor, share) >= least for factor in (0.8, 0.9, 1.1, 1.25))
    assert best_interval(law, 4, 1.0) < best_interval(law, 4, 1e-3) < 1
    stack = best_interval([law, Exponential(1.0)], 4)
    assert stack.tolist() == [float(best_interval(law, 4)), float(best_interval(Exponential(1.0), 4))]


def test_zeros_are_elements_without_error() -> None:
    x = LogNormal(0.0, 1.0).sample(10_000)
    dense, half = Empirical.fit(x), Empirical.fit(np.concatenate([x, np.zeros_like(x)]))
    assert interval_error(half, 4, 0.5) == pytest.approx(interval_error(dense, 4, 0.5) / 2)
    assert interval_error(half, 4, 0.5, 0.01) == pytest.approx(interval_error(dense, 4, 0.5, 0.02))
    assert interval_error(half, 4, 0.5, 1.0) == pytest.approx(interval_error(half, 4, 0.5, 0.5) / 2)


def test_refusals() -> None:
    law = Exponential(1.0)
    with pytest.raises(InvalidValue, match="alpha must be above 0"):
        interval_bound(law, 4, 0.5, 0.0)
    with pytest.raises(InvalidValue, match="gamma must be finite and above 0"):
        interval_error(law, 4, 0.0)
    with pytest.raises(InvalidValue, match="bits"):
        measured_interval_errors([1.0], 9, 0.5)
    with pytest.raises(InvalidValue, match="all 3 are exactly zero"):
        measured_interval_errors([0.0] * 3, 4, 0.5)
    assert isinstance(measured_interval_errors([1.0, 2.0], 4, 1.0), IntervalErrors)
