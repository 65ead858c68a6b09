"""Noise that arrives at the layers of a network, for a guard: a bound, or factors that a profile has measured.

Layers are in the order in which they run, so that noise of a layer reaches those in front of it.  `watch` corrects what
is predicted here by measured growth.  The guard noise that follows is not what a plan predicts: see `Bound` and
`Measured`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..laws.law import Values
from ..plan import Plan
from ..theory import Propagation

LARGEST = 700.0
"""The largest logarithm of a growth; the exponential of more is no float."""


class Travel(Protocol):
    """How noise travels between layers, and how it adds up to one number."""

    measured: bool
    """True if the factors were measured."""
    words: str
    """The meaning of `total`, for people."""

    def growth(self, noise: Values) -> Values:
        """Return log x, the growth of the energy that arrives at each layer.

        Args:
            noise: the noise-to-signal ratio of each layer's treatment in the product for dX.
        """

    def shares(self, growth: Values, noise: Values, noise_weight: Values) -> Values:
        """Return the guard noise of each layer.

        Args:
            growth: log x.
            noise, noise_weight: the noise-to-signal ratio of each layer's treatment in the products for dX and dW.
        """

    def total(self, shares: Values) -> float:
        """Return the guard noise of all layers, the number that a budget limits."""


class Bound(Travel):
    """The noise that arrives if layers stand in one row and noise travels as the gradient does.

    The gradient that enters dW of a layer then has noise of x (1 + n) - 1 of its energy.  The layer where this is
    largest is held against the budget.  It is not rho: that would be the noise of all parameters over V.  The two agree
    in a single weight whose V is the energy of its samples' gradients; over all weights rho is mostly smaller.
    """

    measured = False
    words = "the noise-to-signal ratio in the worst layer"

    def growth(self, noise: Values) -> Values:
        each = np.log1p(noise)
        behind: Values = np.cumsum(each[::-1])[::-1] - each
        return behind

    def shares(self, growth: Values, noise: Values, noise_weight: Values) -> Values:
        found: Values = np.expm1(np.minimum(growth + np.log1p(noise_weight), LARGEST))
        return found

    def total(self, shares: Values) -> float:
        return float(shares.max(initial=0.0))


class Measured(Travel):
    """The noise that arrives by measured factors, in absolute energy, over a measured variance of the minibatch.

    This is rho of the plan's profile, with the laws of now and the measured growth.  pi, which the plan adds to it, is
    not in it.

    Args:
        energies: own and passed energy of each layer's noise, and the transfer between layers.
        unit: V, the minibatch's own variance.
    """

    measured = True
    words = "rho of the backward, without pi"

    def __init__(self, energies: Propagation, unit: float) -> None:
        self.energies, self.unit = energies, unit

    def growth(self, noise: Values) -> Values:
        found: Values = np.log(self.energies.growth(noise))
        return found

    def shares(self, growth: Values, noise: Values, noise_weight: Values) -> Values:
        arrives = noise * self.energies.passed + noise_weight * self.energies.own
        found: Values = np.exp(np.minimum(growth, LARGEST)) * arrives / self.unit
        return found

    def total(self, shares: Values) -> float:
        return float(shares.sum())


def travel_of(plan: Plan, names: Sequence[str]) -> Travel:
    """Return how noise travels between the layers of these names: measured, where the plan knows all of them."""
    expected = plan.expected
    if not names or expected is None or expected.energies is None or not set(names) <= set(expected.layers):
        return Bound()
    return Measured(expected.energies.among([expected.layers.index(name) for name in names]), expected.unit)


def budget_of(plan: Plan) -> float | None:
    """Return the noise of the backward that a plan was made for; None if it has no budget.

    The forward's part of the budget is not watched, so it does not count.
    """
    expected = plan.expected
    if expected is None or expected.budget is None:
        return None
    return max(expected.budget - (expected.penalty or 0.0), 0.1 * expected.budget) or None
