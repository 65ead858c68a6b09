"""The log-Laplace law, which is like the lognormal law with heavier tails on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import exprel

from .law import (
    Law,
    Order,
    Values,
    check_interval,
    diverges,
    finite,
    magnitudes,
    parameter,
    probabilities,
    spread,
    values,
)


@final
@dataclass(frozen=True, eq=False)
class LogLaplace(Law):
    """The law of x where ln x is Laplace with median mu and mean absolute deviation b (natural logarithm).

    With y = ln x - mu, E[x^k] integrates e^(k mu) e^(k y - |y| / b) / (2 b).  Upwards it exists for k b < 1 only,
    downwards for -k b < 1 only; on an interval away from 0 and infinity it always does.
    """

    mu: Any
    b: Any
    parameters: ClassVar[tuple[str, ...]] = ("mu", "b")

    def __post_init__(self) -> None:
        self._set(mu=parameter("mu", self.mu), b=parameter("b", self.b, low=0.0))

    @property
    def log_mean(self) -> Values:
        return values(self.mu)

    @property
    def log_std(self) -> Values:
        return values(self.b * np.sqrt(2.0))

    def cdf(self, t: ArrayLike) -> Values:
        y = self._centred_log(t) / self.b
        tail = np.exp(-np.abs(y)) / 2
        return values(np.where(y < 0, tail, 1 - tail))

    def quantile(self, p: ArrayLike) -> Values:
        p = probabilities(p)
        with np.errstate(divide="ignore"):
            y = np.where(p < 0.5, np.log(2 * p), -np.log(2 * (1 - p)))
        return values(np.exp(self.mu + self.b * y))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        heavy = f"the tail exponent 1/b must exceed {abs(order)}, and b is too large for that"
        diverges(self, order, np.isinf(high) & ~np.isinf(low) & (order * np.asarray(self.b) >= 1), heavy)
        diverges(self, order, (low <= 0) & (high > 0) & (-order * np.asarray(self.b) >= 1), heavy)
        u, v = self._centred_log(low), self._centred_log(high)
        below = _exponential_integral(order + 1 / self.b, np.minimum(u, 0.0), np.minimum(v, 0.0))
        above = _exponential_integral(1 / self.b - order, np.minimum(-v, 0.0), np.minimum(-u, 0.0))
        with np.errstate(over="ignore"):
            return finite(self, order, np.asarray(np.exp(order * self.mu) * (below + above) / (2 * self.b)))

    @classmethod
    def fit(cls, x: Any) -> LogLaplace:
        """Return the law with the median of ln x and the mean distance from it."""
        nonzero, zeros = magnitudes(x, "fitting LogLaplace")
        logs = np.log(nonzero)
        mu = float(np.median(logs))
        b = spread("LogLaplace", float(np.abs(logs - mu).mean()), nonzero)
        return cls(mu, b, count=nonzero.size, zeros=zeros)

    def _centred_log(self, t: ArrayLike) -> Values:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(t, 0.0)) - self.mu)


def _exponential_integral(rate: Any, low: Values, high: Values) -> Values:
    """Return the integral of e^(rate y) from low to high <= 0; low may be -infinity if rate > 0.

    The formula has no pole at rate = 0.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        length = high - low
        # From the top end down: e^(rate high) * length * (1 - e^(-rate length)) / (rate length).
        bounded = np.exp(rate * high) * length * exprel(-rate * length)
        unbounded = np.exp(rate * high) / rate
        return np.where(high > low, np.where(np.isinf(low), unbounded, bounded), 0.0)
