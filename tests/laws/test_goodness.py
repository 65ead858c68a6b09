"""Goodness of fit: the wrong law is far away, and a family that cannot be fitted says why."""

import numpy as np

from lograd.laws import (
    LogNormal,
    qq,
    rank_laws,
)


def test_ks_and_qq_of_the_wrong_law():
    x = LogNormal(0.0, 3.0).sample(50_000, seed=4)
    ranking = rank_laws(x)
    assert [fit.family for fit in ranking[:2]] == ["LogNormal", "LogLaplace"]
    assert ranking[0].ks < 0.01 < 0.3 < next(fit.ks for fit in ranking if fit.family == "HalfNormal")
    data = qq(LogNormal(0.0, 3.0), x, 99)
    assert np.allclose(np.log(data.law[10:-10]), np.log(data.data[10:-10]), atol=0.1)


def test_rank_laws_says_why_a_family_does_not_fit():
    ranking = rank_laws(np.full(10, 0.5))
    failed = {fit.family: fit.reason for fit in ranking if fit.law is None}
    assert set(failed) == {"LogNormal", "LogLaplace", "Uniform"}
    assert "all 10 nonzero magnitudes equal 0.5" in failed["LogNormal"]
