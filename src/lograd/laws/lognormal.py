"""The lognormal law, which neural gradients nearly follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtr, ndtri

from .law import (
    Law,
    Order,
    Values,
    check_interval,
    elements,
    finite,
    magnitudes,
    parameter,
    probabilities,
    real,
    spread,
    values,
)

LN2 = float(np.log(2.0))


@final
@dataclass(frozen=True, eq=False)
class LogNormal(Law):
    r"""The law of x where ln x is normal with mean mu and standard deviation sigma, both in NATURAL log.

        M_k(t) = exp(k mu + k^2 sigma^2 / 2) Phi((ln t - mu) / sigma - k sigma)

    The papers' format tables give the standard deviation of log2 x instead, which is `sigma_log2` = sigma / ln 2 here;
    `LogNormal.from_log2` builds the law from it.

    >>> LogNormal.from_log2(0.0, 3.0).sigma
    2.0794415416798357

    @inproceedings{chmiel2021,
      title     = {Neural gradients are near-lognormal: improved quantized and sparse training},
      author    = {Chmiel, Brian and Ben-Uri, Liad and Shkolnik, Moran and Hoffer, Elad and Banner, Ron and
                   Soudry, Daniel},
      booktitle = {International Conference on Learning Representations},
      year      = {2021}
    }
    """

    mu: Any
    sigma: Any
    parameters: ClassVar[tuple[str, ...]] = ("mu", "sigma")

    def __post_init__(self) -> None:
        self._set(mu=parameter("mu", self.mu), sigma=parameter("sigma", self.sigma, low=0.0))

    @classmethod
    def from_log2(cls, mu_log2: ArrayLike, sigma_log2: ArrayLike) -> LogNormal:
        """Return the law for which log2 x has this mean and standard deviation."""
        return cls(
            parameter("mu_log2", mu_log2) * LN2,
            parameter("sigma_log2", sigma_log2, low=0.0) * LN2,
        )

    @property
    def mu_log2(self) -> Any:
        """The mean of log2 x."""
        return self.mu / LN2

    @property
    def sigma_log2(self) -> Any:
        """The standard deviation of log2 x."""
        return self.sigma / LN2

    @property
    def log_mean(self) -> Values:
        return values(self.mu)

    @property
    def log_std(self) -> Values:
        return values(self.sigma)

    def cdf(self, t: ArrayLike) -> Values:
        return values(ndtr(self._z(t)))

    def quantile(self, p: ArrayLike) -> Values:
        return values(np.exp(self.mu + self.sigma * ndtri(probabilities(p))))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        shift = order * self.sigma
        log_mass = _log_ndtr_between(self._z(low) - shift, self._z(high) - shift)
        with np.errstate(over="ignore"):
            return finite(self, order, np.asarray(np.exp(order * self.mu + shift**2 / 2 + log_mass)))

    def partial_moment(self, order: Order, t: ArrayLike) -> Values:
        _, t = check_interval(order, 0.0, t)
        shift = order * self.sigma
        with np.errstate(over="ignore"):
            return finite(self, order, np.exp(order * self.mu + shift**2 / 2 + log_ndtr(self._z(t) - shift)))

    def expected_max(self, count: ArrayLike) -> Values:
        """Return exp(mu + sigma sqrt(2 ln n)), the asymptote of the largest of n = `count` elements.

        Its logarithm is an upper bound of the expected logarithm.
        """
        n = elements(count)
        return values(np.exp(self.mu + self.sigma * np.sqrt(2 * np.log(n))))

    @classmethod
    def fit(cls, x: Any) -> LogNormal:
        nonzero, zeros = magnitudes(x, "fitting LogNormal")
        logs = np.log(nonzero)
        sigma = spread("LogNormal", float(logs.std()) if np.ptp(logs) > 0 else 0.0, nonzero)
        return cls(float(logs.mean()), sigma, count=nonzero.size, zeros=zeros)

    def _z(self, t: ArrayLike) -> Values:
        with np.errstate(divide="ignore"):
            return np.asarray((np.log(np.maximum(real("t", t), 0.0)) - self.mu) / self.sigma)


def _log_ndtr_between(a: Values, b: Values) -> Values:
    """Return ln(Phi(b) - Phi(a)) for a <= b, mirrored into the left tail, where Phi keeps its digits."""
    right = a > 0
    a, b = np.where(right, -b, a), np.where(right, -a, b)
    upper, lower = log_ndtr(b), log_ndtr(a)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isneginf(upper), -np.inf, upper + np.log1p(-np.exp(lower - upper)))
