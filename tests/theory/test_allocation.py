"""Allocation of sparsity: budgets are kept, and the optima are optima."""

import numpy as np
import pytest
from scipy import optimize

from lograd import InvalidValue
from lograd.laws import Exponential, HalfNormal, LogNormal
from lograd.theory import (
    allocate,
    cosine,
    noise_to_signal,
    nonzero_sparsity,
    threshold,
    thresholds_for,
)


def test_allocation_keeps_the_budget_and_shares_the_cosine():
    laws = [
        LogNormal(-3.0, 0.8),
        LogNormal(0.0, 1.5),
        LogNormal(2.0, 2.0),
        Exponential(3.0),
        HalfNormal(0.5),
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


def test_uniform_keeps_the_budget_with_zeros_in_place():
    laws = [LogNormal(0.0, 2.0)] * 3
    for zeros, target in (([0.95, 0.0, 0.0], 0.6), ([0.9, 0.2, 0.0], 0.5), ([0.0, 0.0, 0.0], 0.85)):
        uniform = allocate(laws, [1.0, 1.0, 1.0], target, "uniform", zero_share=zeros)
        assert uniform.mean() == pytest.approx(target, rel=1e-12)
        assert (uniform >= zeros).all()


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
