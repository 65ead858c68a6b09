"""How noise travels through a backward pass, and the sparsities for which the least noise arrives.

The backward pass is linear in the gradients once the forward is done.  So noise that a treatment adds to the gradient
of layer l reaches its own weight gradient, those of earlier layers, and the gradients of earlier layers, by factors
that do not depend on the strength of the noise.  With all energies relative to those without noise:

    x_k = 1 + sum_l t_kl y_l                   the energy of the gradient that arrives at layer k
    y_l = n_l + r_l (x_l - 1)                  the noise that the treatment of layer l adds
    N   = sum_l y_l (own_l + passed_l)         the noise in the weight gradients, summed over the layers

n is the noise-to-signal ratio of the treatment on the gradient without noise, and r, the rise, that on the noise which
arrives (`rises`).  Gradients have many tiny elements and a few large ones, so zeros and coarse steps cost little; noise
has not.  Where r is not given it is n, and y = n x.  Independent noises add up.  x grows on the way back: noise of one
layer passes through all layers before it.
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
"""The most rounds in which costs and sparsities are computed from each other; far fewer are needed."""


@final
@dataclass(frozen=True, eq=False)
class Propagation:
    """Factors by which noise travels between layers, with an entry for each layer.

    Args:
        own: the relative noise in the layer's own weight gradient, |error of dW|^2 / |dW|^2, for a noise-to-signal
            ratio of one in the gradient that its product takes.
        passed: the relative noise that reaches the weight gradients of all other layers through the layer's dX, summed.
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

    def among(self, places: Sequence[int]) -> Propagation:
        """Return the factors between some of the layers, in this order, without the noise of the others."""
        return Propagation(self.own[places], self.passed[places], self.transfer[np.ix_(places, places)])

    def growth(self, noise_input: ArrayLike, rise_input: ArrayLike | None = None) -> Values:
        """Return x, the factor by which noise multiplies the energy of the gradient that arrives at each layer.

        Args:
            noise_input: the noise-to-signal ratio of each layer's treatment in the product for dX.
            rise_input: that on the noise which arrives; None for the same.
        """
        n = self._checked(noise_input)
        if rise_input is None:
            return self._carry(self.transfer * n, np.ones_like(self.own))
        return 1 + self._carry(self.transfer * self._checked(rise_input), self.transfer @ n)

    def total(
        self,
        noise_input: ArrayLike,
        noise_weight: ArrayLike,
        rise_input: ArrayLike | None = None,
        rise_weight: ArrayLike | None = None,
    ) -> float:
        """Return N, the sum over layers of |error of dW|^2 / |dW|^2.

        Args:
            noise_input, noise_weight: the noise-to-signal ratio of each layer's treatment in the product for dX and for
                dW.
            rise_input, rise_weight: those on the noise which arrives; None for the same.
        """
        n, m = self._checked(noise_input), self._checked(noise_weight)
        z = self.growth(n, rise_input) - 1
        r, s = (one if rise is None else self._checked(rise) for one, rise in ((n, rise_input), (m, rise_weight)))
        return float((n + r * z) @ self.passed + (m + s * z) @ self.own)

    def costs(self, noise_input: ArrayLike, noise_weight: ArrayLike) -> tuple[Values, Values]:
        """Return the derivatives of `total` by its first two arguments, where the rises are the same."""
        x = self.growth(noise_input)
        return x * self.value(noise_input, noise_weight), x * self.own

    def value(self, rise_input: ArrayLike, rise_weight: ArrayLike) -> Values:
        """Return the noise in all weight gradients for a unit of noise that leaves each layer by dX.

        Args:
            rise_input, rise_weight: the noise-to-signal ratios on the noise which arrives, in dX and in dW.
        """
        r, s = self._checked(rise_input), self._checked(rise_weight)
        return self.passed + self.transfer.T @ self._carry((self.transfer * r).T, r * self.passed + s * self.own)

    def _carry(self, step: Values, start: Values) -> Values:
        """Return start + step start + step^2 start + ...; the sum is finite, as gradients flow in one direction."""
        result = term = start
        for _ in range(self.own.size - 1):
            term = step @ term
            result = result + term
            if np.all(term <= 1e-17 * result):
                break
        return result

    def _checked(self, noise: ArrayLike) -> Values:
        n = np.asarray(noise, dtype=np.float64)
        if n.shape != self.own.shape or not np.all((n >= 0) & np.isfinite(n)):
            raise InvalidValue(sentence("noise", noise, f"{self.own.size} numbers, zero or positive, one per layer"))
        return n


