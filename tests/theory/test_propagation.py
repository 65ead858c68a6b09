"""Propagation of noise: derivatives, growth over depth, and the sparsities with the least noise."""

from __future__ import annotations

import numpy as np
import pytest
from everyday import daily
from scipy import optimize

from lograd import InvalidValue
from lograd.laws import HalfNormal, LogNormal
from lograd.theory import Propagation, allocate_by_noise, noise_to_signal, threshold


def chain(layers=6, seed=0):
    """A propagation in which noise flows to earlier layers, with their laws and work."""
    rng = np.random.default_rng(seed)
    transfer = np.triu(rng.uniform(0.2, 1.0, (layers, layers)), 1)
    passed = np.concatenate([[0.0], rng.uniform(0.1, 0.5, layers - 1)])
    laws = [LogNormal(float(rng.normal()), float(sigma)) for sigma in rng.uniform(1.2, 3.0, layers)]
    work = rng.uniform(1, 10, (2, layers))
    work[0, 0] = 0.0  # nobody needs the gradient of the data
    return Propagation(rng.uniform(0.01, 0.3, layers), passed, transfer), laws, work


def test_costs_are_the_derivatives_of_the_total():
    factors, _, _ = chain()
    noise = np.random.default_rng(1).uniform(0, 0.5, (2, 6))
    found = np.stack(factors.costs(*noise))
    for place in np.ndindex(2, 6):
        step = np.zeros((2, 6))
        step[place] = 1e-6
        slope = (factors.total(*(noise + step)) - factors.total(*(noise - step))) / 2e-6
        assert found[place] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_a_chain_multiplies_the_energy_and_one_layer_alone_passes_its_own():
    transfer = np.triu(np.ones((4, 4)), 1)
    factors = Propagation(np.zeros(4), np.full(4, 0.5), transfer)
    assert factors.growth(np.full(4, 0.25)) == pytest.approx(1.25 ** np.array([3, 2, 1, 0]))
    assert factors.total([0, 0, 0.3, 0], np.zeros(4)) == pytest.approx(0.15)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("zeros", daily([0.0, 0.4], [0.4]))
def test_least_noise_is_the_optimum_of_the_propagated_noise(split, zeros):
    """scipy minimises the total over all splits of the work, and finds nothing better."""
    factors, laws, work = chain()
    target, layers = 0.8, len(laws)
    ours = allocate_by_noise(laws, (work[0], work[1]), target, factors, split=split, zero_share=zeros)

    def ratios(shares):
        return noise_to_signal(laws, threshold(laws, (np.clip(shares, zeros + 1e-6, 0.9999) - zeros) / (1 - zeros)))

    def unpack(v):
        return (np.concatenate([[zeros], v[: layers - 1]]), v[layers - 1 :]) if split else (v, v)

    def objective(v):
        input, weight = unpack(v)
        return np.log(factors.total(ratios(input) * (work[0] > 0), ratios(weight)))

    weights = np.concatenate([work[0, 1:], work[1]]) if split else work.sum(axis=0)
    best = optimize.minimize(
        objective,
        np.full(weights.size, target),
        bounds=[(zeros + 0.01, 0.999)] * weights.size,
        constraints={"type": "eq", "fun": lambda v: weights @ v / weights.sum() - target},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    found = np.concatenate([ours.input[1:], ours.weight]) if split else ours.weight
    assert best.success
    assert weights @ found / weights.sum() == pytest.approx(target)
    assert objective(found) <= best.fun + 1e-7
    assert found == pytest.approx(best.x, abs=2e-3)
    assert ours.input[0] == 0, "a product that is not computed is not pruned"


def test_layers_that_cost_nothing_are_pruned_most_and_the_budget_is_kept():
    factors = Propagation([0.0, 0.1, 0.1], [0.0, 0.2, 0.2], np.zeros((3, 3)))
    laws = [HalfNormal(1.0)] * 3
    ours = allocate_by_noise(laws, ([1.0] * 3, [1.0] * 3), 0.7, factors, max_sparsity=0.99)
    assert ours.weight[0] == pytest.approx(0.99)
    assert ours.weight.mean() == pytest.approx(0.7)
    silent = Propagation(np.zeros(3), np.zeros(3), np.zeros((3, 3)))
    assert allocate_by_noise(laws, ([1.0] * 3, [1.0] * 3), 0.7, silent).weight.mean() == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Propagation([1.0], [1.0], [[0.0, 1.0]]), "shapes of a Propagation"),
        (lambda: Propagation([-1.0], [1.0], [[0.0]]), "own of a Propagation"),
        (lambda: Propagation([1.0], [1.0], [[0.0]]).total([1.0, 2.0], [1.0]), "noise must be 1 numbers"),
        (lambda: allocate_by_noise([HalfNormal(1.0)], ([1.0], [1.0]), 0.5, chain()[0]), "does not fit 1 laws"),
        (
            lambda: allocate_by_noise([HalfNormal(1.0)], ([0.0], [0.0]), 0.5, Propagation([1.0], [1.0], [[0.0]])),
            "work must be two times 1 numbers",
        ),
    ],
)
def test_bad_propagations_are_refused(make, message):
    with pytest.raises(InvalidValue, match=message):
        make()
