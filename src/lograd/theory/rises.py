"""How the noise that a treatment adds rises with the noise that arrives at its layer.

On a gradient of energy 1 with noise of energy z in it, a treatment adds y = n + r(z) z.  r hardly depends on z: for
pruning it falls by half while z grows a thousandfold, and somewhat faster for coarse steps, which follow the largest
element.  So it is measured at some levels z, with power laws between them, and the problem with r held fixed is linear
(`Propagation`).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidValue, sentence
from ..laws.law import Values
from .propagation import Propagation

ROUNDS = 40
"""The most rounds in which levels and rises are computed from each other; a few are needed."""
TINY, MOST = 1e-300, 1e300
LARGEST = 1e120
"""Stands for growth beyond all use, so that products of it are finite."""


@final
@dataclass(frozen=True)
class Rise:
    """The ratio r at some levels of noise; constant below the first and above the last.

    Args:
        levels: the energy of the noise over that of the gradient without it; positive and rising.
        ratios: r at each of them.

    >>> Rise((0.1, 10.0), (4.0, 1.0)).at(1.0)
    2.0
    """

    levels: tuple[float, ...]
    ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip((0.0, *self.levels), self.levels, strict=False))
        if not self.levels or len(self.levels) != len(self.ratios) or not rising or not math.isfinite(self.levels[-1]):
            raise InvalidValue(sentence("levels of a Rise", self.levels, "positive and rising, one for each ratio"))
        if not all(0 <= one < math.inf for one in self.ratios):
            raise InvalidValue(sentence("ratios of a Rise", self.ratios, "finite, zero or positive"))

    @classmethod
    def constant(cls, ratio: float) -> Rise:
        """Return a rise that is the same at all levels."""
        return cls((1.0,), (ratio,))

    @classmethod
    def through(cls, noise: float, levels: Sequence[float], added: Sequence[float]) -> Rise:
        """Return the rise of a treatment that adds `noise` to the gradient alone, and `added` at levels of noise.

        A ratio is never taken as less than one at a higher level: differences of nearly equal numbers are uncertain
        where there is little noise.
        """
        ratios = [max(y - noise, 0.0) / z for z, y in zip(levels, added, strict=True)]
        return cls(tuple(levels), tuple(np.maximum.accumulate(ratios[::-1])[::-1].tolist()))

    def times(self, factor: float) -> Rise:
        """Return this rise with all ratios multiplied."""
        return Rise(self.levels, tuple(factor * one for one in self.ratios))

    def at(self, level: float) -> float:
        """Return r at a level of noise."""
        place = bisect(self.levels, level)
        if place in (0, len(self.levels)):
            return self.ratios[max(place - 1, 0)]
        (low, high), (first, second) = self.levels[place - 1 : place + 1], self.ratios[place - 1 : place + 1]
        share = math.log(level / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(max(first, TINY)) + share * math.log(max(second, TINY)))


class Curves(NamedTuple):
    """Many rises as arrays of any one shape; the last axis has logarithms at the levels, repeated at the end."""

    levels: Values
    ratios: Values

    @classmethod
    def of(cls, rises: Sequence[Rise] | Sequence[Sequence[Rise]]) -> Curves:
        """Return the arrays of a list of rises, or of a list of lists."""
        table = np.array(rises, dtype=object)
        most = max(len(rise.levels) for rise in table.flat)
        shape = (*table.shape, most)
        padded = [
            [(*values, *[values[-1]] * (most - len(values))) for values in (rise.levels, rise.ratios)]
            for rise in table.flat
        ]
        levels, ratios = np.log(np.maximum(np.array(padded), TINY)).transpose(1, 0, 2)
        return cls(levels.reshape(shape), ratios.reshape(shape))

    def among(self, places: Any) -> Curves:
        """Return some of them, by an index of numpy."""
        return Curves(self.levels[places], self.ratios[places])

    def at(self, levels: Values) -> Values:
        """Return `Rise.at` of each, at levels that are broadcast over them."""
        width, height = np.diff(self.levels, axis=-1), np.diff(self.ratios, axis=-1)
        way = np.log(np.maximum(levels, TINY))[..., None] - self.levels[..., :-1]
        share = np.clip(way / np.where(width > 0, width, 1.0), 0.0, 1.0)
        found: Values = np.exp(self.ratios[..., 0] + (share * height).sum(axis=-1))
        return found


def bounded(values: Values) -> Values:
    """Return the values, with LARGEST for those beyond it and for NaN."""
    found: Values = np.where(values < LARGEST, values, LARGEST)
    return found


def arriving_levels(propagation: Propagation, noise: ArrayLike, rises: Curves) -> Values:
    """Return the level of noise that arrives at each layer, z = x - 1, at most LARGEST.

    Args:
        noise: the noise-to-signal ratio of each layer's treatment in dX.
        rises: of each layer in dX.
    """
    levels = np.zeros(propagation.own.size)
    ratios = rises.at(levels)
    for _ in range(ROUNDS):
        with np.errstate(all="ignore"):
            levels = bounded(propagation.growth(noise, ratios) - 1)
        before, ratios = ratios, rises.at(levels)
        if np.allclose(before, ratios, rtol=1e-7, atol=0.0):
            break
    return levels


def risen(
    propagation: Propagation, noise: Sequence[ArrayLike], rises: Sequence[Sequence[Rise]]
) -> tuple[float, Values]:
    """Return the noise in all weight gradients, and the level of noise that arrives at each layer.

    Args:
        noise: the noise-to-signal ratio of each layer's treatment in dX, and in dW.
        rises: the same of their rises.
    """
    n, m = noise
    curves = [Curves.of(side) for side in rises]
    levels = arriving_levels(propagation, n, curves[0])
    with np.errstate(all="ignore"):
        total = propagation.total(n, m, *(side.at(levels) for side in curves))
    return float(np.nan_to_num(total, nan=MOST, posinf=MOST)), levels