class Sparsities(NamedTuple):
    """The sparsity of each layer's gradient in the product for dX and in the product for dW."""

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
    """Return the sparsities that skip a share of the work with the least noise in the weight gradients.

    This is `theory.allocate(method="noise")` with the derivatives of `Propagation.total` as costs.  The costs depend on
    the sparsities in turn, so both are computed in rounds until they settle.

    Args:
        laws: the law of |g| in each layer.
        work: operations of the product for dX, and of that for dW, in each layer.  A product without work is not
            pruned and adds no noise.
        sparsity: the share of all this work that is to be skipped.
        propagation: where noise goes; `lograd.profile(noise=...)` measures it.
        split: give the two products of a layer different sparsity.  Then they are pruned independently.
        zero_share, max_sparsity: as for `allocate`.
    """
    rows = _Rows(laws, work, propagation, split, zero_share)
    shares = allocate(rows.laws, rows.work, sparsity, "uniform", zero_share=rows.zeros, max_sparsity=max_sparsity)
    noise = rows.ratios(shares)
    best, least, price = shares, propagation.total(*noise), rows.costs(noise)
    for _ in range(ROUNDS):
        shares = allocate(
            rows.laws, rows.work, sparsity, "noise", costs=price, zero_share=rows.zeros, max_sparsity=max_sparsity
        )
        noise = rows.ratios(shares)
        if (total := propagation.total(*noise)) < least:
            best, least = shares, total
        # The geometric mean is half a step: with whole steps the rounds may oscillate.
        before, price = price, np.sqrt(price * rows.costs(noise))
        if np.allclose(before, price, rtol=1e-6):
            break
    return Sparsities(*rows.by_product(best))


class _Rows:
    """The rows that are pruned to one sparsity each: a product of a layer, or both products of a layer together."""

    def __init__(
        self,
        laws: Sequence[Law],
        work: tuple[ArrayLike, ArrayLike],
        propagation: Propagation,
        split: bool,
        zero_share: ArrayLike | None,
    ) -> None:
        layers = len(laws)
        if propagation.own.shape != (layers,):
            raise InvalidValue(f"a propagation of {propagation.own.size} layers does not fit {layers} laws.")
        self.both = np.stack([np.asarray(one, dtype=np.float64) for one in work])
        if (
            self.both.shape != (2, layers)
            or not np.all((self.both >= 0) & np.isfinite(self.both))
            or not self.both.any()
        ):
            raise InvalidValue(sentence("work", work, f"two times {layers} numbers, zero or positive, not all zero"))
        self.propagation = propagation
        zeros = np.broadcast_to([law.zero_share for law in laws] if zero_share is None else zero_share, (layers,))
        self.owners = np.eye(2)[:, :, None] * np.ones(layers) if split else np.ones((1, 2, layers))
        """owners[r, s, l] is 1 if group r of layer l includes product s."""
        self.weights = np.einsum("rsl,sl->rl", self.owners, self.both)
        self.places = np.nonzero(self.weights)
        columns = self.places[1]
        self.laws = [laws[int(column)] for column in columns]
        self.work, self.zeros = self.weights[self.places], np.asarray(zeros)[columns]

    def by_product(self, numbers: Values) -> Values:
        """Return a number of each row as an array over products and layers; 0 where there is no work."""
        table = np.zeros_like(self.weights)
        table[self.places] = numbers
        spread: Values = np.einsum("rsl,rl->sl", self.owners, table)
        return spread * (self.both > 0)

    def ratios(self, shares: Values) -> Values:
        """Return the noise-to-signal ratio of each product at these sparsities."""
        return self.by_product(noise_to_signal(self.laws, thresholds_for(self.laws, shares, self.zeros)))

    def costs(self, noise: Values) -> Values:
        """Return the cost of noise in each row, kept above zero: a free layer would be pruned entirely."""
        table = np.einsum("rsl,sl->rl", self.owners, np.stack(self.propagation.costs(*noise)) * (self.both > 0))
        floored: Values = np.maximum(table[self.places], 1e-12 * table.max() or 1.0)
        return floored
