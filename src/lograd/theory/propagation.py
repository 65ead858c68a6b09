"""Where the noise in the gradients of layers goes, and the sparsities that let the least of it arrive.

The backward pass is linear in the gradients once the forward is done.  So noise that a treatment adds to the gradient
of layer l reaches its own weight gradient, those of earlier layers, and the gradients of earlier layers, by factors
that do not depend on how much of it there is.  With n_l the noise-to-signal ratio of the treatment, and all energies
relative to those without noise:

    x_k = 1 + sum_l t_kl n_l x_l               the energy of the gradient that arrives at layer k
    N   = sum_l n_l x_l (own_l + passed_l)     the noise in the weight gradients, summed over the layers

Independent noises add up.  x grows with depth: a layer that is pruned hands its noise to all that are pruned behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidValue, sentence
from ..laws import Law
from ..laws.law import Values
from .allocation import allocate, thresholds_for
from .pruning import noise_to_signal

ROUNDS = 60
"""Costs and sparsities follow from each other; so many rounds are more than enough for both to settle."""


@final
@dataclass(frozen=True, eq=False)
class Propagation:
    """Factors by which noise travels; a layer has one number in each, in the order of the layers.

    Args:
        own: the relative noise in the layer's own weight gradient, |error of dW|^2 / |dW|^2, for a noise-to-signal
            ratio of one in the gradient that its product takes.
        passed: the same, summed over the weight gradients of all other layers, through the layer's dX.
        transfer: in row k and column l, the noise in the gradient of layer k, relative to its energy, for a
            noise-to-signal ratio of one in that of layer l.
    """

    own: Values
    passed: Values
    transfer: Values

    def __post_init__(self) -> None:
        for name in ("own", "passed", "transfer"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        layers = self.own.size
        shapes = (self.own.shape, self.passed.shape, self.transfer.shape)
        if not layers or shapes != ((layers,), (layers,), (layers, layers)):
            raise InvalidValue(sentence("shapes of a Propagation", shapes, "(L,), (L,) and (L, L)"))
        for name in ("own", "passed", "transfer"):
            if not np.all((getattr(self, name) >= 0) & np.isfinite(getattr(self, name))):
                raise InvalidValue(
                    sentence(f"{name} of a Propagation", getattr(self, name), "finite, zero or positive")
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Propagation):
            return NotImplemented
        names = ("own", "passed", "transfer")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def growth(self, noise_input: ArrayLike) -> Values:
        """x: by how much the treatments of dX multiply the energy of the gradient that arrives at each layer."""
        return self._carry(self.transfer * self._checked(noise_input), np.ones_like(self.own))

    def total(self, noise_input: ArrayLike, noise_weight: ArrayLike) -> float:
        """N: the sum over layers of |error of dW|^2 / |dW|^2.

        Args:
            noise_input, noise_weight: the noise-to-signal ratio of each layer's treatment in the product for dX and for
                dW.
        """
        arrives = self._checked(noise_input) * self.passed + self._checked(noise_weight) * self.own
        return float(self.growth(noise_input) @ arrives)

    def costs(self, noise_input: ArrayLike, noise_weight: ArrayLike) -> tuple[Values, Values]:
        """The derivatives of `total` by both arguments."""
        n = self._checked(noise_input)
        x = self.growth(n)
        # What a unit of energy at each layer adds to the total, by all treatments that it meets from there on.
        value = self._carry((self.transfer * n).T, n * self.passed + self._checked(noise_weight) * self.own)
        return x * (self.passed + self.transfer.T @ value), x * self.own

    def _carry(self, step: Values, start: Values) -> Values:
        """start + step start + step^2 start + ..., which ends, as gradients flow one way."""
        result = term = start
        for _ in range(self.own.size - 1):
            term = step @ term
            result = result + term
        return result

    def _checked(self, noise: ArrayLike) -> Values:
        n = np.asarray(noise, dtype=np.float64)
        if n.shape != self.own.shape or not np.all((n >= 0) & np.isfinite(n)):
            raise InvalidValue(sentence("noise", noise, f"{self.own.size} numbers, zero or positive, one per layer"))
        return n


class Sparsities(NamedTuple):
    """Of each layer's gradient in the product for dX and in the product for dW."""

    input: Values
    weight: Values


