"""A measured mean with its standard error, for profiles and for the variance of plans.  No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
SIGMAS = 4.0
"""Half the width of a band, in standard deviations of a normal law; chance leaves it once in 30,000 times."""
SUM_ROUNDING = 1e-12
"""Relative error of a sum in float64, with room to spare; what differs by less is equal."""


@final
@dataclass(frozen=True)
class Measured:
    """A mean and its standard error."""

    mean: float
    error: float

    def over(self, other: Measured) -> Measured | None:
        """Return the ratio to another mean that is independent, to first order in both errors; None over zero."""
        if other.mean <= 0:
            return None
        ratio = self.mean / other.mean
        spread = np.hypot(self.error, ratio * other.error) / other.mean
        return Measured(float(ratio), float(spread))

    def agrees(self, value: float, error: float = 0.0) -> bool:
        """Return True if a value, with a standard error of its own, lies within 4 standard errors of the mean.

        Sums of float64 that differ by rounding alone agree, whatever their errors are.
        """
        rounding = SUM_ROUNDING * max(abs(self.mean), abs(value))
        return bool(abs(self.mean - value) <= SIGMAS * np.hypot(self.error, error) + rounding)


def mean_of(samples: Values) -> tuple[Values, Values]:
    """Return mean and standard error over the last dimension, in which samples are independent."""
    count = samples.shape[-1]
    return samples.mean(-1), samples.std(-1, ddof=1) / np.sqrt(count)
