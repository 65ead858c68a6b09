"""How well a law describes data: Kolmogorov-Smirnov distance, Q-Q data, and a ranking of all laws."""

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


def ks_distance(law: Law, x: Any) -> float:
    """The largest gap between the law's cdf and that of the nonzero magnitudes of x, 0 (perfect) to 1.

    The distance, not a p-value: with millions of elements any law is rejected, and what matters is by how much.
    """
    check_law(law)
    ordered = np.sort(magnitudes(x, "ks_distance")[0])
    cdf = law.cdf(ordered)
    steps = np.arange(ordered.size + 1) / ordered.size
    return float(max(np.max(steps[1:] - cdf), np.max(cdf - steps[:-1])))


@dataclass(frozen=True, eq=False)
class QQ:
    """Quantiles of a law against those of the data, at the same probabilities; equal laws lie on the diagonal."""

    probabilities: Values
    law: Values
    data: Values


def qq(law: Law, x: Any, points: int = 199) -> QQ:
    """Q-Q data at `points` evenly spaced probabilities, ends excluded."""
    check_law(law)
    if isinstance(points, bool) or not hasattr(points, "__index__") or not 1 <= points <= MOST_POINTS:
        raise InvalidValue(sentence("points", points, f"a whole number from 1 to {MOST_POINTS:,}"))
    p = np.arange(1, points + 1) / (points + 1)
    return QQ(p, law.quantile(p), np.quantile(magnitudes(x, "qq")[0], p))


@dataclass(frozen=True, eq=False)
class Fit:
    """One family on one tensor; `law` is None and `reason` says why where it could not be fitted."""

    family: str
    law: Law | None
    ks: float
    reason: str = ""


def rank_laws(x: Any, families: tuple[type[Law], ...] = FAMILIES) -> list[Fit]:
    """All families fitted to the nonzero magnitudes of x, the best first by Kolmogorov-Smirnov distance."""
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
