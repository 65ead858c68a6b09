"""Monte Carlo in plain NumPy, to set beside what the theory predicts.

Simulated, and slow on purpose: each function is the definition and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..formats import Format, Rounding

Values = NDArray[np.float64]


def prune(x: Values, threshold: float, seed: int = 0) -> Values:
    """Eq. 5 of [chmiel2021]: keep |x| > a; else sign(x) a with probability |x| / a, and 0 otherwise."""
    uniform = np.random.default_rng(seed).random(np.shape(x))
    kept = np.where(uniform * threshold < np.abs(x), np.copysign(threshold, x), 0.0)
    return np.where(np.abs(x) > threshold, x, kept)


def quantize(x: Values, format: Format, scale: float = 1.0, rounding: Rounding = "nearest", seed: int = 0) -> Values:
    """Q(scale x) / scale for positive x."""
    cells = format.cells(rounding)[0]
    index = np.searchsorted(cells.edges, x * scale, side="right") - 1
    low = cells.points[index]
    if rounding == "stochastic":
        high = cells.points[np.minimum(index + 1, cells.points.size - 1)]
        share = np.divide(x * scale - low, high - low, out=np.zeros_like(x), where=high > low)
        low = np.where(np.random.default_rng(seed).random(np.shape(x)) < share, high, low)
    return np.asarray(low / scale)


@dataclass(frozen=True)
class Estimate:
    """A mean and the half-width of its band of 4 standard errors."""

    mean: float
    band: float

    @classmethod
    def of(cls, samples: ArrayLike) -> Estimate:
        array = np.asarray(samples, dtype=np.float64)
        return cls(float(array.mean()), float(4 * array.std(ddof=1) / np.sqrt(array.size)))

    def agrees(self, predicted: float, slack: float = 0.0) -> bool:
        return abs(float(predicted) - self.mean) <= self.band + slack
