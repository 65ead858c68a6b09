"""Scales: each rule puts the law where it says."""

import numpy as np
import pytest

from experiments.simulate import quantize
from lograd import FloatFormat
from lograd.laws import Empirical, HalfNormal, LogNormal
from lograd.theory import (
    relative_error,
    scale,
)


def test_scale_rules():
    law, format = LogNormal(-5.0, 2.0), FloatFormat(4, 1)
    assert np.log2(scale(law, format)) == pytest.approx(-law.mu_log2)
    assert np.log2(scale(law, format, "mean-3")) == pytest.approx(-law.mu_log2 - 3)
    n = 10**6
    expected = np.log2(format.max) - (law.mu_log2 + law.sigma_log2 * np.sqrt(2 * np.log(n)))
    assert np.log2(scale(law, format, "expected_max", count=n)) == pytest.approx(expected)
    assert scale(law, format, "max", maximum=0.5) == format.max / 0.5
    assert scale(law, format, "quantile(0.999)") == pytest.approx(format.max / law.quantile(0.999))
    fitted = Empirical.fit(law.sample(1000))
    assert scale(fitted, format, "max") == format.max / fitted.maximum
    assert scale([law, fitted], format, "mean").shape == (2,)
    for family in (LogNormal, Empirical, HalfNormal):
        fits = [family.fit(law.sample(1000)), family.fit(law.sample(100_000, seed=1))]
        one_by_one = [float(scale(fit, format, "expected_max")) for fit in fits]
        assert scale(fits, format, "expected_max") == pytest.approx(one_by_one)
        assert scale(family.stack(fits), format, "expected_max") == pytest.approx(one_by_one)
        assert np.isfinite(scale(fits[0], format, "expected_max", count=1))


def test_relative_error_and_cosine_want_opposite_scales():
    """sigma_log2 3.5 in 1-4-0: the middle of the range is best for relative error, the top for cosine."""
    law, format = LogNormal.from_log2(0.0, 3.5), FloatFormat(4, 0)
    x = law.sample(1_000_000, seed=31)
    errors, cosines = [], []
    for rule in ("mean", "mean-3", "max"):
        factor = float(scale(law, format, rule, maximum=x.max()))
        rounded = quantize(x, format, factor)
        errors.append(float(relative_error(law, format, factor)))
        cosines.append(x @ rounded / np.linalg.norm(x) / np.linalg.norm(rounded))
    assert errors[:2] == pytest.approx([0.20, 0.29], abs=0.005)
    assert errors == sorted(errors)
    assert cosines == sorted(cosines)
    assert cosines[0] < 0.4 < 0.95 < cosines[2]
