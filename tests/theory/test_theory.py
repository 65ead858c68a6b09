"""Every identity against Monte Carlo in a computed band, against scipy, and against the papers' figures."""

import numpy as np
import pytest
from bands import assert_in_band
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.special import erf

from lograd import FloatFormat, IdealFormat, IntFormat, InvalidType, InvalidValue, MomentDoesNotExist
from lograd.formats import CATALOGUE
from lograd.laws import Empirical, Exponential, HalfCauchy, HalfNormal, LogLaplace, LogNormal, Truncated, Uniform
from lograd.theory import (
    allocate,
    atp_sparsity,
    best_format,
    block_householder_variance_bound,
    cosine,
    float_formats,
    lognormal_relative_error,
    noise_to_signal,
    nonzero_sparsity,
    per_sample_variance_bound,
    per_tensor_variance_bound,
    relative_error,
    scale,
    sparsity,
    squared_error,
    threshold,
    threshold_for_cosine,
    threshold_for_noise,
    thresholds_for,
    topk_sparsity,
)
from lograd.theory.simulate import prune, quantize

LAWS = [
    LogNormal(-3.0, 0.5),
    LogNormal(0.0, 1.5),
    HalfNormal(0.3),
    Exponential(2.0),
    Uniform(0.0, 1.0),
    Uniform(0.5, 3.0),
    LogLaplace(0.0, 0.2),
    Truncated(LogNormal(0.0, 2.0), 20.0),
    Truncated(HalfCauchy(1.0), 50.0),
    Empirical.fit(LogNormal(-2.0, 1.2).sample(20_000, seed=9)),
]


# -- pruning --


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
    cut = {0.8: [0.664, 0.865, 0.966, 0.999], 0.9: [0.468, 0.663, 0.856, 0.988]}
    for target in (0.8, 0.9):
        laws = [LogNormal(0.0, sigma) for sigma in sigmas]
        limits = [np.exp(sigma * stats.norm.ppf(1 - 1 / 300)) for sigma in sigmas]
        a = threshold(laws, target)
        assert np.allclose(cosine(laws, a), whole[target], atol=6e-4)
        truncated = [Truncated(law, limit) for law, limit in zip(laws, limits, strict=True)]
        assert np.allclose(cosine(truncated, a), cut[target], atol=2e-3)
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


# -- formats --

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


# -- scale --


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


# -- allocation --


def test_allocation_keeps_the_budget_and_shares_the_cosine():
    laws = [
        LogNormal(-3.0, 0.8),
        LogNormal(0.0, 1.5),
        LogNormal(2.0, 2.0),
        Exponential(3.0),
        Truncated(LogNormal(0, 2), 30.0),
    ]
    counts = np.array([1e3, 5e5, 2e5, 7e4, 1e6])
    for target in (0.3, 0.85, 0.99):
        optimum = allocate(laws, counts, target)
        assert optimum @ counts == pytest.approx(target * counts.sum(), rel=1e-9)
        cosines = cosine(laws, threshold(laws, optimum))
        assert np.ptp(cosines) < 1e-6
        uniform = allocate(laws, counts, target, "uniform")
        assert uniform.tolist() == [target] * 5
        assert cosines.min() > cosine(laws, threshold(laws, uniform)).min()


@pytest.mark.parametrize("sigmas", [(3.8, 3.8), (3.8, 2.1), (4.0, 5.0), (5.0, 6.0), (1.0, 3.0)])
@pytest.mark.parametrize("target", [1e-6, 0.01, 0.1, 0.5, 0.85, 0.99])
def test_allocation_keeps_the_budget_where_the_cosine_is_1_to_the_last_digit(sigmas, target):
    laws = [LogNormal(-8.0, sigma) for sigma in sigmas]
    for counts in ([1.0, 1.0], [3.0, 7.0]):
        result = allocate(laws, counts, target)
        assert result @ counts == pytest.approx(target * sum(counts), rel=1e-8)
        noise = noise_to_signal(laws, threshold(laws, result))
        assert noise[0] == pytest.approx(noise[1], rel=1e-3)


