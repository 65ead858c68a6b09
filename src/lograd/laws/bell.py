"""Laws of the magnitudes of bell-shaped gradients: half-normal, exponential (of a Laplace), half-Cauchy.

Earlier methods assumed them.  Their density at zero is positive, so E[1/x ; x <= t] does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, erfinv, exp1, gammainc, gammaincc, hyp2f1

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
    real,
    values,
)

NEAR_ZERO = "its density at zero is positive, so 1/x has no mean there"
HEAVY_TAIL = "its tail falls as 1/x^2, so the integral grows without bound"


@dataclass(frozen=True, eq=False)
class ScaleLaw(Law):
    """Base class of laws with one parameter, by which all magnitudes are scaled."""

    scale: Any
    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    def __post_init__(self) -> None:
        self._set(scale=parameter("scale", self.scale, low=0.0))


@final
@dataclass(frozen=True, eq=False)
class HalfNormal(ScaleLaw):
    """The law of x = |g| for a normal g with mean 0 and standard deviation `scale`.

    With z = x^2 / (2 scale^2): cdf erf(sqrt z), and the moments are incomplete gamma functions of z.
    """

    @property
    def log_mean(self) -> Values:
        return values(np.log(self.scale) - (np.euler_gamma + np.log(2.0)) / 2)

    @property
    def log_std(self) -> Values:
        return values(np.broadcast_to(np.pi / np.sqrt(8.0), self.shape))

    def cdf(self, t: ArrayLike) -> Values:
        return values(erf(np.maximum(real("t", t), 0.0) / self.scale / np.sqrt(2.0)))

    def quantile(self, p: ArrayLike) -> Values:
        return values(self.scale * np.sqrt(2.0) * erfinv(probabilities(p)))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        u, v = (low / self.scale) ** 2 / 2, (high / self.scale) ** 2 / 2
        if order == -1:
            diverges(self, order, (low <= 0) & (high > 0), NEAR_ZERO)
            return values(_exp1_between(u, v) / (self.scale * np.sqrt(2 * np.pi)))
        weight = {0: 1.0, 1: self.scale * np.sqrt(2 / np.pi), 2: self.scale**2}[order]
        return finite(self, order, np.asarray(weight * _gamma_between((order + 1) / 2, u, v)))

    @classmethod
    def fit(cls, x: Any) -> HalfNormal:
        nonzero, zeros = magnitudes(x, "fitting HalfNormal")
        return cls(_root_mean_square(nonzero), count=nonzero.size, zeros=zeros)


@final
@dataclass(frozen=True, eq=False)
class Exponential(ScaleLaw):
    """The law of x = |g| for a Laplace g: density exp(-x / scale) / scale."""

    @property
    def log_mean(self) -> Values:
        return values(np.log(self.scale) - np.euler_gamma)

    @property
    def log_std(self) -> Values:
        return values(np.broadcast_to(np.pi / np.sqrt(6.0), self.shape))

    def cdf(self, t: ArrayLike) -> Values:
        return values(-np.expm1(-np.maximum(real("t", t), 0.0) / self.scale))

    def quantile(self, p: ArrayLike) -> Values:
        with np.errstate(divide="ignore"):
            return values(-self.scale * np.log1p(-probabilities(p)))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        u, v = low / self.scale, high / self.scale
        if order == -1:
            diverges(self, order, (low <= 0) & (high > 0), NEAR_ZERO)
            return values(_exp1_between(u, v) / self.scale)
        weight = {0: 1.0, 1: self.scale, 2: 2 * self.scale**2}[order]
        return finite(self, order, np.asarray(weight * _gamma_between(order + 1.0, u, v)))

    @classmethod
    def fit(cls, x: Any) -> Exponential:
        nonzero, zeros = magnitudes(x, "fitting Exponential")
        return cls(float(nonzero.mean()), count=nonzero.size, zeros=zeros)


@final
@dataclass(frozen=True, eq=False)
class HalfCauchy(ScaleLaw):
    """The law of x = |g| for a Cauchy g: cdf (2 / pi) atan(x / scale).  Mean and variance do not exist."""

    @property
    def log_mean(self) -> Values:
        return values(np.log(self.scale))

    @property
    def log_std(self) -> Values:
        return values(np.broadcast_to(np.pi / 2, self.shape))

    def cdf(self, t: ArrayLike) -> Values:
        return values(np.arctan(np.maximum(real("t", t), 0.0) / self.scale) * (2 / np.pi))

    def quantile(self, p: ArrayLike) -> Values:
        p = probabilities(p)
        with np.errstate(divide="ignore"):
            upper = 1 / np.tan(np.pi / 2 * (1 - p))  # keeps its digits near p = 1
        return values(self.scale * np.where(p < 0.5, np.tan(np.pi / 2 * p), upper))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        u, v = low / self.scale, high / self.scale
        if order == -1:
            diverges(self, order, (low <= 0) & (high > 0), NEAR_ZERO)
            with np.errstate(divide="ignore", invalid="ignore"):
                value = (np.log1p(u**-2.0) - np.log1p(v**-2.0)) / (np.pi * self.scale)
            return values(np.where(high > low, value, 0.0))
        if order == 0:
            with np.errstate(divide="ignore", invalid="ignore"):
                angle = np.where(np.isinf(v), np.arctan2(1.0, u), np.arctan2(v - u, 1 + u * v))
            return values(np.where(np.isinf(u), 0.0, angle) * (2 / np.pi))
        diverges(self, order, np.isinf(high) & ~np.isinf(low), HEAVY_TAIL)
        u, v = (np.where(np.isinf(low), 0.0, end) for end in (u, v))  # nothing lies beyond infinity
        if order == 1:
            value = 2 * (_log_hypot(v) - _log_hypot(u)) / np.pi
        else:
            value = (_x_minus_arctan(v) - _x_minus_arctan(u)) * (2 / np.pi)
        return finite(self, order, np.asarray(self.scale**order * value))

    @classmethod
    def fit(cls, x: Any) -> HalfCauchy:
        """Return the law whose scale is the median, as it is for this law."""
        nonzero, zeros = magnitudes(x, "fitting HalfCauchy")
        return cls(float(np.median(nonzero)), count=nonzero.size, zeros=zeros)


def _root_mean_square(x: Values) -> float:
    largest = float(x.max())  # the unit in which squares neither overflow nor vanish
    return largest * float(np.sqrt(np.mean((x / largest) ** 2)))


def _gamma_between(a: float, u: Values, v: Values) -> Values:
    """Return P(a, v) - P(a, u) of the regularised incomplete gamma function, from the side where it is small."""
    return np.asarray(np.where(u > a, gammaincc(a, u) - gammaincc(a, v), gammainc(a, v) - gammainc(a, u)))


def _exp1_between(u: Values, v: Values) -> Values:
    """Return the integral of exp(-z) / z from u to v."""
    return values(np.where(v > u, exp1(np.maximum(u, 5e-324)) - exp1(np.maximum(v, 5e-324)), 0.0))


def _log_hypot(x: Values) -> Values:
    """Return ln sqrt(1 + x^2), without the square where it would overflow."""
    return np.where(x < 1, np.log1p(np.minimum(x, 1.0) ** 2) / 2, np.log(np.hypot(1.0, x)))


def _x_minus_arctan(x: Values) -> Values:
    with np.errstate(over="ignore"):
        small = x**3 / 3 * hyp2f1(1.0, 1.5, 2.5, -(np.minimum(x, 1.0) ** 2))
    return np.where(x < 0.5, small, x - np.arctan(x))