def allocate_by_noise(
    laws: Sequence[Law],
    work: tuple[ArrayLike, ArrayLike],
    sparsity: float,
    propagation: Propagation,
    *,
    split: bool = False,
    zero_share: ArrayLike | None = None,
    max_sparsity: float = 1.0,
) -> Sparsities:
    """The sparsities that skip a share of the work and let the least noise arrive in the weight gradients.

    `theory.allocate(method="noise")` with the derivatives of `Propagation.total` as costs, which follow from the
    sparsities in turn: both are found in rounds.

    Args:
        laws: the law of |g| in each layer.
        work: operations of the product for dX, and of that for dW, in each layer.  A product without work is left
            dense, and so is its noise.
        sparsity: the share of all this work that is to be skipped.
        propagation: where noise goes; `lograd.profile(noise=...)` measures it.
        split: give the two products of a layer different sparsity.  Then they are pruned independently.
        zero_share, max_sparsity: as for `allocate`.
    """
    layers = len(laws)
    if propagation.own.shape != (layers,):
        raise InvalidValue(f"a propagation of {propagation.own.size} layers does not fit {layers} laws.")
    both = np.stack([np.asarray(one, dtype=np.float64) for one in work])
    if both.shape != (2, layers) or not np.all((both >= 0) & np.isfinite(both)) or not both.any():
        raise InvalidValue(sentence("work", work, f"two times {layers} numbers, zero or positive, not all zero"))
    zeros = np.broadcast_to([law.zero_share for law in laws] if zero_share is None else zero_share, (layers,))
    # Rows are what is pruned as one: each product, or the two of a layer together.
    owners = np.eye(2)[:, :, None] * np.ones(layers) if split else np.ones((1, 2, layers))
    weights = np.einsum("rsl,sl->rl", owners, both)
    rows, columns = np.nonzero(weights)
    chosen, n, z = [laws[int(column)] for column in columns], weights[rows, columns], np.asarray(zeros)[columns]

    def ratios(shares: Values) -> Values:
        """The noise-to-signal ratio of each product; 0 where there is no work."""
        table = np.zeros_like(weights)
        table[rows, columns] = noise_to_signal(chosen, thresholds_for(chosen, shares, z))
        spread: Values = np.einsum("rsl,rl->sl", owners, table)
        return spread * (both > 0)

    def costs(noise: Values) -> Values:
        """Of each row; a cost of zero would ask for all of the layer, so none is quite."""
        table = np.einsum("rsl,sl->rl", owners, np.stack(propagation.costs(*noise)) * (both > 0))
        floored: Values = np.maximum(table[rows, columns], 1e-12 * table.max() or 1.0)
        return floored

    shares = allocate(chosen, n, sparsity, "uniform", zero_share=z, max_sparsity=max_sparsity)
    noise = ratios(shares)
    best, least, price = shares, propagation.total(*noise), costs(noise)
    for _ in range(ROUNDS):
        shares = allocate(chosen, n, sparsity, "noise", costs=price, zero_share=z, max_sparsity=max_sparsity)
        noise = ratios(shares)
        if (total := propagation.total(*noise)) < least:
            best, least = shares, total
        before, price = price, np.sqrt(price * costs(noise))  # half a step, or the rounds may go to and fro
        if np.allclose(before, price, rtol=1e-6):
            break
    table = np.zeros_like(weights)
    table[rows, columns] = best
    return Sparsities(*(np.einsum("rsl,rl->sl", owners, table) * (both > 0)))
