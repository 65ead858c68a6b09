"""Laws fitted to a histogram equal laws fitted to the data that it has counted."""

from __future__ import annotations

import numpy as np
import pytest

from lograd.laws import FAMILIES, Empirical, LogNormal, ks_distance
from lograd.laws.binned import fit_binned, ks_binned, rank_binned


@pytest.mark.parametrize("family", FAMILIES)
def test_fits_from_a_histogram_equal_fits_from_the_data(family):
    x = LogNormal(-7.0, 1.2).sample(100_000)
    data = Empirical.fit(x)
    exact, binned = family.fit(x), fit_binned(family, data)
    for name in family.parameters:
        value = float(getattr(exact, name))
        # Uniform's ends are the edges of the outer bins.
        assert getattr(binned, name) == pytest.approx(
            value, rel=1 / 16 if family.__name__ == "Uniform" else 3e-3, abs=1e-3
        )
    assert ks_binned(binned, data) == pytest.approx(ks_distance(exact, x), abs=5e-3)
    assert rank_binned(data)[0].family == "LogNormal"


def test_fits_need_a_width():
    fits = rank_binned(Empirical.fit(np.ones(10)))
    assert all(fit.law is None for fit in fits)
    assert "one bin" in fits[0].reason