def test_common_cosine_is_the_optimum_of_the_smallest_cosine():
    """scipy maximises the smallest cosine over all splits of the budget and finds nothing better."""
    laws, counts, target = [LogNormal(0.0, 1.0), LogNormal(0.0, 2.0)], np.array([3.0, 1.0]), 0.7

    def worst(first):
        second = (target * 4 - 3 * first) / 1
        return -float(np.min(cosine(laws, threshold(laws, [first, second]))))

    best = optimize.minimize_scalar(worst, bounds=(0.605, 0.93), method="bounded", options={"xatol": 1e-10})
    ours = allocate(laws, counts, target)
    assert ours[0] == pytest.approx(best.x, abs=1e-4)


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_least_noise_is_the_optimum_of_the_weighted_noise(zeros):
    """scipy minimises the sum over all splits of the budget among three layers, and finds nothing better."""
    laws = [LogNormal(0.0, 1.0), LogNormal(-7.0, 2.0), HalfNormal(3.0)]
    counts, costs, target = np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.2, 5.0]), 0.7

    def noise(shares):
        return float(costs @ noise_to_signal(laws, threshold(laws, (shares - zeros) / (1 - zeros))))

    budget = {"type": "eq", "fun": lambda shares: counts @ shares - target * counts.sum()}
    best = optimize.minimize(
        noise, np.full(3, target), bounds=[(zeros + 0.01, 0.99)] * 3, constraints=budget, options={"ftol": 1e-13}
    )
    ours = allocate(laws, counts, target, "noise", costs=costs, zero_share=zeros)
    assert counts @ ours == pytest.approx(target * counts.sum())
    assert noise(ours) <= best.fun * (1 + 1e-9)
    assert ours == pytest.approx(best.x, abs=1e-3)
    with pytest.raises(InvalidValue, match="costs must be 3 positive numbers"):
        allocate(laws, counts, target, "noise", costs=[1, 2])


def test_floors_of_the_paper():
    laws, counts = [LogNormal(0.0, 1.0), LogNormal(0.0, 2.5), LogNormal(0.0, 3.0)], [100.0, 100.0, 800.0]
    result = allocate(laws, counts, 0.85, "floors", floors=[0.95, 0.95, None])
    assert result @ counts == pytest.approx(850.0)
    assert result[0] < result[1] == 0.85 < result[2]
    assert cosine(laws[0], threshold(laws[0], result[0])) == pytest.approx(0.95)
    capped = allocate(laws, counts, 0.85, "floors", floors=[0.95, 0.95, None], max_sparsity=0.86)
    assert capped[2] == 0.86  # the cap leaves the budget unmet, as it does in the paper's rule


def test_uniform_and_floors_keep_the_budget_with_zeros_in_place():
    laws = [LogNormal(0.0, 2.0)] * 3
    for zeros, target in (([0.95, 0.0, 0.0], 0.6), ([0.9, 0.2, 0.0], 0.5), ([0.0, 0.0, 0.0], 0.85)):
        uniform = allocate(laws, [1.0, 1.0, 1.0], target, "uniform", zero_share=zeros)
        assert uniform.mean() == pytest.approx(target, rel=1e-12)
        assert (uniform >= zeros).all()
        floors = allocate(laws, [1.0, 1.0, 1.0], target, "floors", floors=[None, None, 0.95], zero_share=zeros)
        assert floors.mean() == pytest.approx(target, rel=1e-12)


def test_zeros_that_are_there_count():
    laws, counts = [LogNormal(0.0, 2.0), LogNormal(0.0, 2.0)], [10.0, 10.0]
    result = allocate(laws, counts, 0.8, zero_share=[0.5, 0.0])
    assert result.sum() == pytest.approx(1.6)
    pruned = nonzero_sparsity(result, [0.5, 0.0])
    assert pruned[0] == pytest.approx(pruned[1])  # equal laws, equal cosine, so equal pruning of what is not zero
    assert thresholds_for(laws, result, [0.5, 0.0]) == pytest.approx(threshold(laws, pruned))
    assert allocate(laws, counts, 0.2, zero_share=[0.5, 0.5]).tolist() == [0.5, 0.5]
    fitted = LogNormal.fit(np.concatenate([LogNormal(0.0, 2.0).sample(1000), np.zeros(3000)]))
    assert allocate([fitted, laws[0]], counts, 0.7)[0] >= 0.75
    assert thresholds_for([fitted], 0.75).tolist() == [0.0]


# -- variance --


def stochastic_round(y, rng):
    return np.floor(y + rng.random(y.shape))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_variance_bounds_hold(bits, spread):
    rng = np.random.default_rng(23)
    rows, columns, bins = 16, 32, 2**bits - 1
    x = rng.standard_normal((rows, columns)) * np.exp(spread * rng.standard_normal((rows, 1)))
    low, ranges = x.min(axis=1, keepdims=True), np.ptp(x, axis=1, keepdims=True)

    def variance(quantizer, repeats=400):
        copies = np.stack([quantizer() for _ in range(repeats)])
        assert np.abs(copies.mean(axis=0) - x).max() <= 6 * copies.std(axis=0).max() / np.sqrt(repeats)  # unbiased
        return ((copies - x) ** 2).sum(axis=(1, 2)).mean()

    step = np.ptp(x) / bins
    tensor = variance(lambda: stochastic_round((x - x.min()) / step, rng) * step + x.min())
    assert 0.3 < tensor / per_tensor_variance_bound(np.ptp(x), rows, columns, bits) < 1
    steps = ranges / bins
    sample = variance(lambda: stochastic_round((x - low) / steps, rng) * steps + low)
    assert 0.3 < sample / per_sample_variance_bound(ranges.ravel(), columns, bits) < 1


