"""Prices of noise in seconds, under which choices lie on the convex frontier of seconds over noise.

Between two choices the slope of the line through them is the next price; the choice that is best at it lies below that
line, or there is nothing between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from .exchanges import Objective, Point, Table, improve, settle

T = TypeVar("T")
MOST_PRICES = 60
"""The most prices that are tried; far fewer are needed for a budget."""


def ends(table: Table) -> tuple[Point, Point]:
    """Return the choice with the least noise and the fastest one, each the other's best among equals."""
    loudness = table.input_noise + table.weight_noise + table.penalty
    start = table.at(np.argmin(loudness, axis=1))
    scale = max(start.seconds, 1e-300)
    quiet = improve(table, start, lambda seconds, noise: noise + 1e-18 * seconds / scale, 0.0)
    order = np.lexsort((loudness, table.seconds), axis=1)[:, 0]
    return quiet, table.at(order)


def around(table: Table, quiet: Point, fast: Point, quieter: Callable[[Point], bool]) -> tuple[Point, Point, float]:
    """Return the two neighbours on the convex frontier between which a limit lies, and the price between them."""
    if quieter(fast):
        return fast, fast, _price(quiet, fast)
    if not quieter(quiet):
        return quiet, quiet, _price(quiet, fast)
    for _ in range(MOST_PRICES):
        between = _below(table, quiet, fast)
        if between is None:
            break
        quiet, fast = (between, fast) if quieter(between) else (quiet, between)
    return quiet, fast, _price(quiet, fast)


def supported(table: Table, quiet: Point, fast: Point) -> list[Point]:
    """Return choices of the convex frontier, from the fastest to the least noise; the widest gaps are filled first."""
    found, closed = [fast, quiet] if _price(quiet, fast) > 0 else [quiet], set()
    for _ in range(MOST_PRICES):
        gaps = [
            (_gap(one, other), place)
            for place, (one, other) in enumerate(pairwise(found))
            if (one.seconds, other.seconds) not in closed
        ]
        if not gaps:
            break
        _, place = max(gaps)
        faster, quieter = found[place : place + 2]
        between = _below(table, quieter, faster)
        if between is None:
            closed.add((faster.seconds, quieter.seconds))
        else:
            found = undominated([*found, between], lambda one: (one.seconds, one.noise))
    return found


def best(table: Table, starts: tuple[Point, Point], relaxed: Objective, objective: Objective, price: float) -> Point:
    """Return the best choice that exchanges lead to, from both sides of a limit.

    Args:
        starts: the neighbours on the convex frontier; the first is within the limit.
        relaxed: the objective with a fine for what is over the limit.
        objective: the objective with its limit.
        price: seconds that a unit of noise is worth.
    """
    inside, outside = starts
    found = [improve(table, inside, objective, price)]
    repaired = improve(table, outside, relaxed, price)
    if np.isfinite(_at(objective, repaired)):
        found.append(improve(table, repaired, objective, price))
    return min(found, key=lambda one: _at(objective, one))


def _below(table: Table, quiet: Point, fast: Point) -> Point | None:
    """Return a choice that lies below the line through two others, as far as settles; None if there is none."""
    price = _price(quiet, fast)
    line = min(quiet.seconds + price * quiet.noise, fast.seconds + price * fast.noise)
    for start in (quiet, fast):
        found = settle(table, start, price)
        if found.seconds + price * found.noise < line * (1 - 1e-9):
            return found
    return None


def _price(quiet: Point, fast: Point) -> float:
    """Return the seconds that a unit of noise is worth between two choices."""
    saved, added = quiet.seconds - fast.seconds, fast.noise - quiet.noise
    return saved / added if saved > 0 and added > 0 else 0.0


def _at(objective: Objective, point: Point) -> float:
    return float(objective(np.array(point.seconds), np.array(point.noise)))


def _gap(fast: Point, quiet: Point) -> float:
    """Return how far two choices are apart: in seconds, and in what noise does to progress."""
    return float(np.log(quiet.seconds / max(fast.seconds, 1e-300)) + np.log1p(fast.noise) - np.log1p(quiet.noise))


def undominated(found: Sequence[T], key: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return those than which no other is both as fast and as quiet, the fastest first.

    Args:
        key: returns seconds and noise.
    """
    kept: list[T] = []
    for one in sorted(found, key=key):
        if not kept or key(one)[1] < key(kept[-1])[1]:
            kept.append(one)
    return kept
