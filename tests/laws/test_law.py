"""Every law against SciPy, quadrature and Monte Carlo; wrong arguments are refused in one sentence."""

import itertools

import mpmath
import numpy as np
import pytest
import torch
from bands import assert_in_band
from scipy import integrate, stats

import lograd
from lograd import InvalidType, InvalidValue, MomentDoesNotExist
from lograd.laws import (
    FAMILIES,
    Empirical,
    Exponential,
    HalfCauchy,
    HalfNormal,
    LogLaplace,
    LogNormal,
    Uniform,
    ks_distance,
    qq,
    rank_laws,
)

PAIRS = [
    (LogNormal(-3.0, 0.7), stats.lognorm(s=0.7, scale=np.exp(-3.0))),
    (LogNormal(1.0, 3.5), stats.lognorm(s=3.5, scale=np.exp(1.0))),
    (HalfNormal(0.02), stats.halfnorm(scale=0.02)),
    (Exponential(3.0), stats.expon(scale=3.0)),
    (Uniform(0.5, 2.0), stats.uniform(0.5, 1.5)),
    (Uniform(0.0, 2.0), stats.uniform(0.0, 2.0)),
    (HalfCauchy(0.3), stats.halfcauchy(scale=0.3)),
    (LogLaplace(0.4, 0.3), stats.loglaplace(c=1 / 0.3, scale=np.exp(0.4))),
    (LogLaplace(-1.0, 1.4), stats.loglaplace(c=1 / 1.4, scale=np.exp(-1.0))),
]


IDS = [str(law) for law, _ in PAIRS]


LAWS = [law for law, _ in PAIRS]


@pytest.mark.parametrize(("law", "reference"), PAIRS, ids=IDS)
def test_cdf_and_quantile_equal_scipy(law, reference):
    p = np.array([1e-12, 1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 1 - 1e-9])
    assert np.allclose(law.quantile(p), reference.ppf(p), rtol=1e-6)
    t = reference.ppf(p)
    assert np.allclose(law.cdf(t), reference.cdf(t), rtol=1e-9)
    assert law.cdf(0.0) == 0
    assert law.cdf(-1.0) == 0
    assert law.cdf(np.inf) == 1
    assert np.allclose(law.cdf(law.quantile(p)), p, rtol=1e-9)


@pytest.mark.parametrize("order", [-1, 0, 1, 2])
@pytest.mark.parametrize(("law", "reference"), PAIRS, ids=IDS)
def test_interval_moments_equal_quadrature(law, reference, order):
    edges = reference.ppf([1e-6, 0.05, 0.5, 0.51, 0.97, 0.9999])
    for low, high in itertools.pairwise(edges):
        # In the log of x, where every one of these densities is smooth.
        def integrand(y):
            x = np.exp(y)
            return x ** (order + 1) * reference.pdf(x)

        median = np.log(reference.ppf(0.5))
        breaks = [median] if np.log(low) < median < np.log(high) else None
        expected, _ = integrate.quad(
            integrand, np.log(low), np.log(high), points=breaks, epsabs=0, epsrel=1e-11, limit=200
        )
        assert law.interval_moment(order, low, high) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("law", "reference"), PAIRS, ids=IDS)
def test_log_mean_and_log_std(law, reference):
    p = (np.arange(400_000) + 0.5) / 400_000
    logs = np.log(reference.ppf(p))
    assert law.log_mean == pytest.approx(logs.mean(), abs=2e-4 * (1 + logs.std()))
    assert law.log_std == pytest.approx(logs.std(), rel=2e-3)


@pytest.mark.parametrize("law", [law for law in LAWS if not isinstance(law, HalfCauchy) and law != LAWS[-1]], ids=str)
def test_moments_equal_monte_carlo(law):
    x = law.sample(200_000, seed=5)
    t = float(law.quantile(0.8))
    for order in (0, 1, 2):
        assert_in_band(law.partial_moment(order, t), np.where(x <= t, x**order, 0.0), f"{law} M_{order}")
    if isinstance(law, LogNormal | LogLaplace):
        assert_in_band(law.partial_moment(-1, t), np.where(x <= t, 1 / x, 0.0), f"{law} M_-1")


def test_lognormal_is_stable_in_both_tails():
    law = LogNormal(0.0, 2.0)
    with mpmath.workdps(60):
        for order in (-1, 0, 1, 2):
            for low, high in [(1e-40, 1e-39), (1e-12, 1e-11), (1e8, 1e9), (1e30, 1e31), (1e30, np.inf)]:
                a, b = ((mpmath.log(mpmath.mpf(t)) if t < np.inf else mpmath.inf) for t in (low, high))
                shift = 2 * mpmath.mpf(order)
                mass = mpmath.ncdf(b / 2 - shift) - mpmath.ncdf(a / 2 - shift)
                expected = float(mpmath.exp(mpmath.mpf(order) ** 2 * 2) * mass)
                assert law.interval_moment(order, low, high) == pytest.approx(expected, rel=1e-10), (order, low)


