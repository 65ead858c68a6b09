"""Estimates of variance and bias against samples whose law is known."""

import numpy as np
import pytest
from everyday import daily

from lograd.measure.estimates import Draws, bias_of, mean_noise
from lograd.measure.values import SIGMAS, Measured, mean_of

REPEATS = 12


def grams(bias, covariance, trials, seed=0, repeats=REPEATS):
    """Gram matrices of normal draws, one for each trial, which stand for tensors here."""
    generator = np.random.default_rng(seed)
    factor = np.linalg.cholesky(covariance)
    draws = bias + generator.standard_normal((trials, repeats, len(bias))) @ factor.T
    return draws @ draws.transpose(0, 2, 1)


CASES = {
    "no bias, many directions": (np.zeros(40), np.eye(40)),
    "no bias, few directions": (np.zeros(6), np.diag([9.0, 1, 1, 0.1, 0.1, 0.1])),
    "bias": (np.full(20, 0.4), np.diag(np.linspace(0.2, 2, 20))),
}


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_unbiased(name):
    bias, covariance = CASES[name]
    found = Draws.of(grams(bias, covariance, 4000))
    expected = {
        "noise": bias @ bias + np.trace(covariance),
        "bias": bias @ bias,
        "spread": np.trace(covariance),
    }
    for field, value in expected.items():
        mean, error = mean_of(getattr(found, field))
        assert abs(mean - value) <= SIGMAS * error, (field, mean, value, error)
    assert found.spread_squared.mean() == pytest.approx(np.trace(covariance @ covariance), rel=0.1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("repeats", [4, 6, REPEATS])
def test_standard_errors_are_the_spread_of_the_estimates(name, repeats):
    bias, covariance = CASES[name]
    draws = Draws.of(grams(bias, covariance, 4000, 0, repeats))
    found = bias_of([draws], np.zeros(4000))
    assert np.sqrt(np.mean(draws.noise_error**2)) == pytest.approx(draws.noise.std(), rel=0.1)
    ratio = np.sqrt(np.mean(found.error**2)) / found.squared.std()
    assert 0.97 < ratio < 1.5  # rather too large, as no variance along the bias is estimated below zero


@pytest.mark.parametrize("repeats", [4, 6, REPEATS])
def test_the_variance_along_a_bias_is_unbiased(repeats):
    bias, covariance = np.full(20, 2.0), np.diag(np.linspace(0.2, 2, 20))
    found = Draws.of(grams(bias, covariance, 20_000, 0, repeats))
    assert found.bent.mean() == pytest.approx(bias @ covariance @ bias, rel=0.05)


@pytest.mark.parametrize("name", ["no bias, many directions", "no bias, few directions"])
@pytest.mark.parametrize("repeats", daily([4, 6, REPEATS], [4]))
@pytest.mark.parametrize("batches", [1, 2])
def test_chance_leaves_the_band_about_as_rarely_as_it_should(name, repeats, batches):
    trials = 20_000
    draws = [Draws.of(grams(*CASES[name], trials, seed, repeats)) for seed in range(batches)]
    found = bias_of(draws, np.zeros(trials))
    outside = np.mean(found.squared > found.band)
    assert outside <= (2e-4 if "many" in name else 1e-3)  # 3e-5 at 4 sigma; few directions are not quite an F law
    assert np.all(np.isfinite(found.band))


def test_few_draws_still_see_a_large_bias_and_more_draws_a_smaller_one():
    shares = []
    for repeats, bias in ((4, 1.5), (6, 0.8), (12, 0.5)):
        found = bias_of([Draws.of(grams(np.full(200, bias), np.eye(200), 400, 0, repeats))], np.zeros(400))
        shares.append(np.mean(found.squared > found.band))
    assert min(shares) > 0.95


def test_a_bias_is_outside_the_band_and_several_batches_see_a_smaller_one():
    bias, covariance = np.full(40, 0.25), np.eye(40)
    draws = [Draws.of(grams(bias, covariance, 200, seed)) for seed in range(6)]
    alone, together = (bias_of(several, np.zeros(200)) for several in (draws[:1], draws))
    assert np.mean(together.squared > together.band) > np.mean(alone.squared > alone.band)
    assert np.mean(together.squared > together.band) > 0.95
    assert together.squared.mean() == pytest.approx(bias @ bias, rel=0.05)
    noise, error = mean_noise(draws)
    assert np.mean(np.abs(noise - 42.5) <= SIGMAS * error) > 0.99


@pytest.mark.parametrize("repeats", [4, REPEATS])
def test_without_noise_any_bias_beyond_rounding_is_outside(repeats):
    same = np.ones((1, repeats, repeats))
    draws = Draws.of(np.concatenate([same, 0 * same, 1e-14 * same]))
    found = bias_of([draws], np.ones(3))
    assert (found.squared > found.band).tolist() == [True, False, False]
    assert found.squared[0] == pytest.approx(1)
    assert draws.noise[0] == pytest.approx(1)


def test_rounding_of_gradients_is_no_noise():
    """Draws of a bias that differ in one element by the rounding of float32."""
    draws = np.full((4, 50), 1e-3)
    draws[:, 0] += 1e-7 * np.array([1, 0, -1, 1])
    found = bias_of([Draws.of((draws @ draws.T)[None])], np.ones(1))
    assert found.squared > found.band


def test_rounding_of_sums_is_no_noise():
    """Equal draws whose inner products differ in their last bits."""
    generator = np.random.default_rng(0)
    gram = 1 + 1e-15 * generator.standard_normal((500, 4, 4))
    draws = Draws.of(gram + gram.transpose(0, 2, 1))
    assert not draws.spread.any()
    found = bias_of([draws], np.ones(500))
    assert np.all(found.squared > found.band)


def test_the_ratio_of_two_means():
    generator = np.random.default_rng(0)
    above, below = 3 + 0.1 * generator.standard_normal(100_000), 2 + 0.1 * generator.standard_normal(100_000)
    ratio = Measured(3.0, 0.1).over(Measured(2.0, 0.1))
    assert ratio.mean == pytest.approx(1.5)
    assert ratio.error == pytest.approx((above / below).std(), rel=0.05)
    assert Measured(1.0, 0.1).over(Measured(0.0, 0.0)) is None
    assert Measured(1.0, 0.1).agrees(1.39)
    assert not Measured(1.0, 0.1).agrees(1.41)
    assert Measured(1.0, 0.1).agrees(1.5, error=0.1)


def test_numbers_without_an_error_agree_up_to_rounding():
    third = Measured(0.1 + 0.2, 0.0)
    assert third.mean != 0.3
    assert third.agrees(0.3)
    assert not third.agrees(0.3 + 1e-9)
    assert not Measured(0.0, 0.0).agrees(1e-30)
