"""Monte Carlo in plain NumPy, to compare with predictions of the theory.

Each function is the plain definition of its operation, without regard to speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lograd.formats import Format, Rounding

Values = NDArray[np.float64]


def prune(x: Values, threshold: float, seed: int = 0) -> Values:
    """Prune stochastically, Eq. 5 of [chmiel2021]: keep |x| > a; else sign(x) a with probability |x| / a, else 0."""
    uniform = np.random.default_rng(seed).random(np.shape(x))
    kept = np.where(uniform * threshold < np.abs(x), np.copysign(threshold, x), 0.0)
    return np.where(np.abs(x) > threshold, x, kept)


def quantize(x: Values, format: Format, scale: float = 1.0, rounding: Rounding = "nearest", seed: int = 0) -> Values:
    """Return Q(scale x) / scale for positive x."""
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
    """A mean, and a band of 4 standard errors on each side of it."""

    mean: float
    band: float

    @classmethod
    def of(cls, samples: ArrayLike) -> Estimate:
        """Return the estimate of the mean of independent samples."""
        array = np.asarray(samples, dtype=np.float64)
        return cls(float(array.mean()), float(4 * array.std(ddof=1) / np.sqrt(array.size)))

    def agrees(self, predicted: float, slack: float = 0.0) -> bool:
        """Return True if a prediction lies inside the band, widened by `slack`."""
        return abs(float(predicted) - self.mean) <= self.band + slack
