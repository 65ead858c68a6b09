"""The cosine of rounding, and the scale of least harm: Monte Carlo and a dense search beside the theory."""

from __future__ import annotations

import numpy as np
import pytest
from everyday import daily

from experiments.simulate import quantize
from lograd import InvalidValue, theory
from lograd.formats import FloatFormat, Format, IntFormat
from lograd.laws import Empirical, Exponential, HalfNormal, Law, LogNormal, Uniform

FORMATS = [
    IntFormat(2, symmetric=True),
    IntFormat(4, symmetric=True),
    IntFormat(8, symmetric=True),
    FloatFormat(3, 0),
    FloatFormat(2, 1),
]
LAWS: list[Law] = [HalfNormal(1.5), Exponential(0.3), LogNormal(-2.0, 1.0), Uniform(0.0, 3.0)]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("law", daily(LAWS, LAWS[2:3]), ids=str)
def test_cosine_equals_monte_carlo(law: Law, format: Format, rounding: str) -> None:
    rng = np.random.default_rng(0)
    x = law.quantile(rng.uniform(size=(20, 50_000)))
    scale = float(format.max / law.quantile(0.99))
    y = np.stack([quantize(row, format, scale, rounding, seed) for seed, row in enumerate(x)])  # type: ignore[arg-type]
    found = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    band = 4 * found.std(ddof=1) / np.sqrt(len(found)) + 1e-4  # the last for the bias of a ratio of sums
    assert abs(float(theory.rounding_cosine(law, format, scale, rounding)) - found.mean()) < band  # type: ignore[arg-type]


@pytest.mark.parametrize("criterion", ["squared", "cosine"])
@pytest.mark.parametrize("format", FORMATS[:4], ids=str)
@pytest.mark.parametrize("law", daily(LAWS, LAWS[2:3]), ids=str)
def test_no_other_scale_does_less_harm(law: Law, format: Format, criterion: str) -> None:
    best = float(theory.best_scale(law, format, criterion))  # type: ignore[arg-type]

    def harm(scale: float) -> float:
        if criterion == "squared":
            return float(theory.squared_error(law, format, scale, "stochastic"))
        return 1 - float(theory.rounding_cosine(law, format, scale, "stochastic"))

    tried = [harm(best * factor) for factor in np.geomspace(0.05, 20, 201)]
    assert harm(best) <= min(tried) * 1.01 + 1e-12


def test_the_histogram_of_a_tensor_is_a_law_like_any_other() -> None:
    x = np.abs(np.random.default_rng(1).standard_t(3, size=100_000))
    format = FORMATS[1]

    def measured(scale: float) -> float:
        return float(np.mean((quantize(x, format, scale, "stochastic") - x) ** 2))

    scale = float(theory.best_scale(Empirical.fit(x), format))
    assert measured(scale) < 1.03 * min(map(measured, np.geomspace(7 / x.max(), 700 / x.max(), 60)))
    assert scale > 2 * 7 / x.max()  # a heavy tail is cut


def test_a_list_of_laws_gives_a_list_of_scales() -> None:
    laws = [HalfNormal(1.0), HalfNormal(10.0), Uniform(0.0, 1.0)]
    found = theory.best_scale(laws, IntFormat(4), "cosine")
    assert found.shape == (3,)
    assert found[0] == pytest.approx(10 * found[1], rel=1e-6)


def test_an_unknown_criterion_is_refused() -> None:
    with pytest.raises(InvalidValue, match="'squared' or 'cosine'"):
        theory.best_scale(HalfNormal(1.0), IntFormat(4), "absolute")  # type: ignore[arg-type]
