"""Errors of formats: the exact integrals equal Monte Carlo and the tables of the paper."""

import numpy as np
import pytest
from bands import assert_in_band
from some_laws import LAWS

from experiments.simulate import quantize
from lograd import FloatFormat, IdealFormat, IntFormat
from lograd.laws import Exponential, HalfNormal, LogNormal, Uniform
from lograd.theory import (
    best_format,
    float_formats,
    lognormal_relative_error,
    relative_error,
    scale,
    squared_error,
)

FORMATS = [FloatFormat(3, 0), FloatFormat(4, 1), FloatFormat(2, 3), FloatFormat(5, 2), IntFormat(4, symmetric=True)]


NO_ZERO = FloatFormat(2, 1, subnormals=False, zero=False)


@pytest.mark.parametrize(
    ("format", "rounding"),
    [(format, rounding) for format in FORMATS for rounding in ("nearest", "toward_zero", "stochastic")]
    + [(IdealFormat(3, 1), "nearest"), (IdealFormat(3, 1), "toward_zero")],
    ids=str,
)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_errors_equal_monte_carlo(law, format, rounding):
    factor = 0.9 * format.max / float(law.quantile(0.98))
    x = law.sample(100_000, seed=17)
    rounded = quantize(x, format, factor, rounding)
    error = np.abs(rounded - x)
    assert_in_band(relative_error(law, format, factor, rounding), error / x, "relative", slack=1e-12)
    assert_in_band(
        squared_error(law, format, factor, rounding), error**2, "squared", slack=1e-12 * float(law.moment(2))
    )


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_errors_of_a_format_without_zero(rounding):
    law = LogNormal(-1.0, 1.0)
    x = law.sample(20_000, seed=37)
    draws = np.random.default_rng(1).random(x.size)
    rounded = np.array([NO_ZERO.round(v, rounding, uniform=u) for v, u in zip(x, draws, strict=True)])
    assert_in_band(relative_error(law, NO_ZERO, 1.0, rounding), np.abs(rounded - x) / x)
    assert_in_band(squared_error(law, NO_ZERO, 1.0, rounding), (rounded - x) ** 2)


def test_errors_average_the_two_sides_of_an_asymmetric_integer():
    law, format = HalfNormal(3.0), IntFormat(4)
    x = law.sample(400_000, seed=19) * np.random.default_rng(0).choice([-1, 1], 400_000)
    rounded = np.clip(np.rint(x), -8, 7)
    assert_in_band(squared_error(law, format), (rounded - x) ** 2)


def test_scale_means_q_of_s_x_over_s():
    law, format = LogNormal(0.0, 2.0), FloatFormat(4, 1)
    assert relative_error(law, format, 8.0) == pytest.approx(relative_error(LogNormal(np.log(8.0), 2.0), format))
    assert squared_error(law, format, 8.0) == pytest.approx(squared_error(LogNormal(np.log(8.0), 2.0), format) / 64)


def test_stochastic_rounding_at_full_width_is_the_textbook_variance():
    step = FloatFormat(1, 6)  # E = 0 and 1 make one uniform grid
    law = Uniform(0.0, 3.9)
    grid = float(np.diff(step.values())[0])
    assert squared_error(law, step, rounding="stochastic") == pytest.approx(grid**2 / 6, rel=2e-2)
    assert squared_error(law, step) == pytest.approx(grid**2 / 12, rel=2e-2)


def test_equation_4_equals_the_exact_error():
    """FP8 at sigma 1, 3, 5: within 0.5 % for two mantissa bits or more; the printed form is off by 34 % and more."""
    for sigma in (1.0, 3.0, 5.0):
        law = LogNormal.from_log2(0.0, sigma)
        for exponent in range(1, 8):
            mantissa = 7 - exponent
            exact = relative_error(law, IdealFormat(exponent, mantissa))
            closed = lognormal_relative_error(exponent, mantissa, sigma)
            bound = {0: 0.062, 1: 0.018}.get(mantissa, 0.005)
            assert closed == pytest.approx(exact, rel=bound), (sigma, exponent)
    law, exact = LogNormal.from_log2(0.0, 3.0), relative_error(LogNormal.from_log2(0.0, 3.0), IdealFormat(5, 2))
    assert lognormal_relative_error(5, 2, 3.0, printed=True) / exact == pytest.approx(1.339, abs=0.001)
    assert np.isinf(lognormal_relative_error(7, 0, 3.0, printed=True))
    assert np.isfinite(lognormal_relative_error(10, 3, [0.01, 1.0, 50.0])).all()


def test_table_2_of_the_lognormal_paper():
    printed = {4.2: [3, 4, 4, 4, 5], 5.125: [3, 4, 5, 5, 5]}
    for sigma_log2, exponents in printed.items():
        law = LogNormal.from_log2(-17.0, sigma_log2)  # the mean does not matter: the rule scales it away
        ideal = [best_format(law, n, candidates=[IdealFormat(e, n - 1 - e) for e in range(1, n)]) for n in range(4, 9)]
        assert [format.exponent for format in ideal] == exponents
        assert [best_format(law, n).exponent for n in range(4, 9)] == exponents  # honest formats agree here


def test_switch_points_of_the_exact_quantizer():
    """Where the best number of exponent bits changes, against the figures of METHODS 1.3 (row E)."""
    for bits, points in {4: [0.58, 1.38], 5: [0.49, 1.13, 2.63], 6: [0.43, 0.97, 2.19, 5.06]}.items():
        candidates = [IdealFormat(e, bits - 1 - e) for e in range(1, bits)]
        for index, sigma in enumerate(points, start=1):
            for shift, expected in ((-0.02, index), (0.02, index + 1)):
                best = best_format(LogNormal.from_log2(0.0, sigma + shift), bits, candidates=candidates)
                assert best.exponent == expected, (bits, sigma, shift)


def test_normal_law_gets_the_trend_wrong():
    """Fig. 3c: under the normal law, without rescaling, a wider gradient asks for fewer exponent bits."""

    def best(law, bits):
        return best_format(
            law, bits, scale=1.0, candidates=[IdealFormat(e, bits - 1 - e) for e in range(1, bits)]
        ).exponent

    assert [best(HalfNormal(3.5), bits) for bits in (5, 6, 7, 8)] == [3, 3, 3, 4]
    for bits in (6, 7, 8):
        assert best(HalfNormal(0.05), bits) > best(HalfNormal(3.5), bits)
        assert best(LogNormal.from_log2(0.0, 0.5), bits) < best(LogNormal.from_log2(0.0, 5.0), bits)


def test_best_format_is_the_least_error_and_works_on_lists():
    laws = [LogNormal.from_log2(0.0, sigma) for sigma in (0.5, 2.0, 5.0)] + [Exponential(1e-6)]
    chosen = best_format(laws, 6)
    for law, format in zip(laws, chosen, strict=True):
        errors = [relative_error(law, other, scale(law, other)) for other in float_formats(6)]
        assert format == float_formats(6)[int(np.argmin(errors))] == best_format(law, 6)
    # Squared error follows the largest elements, so it spends bits on the mantissa instead.
    wide = laws[2]
    assert best_format(wide, 8, scale="quantile(0.99999)", criterion="squared").exponent < best_format(wide, 8).exponent
