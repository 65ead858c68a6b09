"""Goodness of fit: Kolmogorov-Smirnov distance, Q-Q data, and a ranking of all laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidType, InvalidValue, sentence
from .bell import Exponential, HalfCauchy, HalfNormal
from .law import Law, Values, check_law, magnitudes
from .loglaplace import LogLaplace
from .lognormal import LogNormal
from .uniform import Uniform

FAMILIES: tuple[type[Law], ...] = (LogNormal, LogLaplace, HalfNormal, Exponential, HalfCauchy, Uniform)
"""The families that `rank_laws` compares; Empirical is left out, as it fits its own data by construction."""
MOST_POINTS = 10**7
"""The most points of `qq`."""


def ks_distance(law: Law, x: Any) -> float:
    """Return the largest gap between the law's cdf and that of the nonzero magnitudes of x, from 0 (perfect) to 1.

    It is a distance and not a p-value: with millions of elements a test rejects any law, so only the size matters.

    >>> from lograd.laws import LogNormal
    >>> law = LogNormal(0.0, 2.0)
    >>> ks_distance(law, law.sample(10_000)) < 0.02
    True
    """
    check_law(law)
    ordered = np.sort(magnitudes(x, "ks_distance")[0])
    cdf = law.cdf(ordered)
    steps = np.arange(ordered.size + 1) / ordered.size
    return float(max(np.max(steps[1:] - cdf), np.max(cdf - steps[:-1])))


@dataclass(frozen=True, eq=False)
class QQ:
    """Quantiles of a law and of data at the same probabilities; for a perfect fit both are equal."""

    probabilities: Values
    law: Values
    data: Values


def qq(law: Law, x: Any, points: int = 199) -> QQ:
    """Return Q-Q data at `points` evenly spaced probabilities between 0 and 1."""
    check_law(law)
    if isinstance(points, bool) or not hasattr(points, "__index__") or not 1 <= points <= MOST_POINTS:
        raise InvalidValue(sentence("points", points, f"a whole number from 1 to {MOST_POINTS:,}"))
    p = np.arange(1, points + 1) / (points + 1)
    return QQ(p, law.quantile(p), np.quantile(magnitudes(x, "qq")[0], p))


@dataclass(frozen=True, eq=False)
class Fit:
    """The fit of one family to one tensor; where it is not possible, `law` is None and `reason` says why."""

    family: str
    law: Law | None
    ks: float
    reason: str = ""


def rank_laws(x: Any, families: tuple[type[Law], ...] = FAMILIES) -> list[Fit]:
    """Return all families fitted to the nonzero magnitudes of x, the best first by Kolmogorov-Smirnov distance."""
    chosen = tuple(families) if isinstance(families, tuple | list) else ()
    if not chosen or not all(isinstance(family, type) and issubclass(family, Law) for family in chosen):
        raise InvalidType(sentence("families", families, "laws such as (LogNormal, HalfNormal)"))
    nonzero, _ = magnitudes(x, "rank_laws")
    return sorted((_try(family, nonzero) for family in chosen), key=lambda fit: (fit.law is None, fit.ks))


def _try(family: type[Law], nonzero: Values) -> Fit:
    try:
        law = family.fit(nonzero)
    except InvalidValue as error:
        return Fit(family.__name__, None, 1.0, str(error))
    return Fit(family.__name__, law, ks_distance(law, nonzero))
