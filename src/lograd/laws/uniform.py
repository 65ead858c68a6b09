"""The uniform law: magnitudes spread evenly over an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from ..errors import InvalidValue
from .bell import NEAR_ZERO
from .law import (
    Law,
    Order,
    Values,
    check_interval,
    diverges,
    finite,
    magnitudes,
    parameter,
    power_mean,
    probabilities,
    spread,
    values,
)


@final
@dataclass(frozen=True, eq=False)
class Uniform(Law):
    """The law with density 1 / (high - low) on [low, high], where 0 <= low < high."""

    low: Any
    high: Any
    parameters: ClassVar[tuple[str, ...]] = ("low", "high")

    def __post_init__(self) -> None:
        self._set(low=parameter("low", self.low, low=0.0, inclusive=True), high=parameter("high", self.high))
        if not np.all(np.asarray(self.high) > np.asarray(self.low)):
            raise InvalidValue(f"high must be above low; got low={self.low!r} and high={self.high!r}.")

    @property
    def maximum(self) -> Values:
        return values(self.high)

    @property
    def log_mean(self) -> Values:
        return values((xlogy(self.high, self.high) - xlogy(self.low, self.low)) / (self.high - self.low) - 1)

    @property
    def log_std(self) -> Values:
        # Var[ln x] = 1 - a b (ln(b/a) / (b - a))^2, which tends to 1 for a = 0.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.low * self.high * (np.log(self.high / np.asarray(self.low)) / (self.high - self.low)) ** 2
        return values(np.sqrt(np.maximum(1 - np.where(np.equal(self.low, 0), 0.0, ratio), 0.0)))

    def cdf(self, t: ArrayLike) -> Values:
        return values((np.clip(t, self.low, self.high) - self.low) / (self.high - self.low))

    def quantile(self, p: ArrayLike) -> Values:
        return values(self.low + probabilities(p) * (self.high - self.low))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        u, v = np.clip(low, self.low, self.high), np.clip(high, self.low, self.high)
        if order == -1:
            diverges(self, order, (u <= 0) & (v > 0), NEAR_ZERO)
        with np.errstate(invalid="ignore"):  # an empty interval at zero
            integral = np.where(v > u, (v - u) * power_mean(order, u, v), 0.0)
        return finite(self, order, integral / (self.high - self.low))

    @classmethod
    def fit(cls, x: Any) -> Uniform:
        """Return the law from the smallest to the largest magnitude."""
        nonzero, zeros = magnitudes(x, "fitting Uniform")
        low, high = float(nonzero.min()), float(nonzero.max())
        spread("Uniform", high - low, nonzero)
        return cls(low, high, count=nonzero.size, zeros=zeros)
