"""Noise that treatments add to noise: power laws between measured levels, and choices that depend on them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lograd.errors import InvalidValue
from lograd.theory import Option, Problem, Propagation, Rise, choose, frontier, risen
from lograd.theory.rises import Curves


def network(seed, layers):
    """Factors between layers of which each one's noise reaches some of those in front of it."""
    rng = np.random.default_rng(seed)
    transfer = np.triu(rng.uniform(0, 1.5, (layers, layers)) * (rng.random((layers, layers)) < 0.7), 1)
    return Propagation(rng.uniform(0.01, 1, layers), rng.uniform(0, 2, layers), transfer), rng


def random_rise(rng):
    """A rise that falls as measured ones do: to a half at most while noise grows tenfold."""
    levels = 10 ** (rng.uniform(-2, -1) + np.arange(3))
    ratios = 10 ** rng.uniform(-2, 0.3) * np.cumprod(rng.uniform(0.5, 1, 3))
    return Rise(tuple(levels.tolist()), tuple(ratios.tolist()))


def random_problem(seed, layers, most):
    energies, rng = network(seed, layers)
    menus = []
    for _ in range(layers):
        dense = 10 ** rng.uniform(-1, 0.5)
        noisy = [
            Option(
                f"method{number}", dense * rng.uniform(0.2, 1.1), *(10 ** rng.uniform(-3, 0, 2)), 0.0,
                random_rise(rng), random_rise(rng),
            )
            for number in range(rng.integers(1, most))
        ]  # fmt: skip
        menus.append([Option("dense", dense), *noisy])
    return Problem(menus, energies, unit=1.0, rest=0.5)


def test_a_rise_goes_through_what_was_measured_and_is_constant_outside():
    rise = Rise.through(0.5, [0.01, 0.1, 10.0], [0.54, 0.7, 10.5])
    assert rise.ratios == pytest.approx([4.0, 2.0, 1.0])
    assert [rise.at(level) for level in (0.0, 0.001, 0.01, 0.1, 10.0, 1e9)] == pytest.approx([4, 4, 4, 2, 1, 1])
    assert rise.at(1.0) == pytest.approx(np.sqrt(2.0))  # half way between the logarithms
    levels = np.array([0.0, 0.003, 0.05, 3.0, 1e9])
    assert Curves.of([rise] * 5).at(levels) == pytest.approx([rise.at(level) for level in levels])
    assert rise.times(3.0).at(1.0) == pytest.approx(3 * rise.at(1.0))
    assert Rise.constant(0.3).at(17.0) == 0.3


def test_a_ratio_is_not_less_than_one_at_a_higher_level():
    """Where there is little noise, differences of nearly equal numbers may even be negative."""
    assert Rise.through(0.5, [0.001, 1.0], [0.4999, 1.5]).ratios == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("levels", "ratios"), [((), ()), ((1.0, 1.0), (1.0, 1.0)), ((0.0,), (1.0,)), ((1.0,), (-1.0,)), ((1.0,), ())]
)
def test_a_rise_refuses_what_is_none(levels, ratios):
    with pytest.raises(InvalidValue, match="of a Rise must be"):
        Rise(levels, ratios)


def test_levels_are_those_of_a_sweep_from_the_last_layer_to_the_first():
    energies, rng = network(3, 8)
    n, m = 10 ** rng.uniform(-2, 0, (2, 8))
    rises = [[random_rise(rng) for _ in range(8)] for _ in range(2)]
    z, y = np.zeros(8), np.zeros(8)
    for layer in reversed(range(8)):
        z[layer] = energies.transfer[layer] @ y
        y[layer] = n[layer] + rises[0][layer].at(z[layer]) * z[layer]
    into_weights = [n + rise.at(level) * level for n, rise, level in zip(m, rises[1], z, strict=True)]
    total, levels = risen(energies, [n, m], rises)
    assert levels == pytest.approx(z, rel=1e-5)
    assert total == pytest.approx(y @ energies.passed + into_weights @ energies.own, rel=1e-5)


def test_noise_in_proportion_to_what_arrives_is_the_plain_propagation():
    energies, rng = network(4, 6)
    n, m = 10 ** rng.uniform(-2, 0, (2, 6))
    rises = [[Rise.constant(one) for one in side] for side in (n, m)]
    total, levels = risen(energies, [n, m], rises)
    assert total == pytest.approx(energies.total(n, m))
    assert 1 + levels == pytest.approx(energies.growth(n))
    assert energies.total(n, m, n, m) == pytest.approx(energies.total(n, m))


def test_more_than_a_float_holds_is_a_large_number():
    energies = Propagation(np.ones(400), np.ones(400), np.triu(np.ones((400, 400)), 1))
    rises = [[Rise.constant(1e6)] * 400] * 2
    total, levels = risen(energies, [[1e6] * 400] * 2, rises)
    assert 1e299 < total <= 1e300
    assert np.isfinite(levels).all()


def test_choices_keep_their_budget_at_their_own_rises_and_are_within_three_percent_of_the_best():
    found = []
    for seed in range(16):
        problem = random_problem(seed, 4, 4)
        everything = [problem.choice(one) for one in itertools.product(*(range(len(menu)) for menu in problem.menus))]
        budget = sorted(one.total for one in everything)[(seed % 8 + 1) * len(everything) // 10]
        quiet = choose(problem, noise=budget)
        assert quiet.total <= budget * (1 + 1e-9)
        assert quiet == problem.choice(quiet.places)
        found.append(
            (
                quiet.seconds / min(one.seconds for one in everything if one.total <= budget * (1 + 1e-12)) - 1,
                max(one.progress for one in everything) / choose(problem, progress=True).progress - 1,
            )
        )
    assert np.max(found) < 0.03


def test_the_frontier_is_that_of_choices_at_their_own_rises():
    problem = random_problem(1, 10, 5)
    found = frontier(problem)
    assert len(found) > 3
    assert found == [problem.choice(one.places) for one in found]
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert [one.total for one in found] == sorted((one.total for one in found), reverse=True)
