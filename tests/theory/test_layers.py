"""Lists of laws equal one law at a time, and wrong arguments are refused in one sentence."""

import numpy as np
import pytest

from lograd import FloatFormat, IdealFormat, InvalidType, InvalidValue, MomentDoesNotExist
from lograd.formats import CATALOGUE
from lograd.laws import Empirical, HalfCauchy, HalfNormal, LogNormal, Uniform
from lograd.theory import (
    allocate,
    best_format,
    cosine,
    lognormal_relative_error,
    nonzero_sparsity,
    per_tensor_variance_bound,
    relative_error,
    scale,
    sparsity,
    squared_error,
    threshold,
    threshold_for_cosine,
    threshold_for_noise,
    thresholds_for,
)


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
            "method must be 'uniform', 'cosine' or 'noise'",
        ),
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