def test_bell_laws_are_stable_in_both_tails():
    half_normal, exponential, cauchy = HalfNormal(1.0), Exponential(1.0), HalfCauchy(1.0)
    assert half_normal.interval_moment(0, 20.0, np.inf) == pytest.approx(2 * stats.norm.sf(20.0), rel=1e-10)
    assert exponential.interval_moment(0, 300.0, np.inf) == pytest.approx(np.exp(-300.0), rel=1e-10)
    assert cauchy.interval_moment(0, 1e12, np.inf) == pytest.approx(2 / np.pi * 1e-12, rel=1e-10)
    assert cauchy.partial_moment(2, 1e-6) == pytest.approx(2 / np.pi * 1e-18 / 3, rel=1e-9)
    assert half_normal.partial_moment(1, 1e-9) == pytest.approx(np.sqrt(2 / np.pi) * 5e-19, rel=1e-9)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda: HalfCauchy(1.0).moment(1), "tail falls as 1/x"),
        (lambda: HalfCauchy(1.0).partial_moment(2, np.inf), "tail falls as 1/x"),
        (lambda: HalfNormal(1.0).partial_moment(-1, 1.0), "density at zero is positive"),
        (lambda: Exponential(1.0).partial_moment(-1, 1.0), "density at zero is positive"),
        (lambda: HalfCauchy(1.0).partial_moment(-1, 1.0), "density at zero is positive"),
        (lambda: Uniform(0.0, 1.0).moment(-1), "density at zero is positive"),
        (lambda: LogLaplace(0.0, 1.2).moment(1), "tail exponent 1/b must exceed 1"),
        (lambda: LogLaplace(0.0, 0.6).moment(2), "tail exponent 1/b must exceed 2"),
        (lambda: LogLaplace(0.0, 1.2).partial_moment(-1, 1.0), "tail exponent 1/b must exceed 1"),
        (lambda: LogNormal(0.0, 30.0).moment(2), "beyond the largest float64"),
    ],
)
def test_a_moment_that_does_not_exist_raises_with_the_reason(ask, reason):
    with pytest.raises(MomentDoesNotExist, match=reason):
        ask()


def test_moments_that_do_exist_next_to_those_that_do_not():
    for b in (1.0 - 1e-9, 1.0, 1.0 + 1e-9):  # k b = 1, where the textbook form divides by zero
        assert LogLaplace(0.0, b).interval_moment(1, 0.5, 2.0) == pytest.approx(3 / 16 + np.log(2) / 2, rel=1e-7)
    assert np.isfinite(HalfCauchy(1.0).partial_moment(2, 1e6))


def test_array_parameters_equal_one_call_per_layer():
    mu, sigma, t = np.array([-3.0, 0.0, 2.0]), np.array([0.5, 1.0, 3.0]), np.array([0.1, 1.0, 7.0])
    stacked = LogNormal.stack([LogNormal(m, s) for m, s in zip(mu, sigma, strict=True)])
    assert stacked == LogNormal(mu, sigma)
    for order in (-1, 0, 1, 2):
        one_by_one = [LogNormal(m, s).partial_moment(order, x) for m, s, x in zip(mu, sigma, t, strict=True)]
        assert stacked.partial_moment(order, t).tolist() == one_by_one
    assert stacked.sample(np.int64(7)).shape == stacked.sample((7,)).shape == (7, 3)


def test_the_two_sigmas():
    law = LogNormal.from_log2(-4.0, 3.0)
    assert law.sigma == pytest.approx(3 * np.log(2))
    assert law.sigma_log2 == pytest.approx(3.0)
    assert law.mu_log2 == pytest.approx(-4.0)
    x = law.sample(200_000, seed=1)
    assert_in_band(law.sigma_log2**2, (np.log2(x) + 4.0) ** 2)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_sampling_follows_the_law(law):
    x = law.sample(20_000, seed=3)
    assert (x > 0).all()
    assert ks_distance(law, x) < 1.95 / np.sqrt(x.size)  # p = 0.001 of the Kolmogorov distribution
    assert ks_distance(law, x) == pytest.approx(stats.kstest(x, lambda t: law.cdf(t)).statistic, rel=1e-9)
    assert np.array_equal(x, law.sample(20_000, seed=3))


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_recovers_the_parameters_and_counts_zeros(family):
    law = {
        LogNormal: LogNormal(-8.0, 2.5),
        LogLaplace: LogLaplace(-8.0, 1.5),
        HalfNormal: HalfNormal(0.01),
        Exponential: Exponential(5.0),
        HalfCauchy: HalfCauchy(0.2),
        Uniform: Uniform(1.0, 4.0),
    }[family]
    x = law.sample(100_000, seed=2)
    signed = np.concatenate([x[::2], -x[1::2], np.zeros(25_000)])
    fitted = family.fit(signed)
    for name in family.parameters:
        assert getattr(fitted, name) == pytest.approx(getattr(law, name), rel=0.03)
    assert (fitted.count, fitted.zeros, fitted.zero_share) == (100_000, 25_000, 0.2)
    assert rank_laws(signed)[0].family == family.__name__


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_fit_takes_tensors(dtype):
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    for family in (*FAMILIES, Empirical):
        assert family.fit(x.transpose(0, 2)).count == 60
    negated = torch.tensor([1 - 2j, 3j]).conj().imag  # a tensor with the negative bit set
    assert Empirical.fit(negated) == Empirical.fit([2.0, 3.0])
    assert LogNormal.fit(torch.tensor([1, -2, 3])).count == 3
    assert LogNormal.fit(x).mu == pytest.approx(LogNormal.fit(x.detach().double().numpy()).mu)


