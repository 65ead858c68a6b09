"""Search among choices of one option per layer: exact effects of exchanging one option or two, and descents by them.

The noise of a choice is linear in the noise of any one layer while the others stay, as noise of a layer never comes
back to it (`Propagation`).  So with x the growth at each layer, v the noise that a unit of it costs on its way, and

    y = dX + dr (x - 1)         the change of the noise that a layer adds to dX, by those of its two ratios n and r
    d = v dr_dX + own dr_dW     the change of the noise that a unit of growth adds

dN = v y_dX + own y_dW is exact for one exchange, and so is the noise of two together:
dN_l + dN_m + y_l G_ml d_m + y_m G_lm d_l, where G = (1 - T diag(r))^-1 T is all that reaches layer m from a unit of
noise in layer l, on all ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..laws.law import Values
from .propagation import Propagation

Places = NDArray[np.intp]
Objective = Callable[[Values, Values], Values]
"""Takes seconds and noise of choices, and returns what is to be small: infinite where a choice is not allowed."""
LARGEST = 1e120
"""Stands for growth beyond all use, so that products of it are finite."""
PAIRS = 600
"""The most single exchanges that are tried in pairs; their number is the square of it."""
ROUNDS = 200
"""The most exchanges in one descent."""


class Point(NamedTuple):
    """A choice with its seconds and its noise."""

    places: Places
    seconds: float
    noise: float


class Effects(NamedTuple):
    """The effects of exchanging the option of one layer, with a row for each layer and a column for each option."""

    seconds: Values
    noise: Values
    input_change: Values
    """y: the change of the noise that is sent on."""
    direct: Values
    """d: the change of the noise that a unit of growth adds."""


@dataclass(frozen=True, eq=False)
class Table:
    """The options of all layers as arrays; a layer with fewer than others has its first one several times.

    Args:
        seconds, input_noise, weight_noise, penalty: of each option; the penalty is in units of noise.
        input_rise, weight_rise: the ratios of each option on noise that arrives.
        energies: how noise travels, in units of noise.
        rest: seconds outside these layers.
    """

    seconds: Values
    input_noise: Values
    weight_noise: Values
    penalty: Values
    input_rise: Values
    weight_rise: Values
    energies: Propagation
    rest: float

    @cached_property
    def order(self) -> Places | None:
        """The layers in an order in which noise flows on only; None if it comes back, as where modules run twice."""
        return downstream(self.energies.transfer)

    @cached_property
    def _transfer(self) -> Values:
        """The negative transfer between the layers in that order, as columns: what LAPACK takes without a copy."""
        assert self.order is not None
        return np.asfortranarray(-self.energies.transfer[np.ix_(self.order, self.order)])

    def at(self, places: Places) -> Point:
        """Return a choice with its seconds and its noise."""
        here = (np.arange(len(places)), places)
        n, m, r, s = self._ratios(here)
        z = self.growth(n, r) - 1
        noise = (n + r * z) @ self.energies.passed + (m + s * z) @ self.energies.own + self.penalty[here].sum()
        return Point(places, float(self.rest + self.seconds[here].sum()), float(noise))

    def at_all(self, places: Places) -> tuple[Values, Values]:
        """Return the seconds and the noise of many choices, a row of places for each."""
        here = (np.arange(places.shape[1]), places)
        n, m, r, s = self._ratios(here)
        transfer = self.energies.transfer.T
        with np.errstate(all="ignore"):
            z = term = n @ transfer
            for _ in range(places.shape[1] - 1):
                term = (term * r) @ transfer
                z = z + term
            z = _finite(z)
            noise = ((n + r * z) * self.energies.passed + (m + s * z) * self.energies.own).sum(axis=1)
        return self.rest + self.seconds[here].sum(axis=1), noise + self.penalty[here].sum(axis=1)

    def effects(self, places: Places) -> Effects:
        """Return the effects of all single exchanges."""
        here = (np.arange(len(places)), places)
        n, _, r, s = self._ratios(here)
        z, v, own = (one[:, None] for one in (self.growth(n, r) - 1, self._value(r, s), self.energies.own))
        seconds, input_change, weight_change, penalty, input_rise, weight_rise = (
            options - options[here][:, None]
            for options in (
                self.seconds, self.input_noise, self.weight_noise, self.penalty, self.input_rise, self.weight_rise,
            )
        )  # fmt: skip
        sent = input_change + z * input_rise
        noise = v * sent + own * (weight_change + z * weight_rise) + penalty
        return Effects(seconds, noise, sent, v * input_rise + own * weight_rise)

    def reach(self, places: Places) -> Values:
        """Return G: in row m and column l, all the noise at layer m from a unit of noise in layer l."""
        r = self.input_rise[np.arange(len(places)), places]
        if self.order is None:  # noise that comes back: the shortest way of it
            return self.energies.transfer
        found = np.empty_like(self._transfer)
        found[np.ix_(self.order, self.order)] = self._solve(r, -self._transfer)
        return _finite(found)

    def _ratios(self, here: tuple[Places, Places]) -> tuple[Values, Values, Values, Values]:
        """Return the noise of a choice in dX and dW, and its rises."""
        return self.input_noise[here], self.weight_noise[here], self.input_rise[here], self.weight_rise[here]

    def growth(self, n: Values, r: Values) -> Values:
        """Return x, the growth of the gradient that arrives at each layer, by noise in dX and its rises."""
        if self.order is None:
            return _finite(self.energies.growth(n, r))
        x = np.empty_like(n)
        x[self.order] = 1 + self._solve(r, -self._transfer @ n[self.order])
        return _finite(x)

    def _value(self, r: Values, s: Values) -> Values:
        """Return v, the noise in all weight gradients for a unit of noise that leaves each layer by dX."""
        energies = self.energies
        if self.order is None:
            with np.errstate(all="ignore"):
                return _finite(energies.costs(r, s)[0] / energies.growth(r))
        value = np.empty_like(r)
        value[self.order] = self._solve(r, (r * energies.passed + s * energies.own)[self.order], transposed=True)
        return _finite(energies.passed + energies.transfer.T @ _finite(value))

    def _solve(self, r: Values, right: Values, transposed: bool = False) -> Values:
        """Solve (1 - T diag(r)) y = right, or its transpose; the diagonal of ones is not written down."""
        with np.errstate(all="ignore"):
            solved: Values = solve_triangular(
                self._transfer * r[self.order],
                right,
                trans=int(transposed),
                lower=True,
                unit_diagonal=True,
                check_finite=False,
            )
        return solved


def downstream(transfer: Values) -> Places | None:
    """Return an order of the layers in which each stands after all whose noise reaches it; None if there is none."""
    waiting = (transfer > 0).sum(axis=1)
    ready = [int(place) for place in np.flatnonzero(waiting == 0)]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        reached = np.flatnonzero(transfer[:, order[-1]] > 0)
        waiting[reached] -= 1
        ready += [int(place) for place in reached if waiting[place] == 0]
    return np.array(order, dtype=np.intp) if len(order) == len(waiting) else None


def settle(table: Table, start: Point, price: float) -> Point:
    """Return a choice with the least seconds + price x noise that changes of any number of layers at once lead to.

    All layers take their best option at the costs of the choice before.  Costs rise with the noise of other layers, so
    that may be too much at once; then the half of the layers that win most change, or half of these: a single change
    is exact, so the descent ends where none is left that pays.
    """

    def value(point: Point) -> float:
        return point.seconds + price * point.noise

    here, most = start, len(start.places)
    for _ in range(ROUNDS):
        effects = table.effects(here.places)
        gains = effects.seconds + price * effects.noise
        best = np.argmin(gains, axis=1)
        won = gains[np.arange(len(best)), best]
        changing = np.argsort(won)[: min(int((won < -1e-12 * value(here)).sum()), most)]
        while changing.size:
            places = here.places.copy()
            places[changing] = best[changing]
            there = table.at(places)
            if value(there) < value(here):
                here, most = there, 2 * changing.size  # where so many at once were too many, they may be again
                break
            changing = changing[: changing.size // 2]
        else:
            return here
    return here


def improve(table: Table, start: Point, objective: Objective, price: float) -> Point:
    """Return a choice that no exchange of one option improves, nor any of the most promising pairs of exchanges.

    Args:
        table, start: where to begin, with a finite objective.
        objective: what is to be small.
        price: seconds that a unit of noise is worth hereabouts; it says which pairs are promising.
    """
    here = start
    for _ in range(ROUNDS):
        effects = table.effects(here.places)
        there = _best_single(table, here, effects, objective) or _best_pair(table, here, effects, objective, price)
        if there is None:
            return here
        here = there
    return here


def _best_single(table: Table, here: Point, effects: Effects, objective: Objective) -> Point | None:
    values = objective(here.seconds + effects.seconds, here.noise + effects.noise)
    layer, place = np.unravel_index(np.argmin(values), values.shape)
    return _moved(table, here, [(int(layer), int(place))], objective)


def _best_pair(table: Table, here: Point, effects: Effects, objective: Objective, price: float) -> Point | None:
    layers, places = np.nonzero(np.arange(effects.noise.shape[1])[None, :] != here.places[:, None])
    if layers.size > PAIRS:  # those that hardly change seconds + price x noise: two of them may balance
        off = np.abs(effects.seconds + price * effects.noise)[layers, places]
        kept = np.argpartition(off, PAIRS)[:PAIRS]
        layers, places = layers[kept], places[kept]
    if not layers.size:
        return None
    seconds, noise, sent, direct = (one[layers, places] for one in effects)
    way = sent[:, None] * table.reach(here.places)[np.ix_(layers, layers)].T * direct[None, :]
    values = objective(
        here.seconds + seconds[:, None] + seconds[None, :],
        here.noise + noise[:, None] + noise[None, :] + way + way.T,
    )
    values[layers[:, None] == layers[None, :]] = np.inf
    one, other = np.unravel_index(np.argmin(values), values.shape)
    return _moved(table, here, [(int(layers[i]), int(places[i])) for i in (one, other)], objective)


def _moved(table: Table, here: Point, moves: Sequence[tuple[int, int]], objective: Objective) -> Point | None:
    """Return the choice after some exchanges if it is better, by its own seconds and noise."""
    places = here.places.copy()
    for layer, place in moves:
        places[layer] = place
    there = table.at(places)
    before, after = (float(objective(np.array(one.seconds), np.array(one.noise))) for one in (here, there))
    return there if after < before * (1 - 1e-12) - 1e-300 else None


def _finite(values: Values) -> Values:
    found: Values = np.where(values < LARGEST, values, LARGEST)  # not a number is beyond all use, too
    return found
