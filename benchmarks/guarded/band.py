"""The band of losses that dense runs of several seeds give, and when a run leaves it.

Losses are smoothed as means of the logarithms of the last ten steps.  The band ends 4 standard deviations above the
mean of the dense runs; a standard deviation is that over the seeds, pooled over the last ten steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WINDOW = 10
"""Steps over which losses are smoothed, and deviations pooled."""
DEVIATIONS = 4.0

Values = NDArray[np.float64]


def smoothed(losses: Sequence[float]) -> Values:
    """Return the mean logarithm of the last losses at each step; infinite from the first that is no number on.

    >>> smoothed([1.0, 1.0, float("nan")]).tolist()
    [0.0, 0.0, inf]
    """
    logs = np.log(np.maximum(np.nan_to_num(np.asarray(losses, dtype=np.float64), nan=np.inf), 1e-30))
    return np.array([logs[max(0, end - WINDOW) : end].mean() for end in range(1, len(logs) + 1)])


def limits(dense: Sequence[Sequence[float]]) -> Values:
    """Return the end of the band at each step, as a logarithm; infinite where a dense run is no number."""
    runs = np.array([smoothed(losses) for losses in dense])
    broken = ~np.isfinite(runs).all(axis=0)
    runs[:, broken] = 0.0
    variances = runs.var(axis=0, ddof=1)
    pooled = [variances[max(0, end - WINDOW) : end].mean() for end in range(1, len(variances) + 1)]
    found = runs.mean(axis=0) + DEVIATIONS * np.sqrt(pooled)
    return np.where(broken, np.inf, found)


def left_at(losses: Sequence[float], ends: Values) -> int | None:
    """Return the first step whose loss is outside of the band; None if there is none."""
    outside = np.flatnonzero(_outside(losses, ends))
    return int(outside[0]) if len(outside) else None


def steps_outside(losses: Sequence[float], ends: Values) -> int:
    """Return how many steps have a loss outside of the band."""
    return int(np.count_nonzero(_outside(losses, ends)))


def _outside(losses: Sequence[float], ends: Values) -> NDArray[np.bool_]:
    return np.asarray(smoothed(losses) > ends)  # where the band has no end, no run leaves it