def test_laws_are_values():
    assert LogNormal(0.0, 1.0) == LogNormal(0.0, 1.0, count=5, zeros=2) != LogNormal(0.0, 1.1)
    assert len({HalfNormal(1.0), HalfNormal(1.0), Exponential(1.0)}) == 2
    with pytest.raises(AttributeError):
        LogNormal(0.0, 1.0).mu = 2.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LogNormal(0.0, -1.0), "sigma must be finite and above 0; got -1.0."),
        (lambda: LogNormal(0.0, 0.0), "sigma must be finite and above 0"),
        (lambda: LogNormal(np.nan, 1.0), "mu must be finite; got nan."),
        (lambda: LogNormal(0.0, [1.0, -2.0]), "sigma must be finite and above 0"),
        (lambda: LogNormal.from_log2(0.0, -3.0), "sigma_log2 must be"),
        (lambda: HalfNormal(np.inf), "scale must be finite"),
        (lambda: Uniform(2.0, 1.0), "high must be above low"),
        (lambda: Uniform(-1.0, 1.0), "low must be finite and at least 0"),
        (lambda: LogNormal(0, 1).quantile(1.5), "a probability must be between 0 and 1; got 1.5."),
        (lambda: LogNormal(0, 1).partial_moment(3, 1.0), "order of a moment must be -1, 0, 1 or 2; got 3."),
        (lambda: LogNormal.fit([]), "fitting LogNormal needs at least one nonzero element; got an empty tensor."),
        (lambda: LogNormal.fit(torch.zeros(7)), "all 7 are exactly zero"),
        (lambda: Empirical.fit(np.zeros(7)), "all 7 are exactly zero"),
        (lambda: Empirical.fit(torch.empty(0)), "got an empty tensor"),
        (lambda: LogNormal.fit([1.0, np.nan, np.inf, 2.0]), "got 1 NaN and 1 infinite of 4"),
        (lambda: Empirical.fit(np.float32([1.0, np.nan])), "got 1 NaN and 0 infinite of 2"),
        (lambda: LogNormal.fit(np.ones(5)), "all 5 nonzero magnitudes equal 1"),
        (lambda: ks_distance(LogNormal(0, 1), []), "got an empty tensor"),
        (lambda: qq(LogNormal(0, 1), [1.0], 0), "points must be a whole number from 1"),
        (lambda: Empirical([0, 0], 0), "at least one count per layer"),
        (lambda: Empirical([0.9, 1.7], 0), "counts of an Empirical law must be whole numbers"),
        (lambda: LogNormal([1, 2], [1, 2, 3]), "parameters of LogNormal must have matching shapes; got mu (2,)"),
        (lambda: LogNormal(0, 1).partial_moment(1, np.nan), "got NaN"),
    ],
)
def test_bad_input_gets_one_sentence(build, message):
    with pytest.raises(InvalidValue) as caught:
        build()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_types_get_type_errors():
    with pytest.raises(InvalidType, match="sigma must be a number"):
        LogNormal(0.0, "wide")
    for bad in ("text", None, torch.tensor([3 + 4j]), torch.zeros(3, device="meta"), torch.zeros(3).to_sparse()):
        for family in (LogNormal, Empirical):
            with pytest.raises(InvalidType, match=f"fitting {family.__name__} must be given real numbers"):
                family.fit(bad)
    with pytest.raises(InvalidType, match="merged with an Empirical"):
        Empirical.fit([1.0]) + LogNormal(0, 1)


def test_lograd_imports_without_torch():
    import subprocess
    import sys

    code = "import sys; import lograd; lograd.laws.LogNormal.fit([1.0, 2.0]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert lograd.__version__