@pytest.mark.parametrize(("size", "ratio"), [(2, 3.0), (4, 30.0), (16, 100.0), (64, 1000.0)])
def test_block_householder_bound_holds(size, ratio):
    """One group, scaled by the exponents that minimise the bound: spread the large row by a reflection, then PSQ."""
    rng = np.random.default_rng(29)
    columns, bits = 64, 5
    bins = 2**bits - 1
    x = rng.uniform(-1, 1, (size, columns))
    x[0] *= ratio
    first, others = np.ptp(x[0]), np.ptp(x[1:], axis=1).max()
    w = np.full(size, 1 / np.sqrt(size))
    w[0] -= 1
    w /= np.linalg.norm(w)
    reflect = np.eye(size) - 2 * np.outer(w, w)
    scales = np.full(size, (others * size**0.5 / size) ** (-1 / 3))
    scales[0] = (first / np.sqrt(size)) ** (-1 / 3)
    y = reflect @ (scales[:, None] * x)
    low, step = y.min(axis=1, keepdims=True), np.ptp(y, axis=1, keepdims=True) / bins
    inverse = reflect / scales[:, None]  # a reflection is its own inverse
    assert np.allclose(inverse @ y, x)
    copies = np.stack([inverse @ (stochastic_round((y - low) / step, rng) * step + low) for _ in range(300)])
    measured = ((copies - x) ** 2).sum(axis=(1, 2)).mean()
    bound = block_householder_variance_bound(first, others, size, columns, bits)
    assert measured < bound
    if ratio >= 30:  # where rows differ widely, it beats the bound of one range per row
        assert bound < per_sample_variance_bound(np.ptp(x, axis=1), columns, bits)


# -- many layers, bad input --


def test_lists_of_mixed_laws_equal_one_by_one():
    laws = [
        LogNormal(-1.0, 1.0),
        HalfNormal(2.0),
        Empirical.fit(LogNormal(0, 1).sample(500)),
        LogNormal(3.0, 2.0),
        Uniform(1, 2),
    ]
    targets = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
    one_by_one = [float(threshold(law, s)) for law, s in zip(laws, targets, strict=True)]
    assert np.allclose(threshold(laws, targets), one_by_one, rtol=1e-12)
    assert np.allclose(
        relative_error(laws, FloatFormat(3, 2)), [relative_error(law, FloatFormat(3, 2)) for law in laws]
    )
    assert threshold([], 0.5).shape == (0,)


