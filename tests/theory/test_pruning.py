"""Stochastic pruning: sparsity, threshold and cosine equal Monte Carlo, simulation and the paper."""

import numpy as np
import pytest
from bands import assert_in_band
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import erf
from some_laws import LAWS

from experiments.simulate import prune
from lograd.laws import Empirical, Exponential, HalfNormal, LogNormal
from lograd.theory import (
    atp_sparsity,
    cosine,
    noise_to_signal,
    sparsity,
    threshold,
    threshold_for_cosine,
    topk_sparsity,
)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("target", [0.3, 0.85])
def test_pruning_identities_equal_monte_carlo(law, target):
    a = float(threshold(law, target))
    x = law.sample(200_000, seed=11)
    pruned = prune(x, a)
    assert_in_band(target, pruned == 0, f"{law} sparsity")
    assert_in_band(law.moment(1), pruned, f"{law} unbiased")
    second = law.moment(2)
    assert_in_band(noise_to_signal(law, a), (pruned - x) ** 2 / second, f"{law} noise")
    assert_in_band(cosine(law, a) ** -2, pruned**2 / second, f"{law} cosine")


@given(st.floats(0.3, 8.0), st.floats(0.001, 0.999), st.floats(-40.0, 20.0))
@settings(max_examples=300)
def test_threshold_inverts_sparsity_lognormal(sigma, target, mu):
    law = LogNormal(mu, sigma)
    assert sparsity(law, threshold(law, target)) == pytest.approx(target, abs=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0, 4.0, 8.0])
def test_threshold_inverts_sparsity_on_the_whole_grid(sigma):
    targets = np.linspace(0.001, 0.999, 500)
    law = LogNormal(0.0, sigma)
    assert np.abs(sparsity(law, threshold(law, targets)) - targets).max() < 1e-9


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_threshold_inverts_sparsity_for_any_law(law):
    targets = np.array([0.001, 0.2, 0.5, 0.9, 0.999])
    assert np.allclose(sparsity(law, threshold(law, targets)), targets, atol=1e-9, rtol=0)
    cosines = np.array([0.2, 0.6, 0.95, 0.999])
    assert np.allclose(cosine(law, threshold_for_cosine(law, cosines)), cosines, atol=1e-9)
    assert threshold_for_cosine(law, 1.0) == 0


def test_sparsity_equals_equation_8_of_the_paper():
    """The cleaned Eq. 8, with sqrt(2) sigma, evaluated where it does not cancel."""
    for sigma in (0.5, 1.0, 2.0):
        for log_a in (-1.0, 0.5, 2.0):
            a, root = np.exp(log_a), np.sqrt(2) * sigma
            paper = 0.5 * (1 + erf(log_a / root)) - np.exp(sigma**2 / 2) / (2 * a) * (
                1 + erf((log_a - sigma**2) / root)
            )
            assert sparsity(LogNormal(0.0, sigma), a) == pytest.approx(paper, rel=1e-10)


def test_figures_of_the_methods_page():
    """Thresholds, cosines and baseline sparsities worked out independently of this code."""
    two = LogNormal(0.0, 2.0)
    assert threshold(two, [0.8, 0.9]) == pytest.approx([17.0, 47.7], rel=2e-3)
    sigmas = [1.0, 1.5, 2.0, 3.0]
    whole = {0.8: [0.713, 0.940, 0.997, 1.0], 0.9: [0.518, 0.819, 0.982, 1.0]}
    for target in (0.8, 0.9):
        laws = [LogNormal(0.0, sigma) for sigma in sigmas]
        a = threshold(laws, target)
        assert np.allclose(cosine(laws, a), whole[target], atol=6e-4)
    spread = [LogNormal(0.0, sigma) for sigma in (1.0, 2.0, 3.0)]
    assert atp_sparsity(HalfNormal(4.0), 0.9) == pytest.approx(0.54, abs=0.005)
    assert np.allclose(atp_sparsity(spread, 0.9), [0.60, 0.79, 0.91], atol=0.005)
    assert np.allclose(topk_sparsity(spread, 0.8), [0.489, 0.631, 0.689], atol=5e-4)
    assert np.allclose(topk_sparsity(spread, 0.9), [0.620, 0.765, 0.817], atol=5e-4)


def test_atp_and_topk_sparsity_equal_simulation():
    law = LogNormal(-1.0, 1.7)
    x = law.sample(300_000, seed=13)
    assert_in_band(topk_sparsity(law, 0.85), prune(x, float(law.quantile(0.85))) == 0)
    tau = stats.norm.ppf((1 + 0.85) / 2) * np.sqrt(np.pi / 2) * float(law.moment(1))
    assert_in_band(atp_sparsity(law, 0.85), prune(x, tau) == 0)


MIXTURE = np.concatenate([LogNormal(-9.0, 0.8).sample(600_000, 1), LogNormal(-3.0, 1.0).sample(400_000, 2)])


LEFT_TAIL = np.random.default_rng(3).random(1_000_000) ** 8  # ln x has an exponential tail of mean -8


@pytest.mark.parametrize(
    "x",
    [
        LogNormal(-4.0, 2.0).sample(1_000_000, 4),
        HalfNormal(0.1).sample(1_000_000, 5),
        Exponential(1.0).sample(1_000_000, 6),
        MIXTURE,
        LEFT_TAIL,
    ],
    ids=["lognormal", "half-normal", "laplace", "two modes", "heavy left tail"],
)
def test_empirical_solves_the_sparsity_of_real_data(x):
    law = Empirical.fit(x)
    for target in (0.5, 0.8, 0.9, 0.95):
        a = float(threshold(law, target))
        expected_zeros = np.mean(np.maximum(0.0, 1 - x / a))  # the mean over the draws of Eq. 5, for this very data
        assert expected_zeros == pytest.approx(target, abs=0.002)
        assert np.mean(prune(x, a) == 0) == pytest.approx(target, abs=0.002)
