"""The NumPy simulations against the scalar reference and against scipy."""

import numpy as np
import pytest
from bands import assert_in_band
from scipy import stats

from experiments.simulate import Estimate, prune, quantize
from lograd import FloatFormat, IdealFormat, IntFormat


@pytest.mark.parametrize("format", [FloatFormat(4, 1), FloatFormat(3, 0), IntFormat(4), IdealFormat(3, 2)], ids=str)
@pytest.mark.parametrize("rounding", ["nearest", "toward_zero"])
def test_quantize_equals_the_scalar_reference(format, rounding):
    x = np.random.default_rng(0).lognormal(0, 3, 2000)
    assert quantize(x, format, 2.0, rounding).tolist() == [format.round(2 * v, rounding) / 2 for v in x]


def test_stochastic_rounding_is_unbiased_and_stays_next_door():
    format = FloatFormat(2, 1)
    for x in (0.1, 0.7, 1.0, 2.3, 5.9):
        rounded = quantize(np.full(100_000, x), format, rounding="stochastic", seed=1)
        assert set(rounded) <= {format.round(x, "toward_zero"), format.round(x, "stochastic", uniform=1 - 1e-12)}
        if len(set(rounded)) > 1:
            assert_in_band(x, rounded)
        else:
            assert set(rounded) == {x}


def test_pruning_is_unbiased_and_keeps_signs_and_large_values():
    for x in (-0.001, 0.3, -0.9):
        pruned = prune(np.full(200_000, x), 1.0, seed=2)
        assert set(pruned) <= {0.0, np.sign(x)}
        assert_in_band(x, pruned)
    assert prune(np.array([3.0, -2.0, 0.0]), 1.0).tolist() == [3.0, -2.0, 0.0]


def test_the_band_is_four_standard_errors():
    x = np.random.default_rng(3).standard_normal(1000)
    estimate = Estimate.of(x)
    assert estimate.band == pytest.approx(4 * stats.sem(x))
    assert estimate.agrees(estimate.mean + 0.99 * estimate.band)
    assert not estimate.agrees(estimate.mean + 1.01 * estimate.band)