def test_a_thousand_layers_are_one_call():
    """Not a timing: the number of evaluations of the law must not grow with the number of layers."""
    rng = np.random.default_rng(0)
    laws = [LogNormal(m, s) for m, s in zip(rng.normal(size=1000), rng.uniform(0.3, 4, 1000), strict=True)]
    calls = []
    original = LogNormal.partial_moment

    def counting(self, *arguments):
        calls.append(self.shape)
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogNormal, "partial_moment", counting)
        result = threshold(laws, 0.9)
        assert 2 < len(calls) < 30
        assert set(calls) == {(1000,)}
        calls.clear()
        for law in laws[:30]:
            threshold(law, 0.9)
        assert len(calls) > 30  # so the count above does tell one call from many
    assert np.abs(sparsity(laws, result) - 0.9).max() < 1e-9


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: threshold(LogNormal(0, 1), 0.0), "sparsity must be above 0 and below 1, such as 0.85; got 0.0."),
        (lambda: threshold(LogNormal(0, 1), 1.0), "sparsity must be above 0 and below 1"),
        (lambda: threshold(LogNormal(0, 1), np.nan), "sparsity must be above 0 and below 1"),
        (lambda: threshold(LogNormal(0, 1), 85), "sparsity must be above 0 and below 1"),
        (lambda: sparsity(LogNormal(0, 1), -1.0), "threshold must be zero or positive"),
        (lambda: threshold_for_cosine(LogNormal(0, 1), 1.2), "cosine must be above 0 and at most 1"),
        (lambda: relative_error(LogNormal(0, 1), FloatFormat(3, 2), 0.0), "scale must be finite and above 0"),
        (lambda: relative_error(LogNormal(0, 1), FloatFormat(3, 2), rounding="up"), "rounding must be one of"),
        (lambda: relative_error(LogNormal(0, 1), IdealFormat(3, 2), rounding="stochastic"), "rounding must be one of"),
        (lambda: lognormal_relative_error(0, 3, 1.0), "exponent bits must be"),
        (lambda: lognormal_relative_error(4, 3, -1.0), "sigma_log2 must be finite and above 0"),
        (lambda: best_format(LogNormal(0, 1), 1), "bits must be a whole number from 2 to 16; got 1."),
        (lambda: best_format(LogNormal(0, 1), 6, criterion="cosine"), "criterion must be 'relative' or 'squared'"),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), "means"), "Did you mean 'mean'"),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), "max"), "needs maximum="),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), "expected_max"), "needs count="),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), "quantile(2)"), "above 0 and below 1"),
        (lambda: allocate([LogNormal(0, 1)], [1, 2], 0.5), "counts must be 1 positive numbers, one per law"),
        (
            lambda: allocate([LogNormal(0, 1)], [1], 0.5, "best"),
            "method must be 'uniform', 'floors', 'cosine' or 'noise'",
        ),
        (lambda: allocate([LogNormal(0, 1)], [1], 0.5, "floors"), "floors must be 1 entries"),
        (lambda: allocate([LogNormal(0, 1)], [1], 0.95, max_sparsity=0.9), "out of reach with max_sparsity=0.9"),
        (lambda: allocate([LogNormal(0, 1)], [1], 0.5, zero_share=1.0), "zero_share must be at least 0 and below 1"),
        (lambda: allocate([LogNormal(0, 1)], [1], 0.5, zero_share=[0.1, 0.2]), "zero_share must be one number, or 1"),
        (lambda: allocate([LogNormal(0, 1)], [np.inf], 0.5), "counts must be 1 positive numbers"),
        (lambda: allocate([LogNormal(0, 1)], [1], [0.5, 0.6]), "sparsity must be one number"),
        (lambda: allocate([LogNormal(0, 1)], [1], 0.5, max_sparsity=np.nan), "max_sparsity must be one number"),
        (lambda: allocate([LogNormal(0, 1)], [1], 0.5, "bogus", zero_share=0.6), "method must be 'uniform'"),
        (lambda: threshold([LogNormal(0, 1)] * 2, [0.1, 0.5, 0.9]), "2 laws need one number, or 2; got an array of"),
        (lambda: thresholds_for([LogNormal(0, 1)], [np.nan]), "sparsity must be between 0 and 1"),
        (lambda: nonzero_sparsity(0.85, 1.0), "zero_share must be at least 0 and below 1"),
        (lambda: threshold_for_noise(LogNormal(0, 1), -1.0), "noise must be finite and zero or positive"),
        (lambda: best_format(LogNormal(0, 1), 6, candidates=[]), "needs at least one candidate"),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), "quantile(1)"), "above 0 and below 1"),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), "quantile(1.2.3)"), "scale rule must be one of"),
        (lambda: scale(LogNormal(0, 1), FloatFormat(3, 2), None), "scale rule must be one of"),
        (lambda: per_tensor_variance_bound(-1.0, 2, 2, 4), "range must be finite and above 0"),
    ],
)
def test_bad_input_gets_one_sentence(ask, message):
    with pytest.raises(InvalidValue) as caught:
        ask()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_types_and_missing_moments():
    with pytest.raises(InvalidType, match="law must be a Law such as LogNormal"):
        threshold(0.5, 0.5)
    with pytest.raises(InvalidType, match="one that is a stack itself"):
        threshold([LogNormal([0, 1], 1)], 0.5)
    with pytest.raises(InvalidType, match="format must be a FloatFormat"):
        scale(LogNormal(0, 1), "1-4-1")
    with pytest.raises(InvalidType, match="a block has no fixed set of values"):
        relative_error(LogNormal(0, 1), CATALOGUE["mxfp4"])
    with pytest.raises(MomentDoesNotExist, match="tail falls"):
        cosine(HalfCauchy(1.0), 2.0)
    with pytest.raises(MomentDoesNotExist, match="tail falls"):
        squared_error(HalfCauchy(1.0), FloatFormat(3, 2))
    assert np.isfinite(relative_error(HalfCauchy(1.0), FloatFormat(3, 2)))  # needs no moment that does not exist
    assert np.isfinite(sparsity(HalfCauchy(1.0), 3.0))
