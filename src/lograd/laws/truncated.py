"""Truncated laws, which end at a limit as real gradients do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast, final

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidType, InvalidValue, sentence
from .law import Law, Order, Values, check_interval, magnitudes, parameter, probabilities, values


@final
@dataclass(frozen=True, eq=False)
class Truncated(Law):
    """The law of x on the condition that x <= `limit`.

    The released code of [chmiel2021] cuts the lognormal at the observed 1 - 1/300 quantile before it computes cosines;
    at sigma 2 and 90 % sparsity that moves the cosine from 0.98 to 0.86.  Moments exist if those of `law` near zero do,
    so a truncated half-Cauchy law has a mean.
    """

    law: Law
    limit: Any
    parameters: ClassVar[tuple[str, ...]] = ("limit",)

    def __post_init__(self) -> None:
        if not isinstance(self.law, Law):
            raise InvalidType(sentence("law of a Truncated", self.law, "a Law such as LogNormal(0, 2)"))
        self._set(limit=parameter("limit", self.limit, low=0.0))
        if not np.all(self.law.cdf(self.limit) > 0):
            raise InvalidValue(f"limit must leave something of {self.law}; got {self.limit!r}, below all of it.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Truncated) and self.law == other.law and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.law, super().__hash__()))

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.law.shape, np.shape(self.limit))

    @property
    def family(self) -> Any:
        """The class, followed by the family of the law that is cut."""
        return (Truncated, *self.law.family)

    @property
    def maximum(self) -> Values:
        return values(np.minimum(self.law.maximum, self.limit))

    @property
    def log_mean(self) -> Values:
        return self._log_moments()[0]

    @property
    def log_std(self) -> Values:
        return self._log_moments()[1]

    def cdf(self, t: ArrayLike) -> Values:
        return values(self.law.cdf(np.minimum(t, self.limit)) / self.law.cdf(self.limit))

    def quantile(self, p: ArrayLike) -> Values:
        return self.law.quantile(probabilities(p) * self.law.cdf(self.limit))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        inside = self.law.interval_moment(order, np.minimum(low, self.limit), np.minimum(high, self.limit))
        return values(inside / self.law.cdf(self.limit))

    @classmethod
    def fit(cls, x: Any) -> Truncated:
        """Raise InvalidType: a law must be fitted first, as in `Truncated.at_quantile(LogNormal.fit(x), x)`."""
        raise InvalidType("Truncated has no family of its own to fit; use Truncated.at_quantile(LogNormal.fit(x), x).")

    @classmethod
    def at_quantile(cls, law: Law, x: Any, share: float = 1 - 1 / 300) -> Truncated:
        """Return `law` cut at the quantile `share` of the data."""
        nonzero, zeros = magnitudes(x, "truncating a law")
        return cls(law, float(np.quantile(nonzero, share)), count=nonzero.size, zeros=zeros)

    @classmethod
    def stack(cls, laws: Any) -> Truncated:
        inner = [truncated.law for truncated in laws]
        columns = {name: np.array([getattr(law, name) for law in laws]) for name in ("limit", "count", "zeros")}
        return cls(type(inner[0]).stack(inner), **cast(Any, columns))

    def _log_moments(self) -> tuple[Values, Values]:
        """Return the mean and the standard deviation of ln x, by the midpoint rule over the quantiles."""
        p = (np.arange(4096) + 0.5).reshape((-1,) + (1,) * len(self.shape)) / 4096
        logs = np.log(self.quantile(p))
        return values(logs.mean(axis=0)), values(logs.std(axis=0))

    def __str__(self) -> str:
        return f"Truncated({self.law}, limit={self.limit})"
