"""Fits of every family to a histogram instead of the data, since a profile keeps only the `Empirical` law.

Fits and distances take microseconds for any number of elements, and are possible when the tensor is long gone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import InvalidValue, sentence
from .bell import Exponential, HalfCauchy, HalfNormal
from .empirical import Empirical
from .goodness import FAMILIES, Fit
from .law import Law
from .loglaplace import LogLaplace
from .lognormal import LogNormal
from .uniform import Uniform


def _log_laplace(law: Empirical) -> LogLaplace:
    median = float(np.log(law.quantile(0.5)))
    centres = np.log((law.edges[1:] + law.edges[:-1]) / 2)
    return LogLaplace(median, float(law.shares @ np.abs(centres - median)))


_FITS: dict[type[Law], Callable[[Empirical], Law]] = {
    LogNormal: lambda law: LogNormal(float(law.log_mean), float(law.log_std)),
    LogLaplace: _log_laplace,
    HalfNormal: lambda law: HalfNormal(float(np.sqrt(law.moment(2)))),
    Exponential: lambda law: Exponential(float(law.moment(1))),
    HalfCauchy: lambda law: HalfCauchy(float(law.quantile(0.5))),
    Uniform: lambda law: Uniform(float(law.edges[0]), float(law.edges[-1])),
}


def fit_binned(family: type[Law], law: Empirical) -> Law:
    """Return the law of a family fitted to the data that a histogram has counted, by the estimator of `family.fit`.

    A magnitude is known up to its bin.  So a scale parameter is off by at most 1/16 of itself, and mu and sigma of a
    logarithm by at most ln(33/32) = 0.0308; for a smooth density by a hundredth of that.
    """
    if family not in _FITS:
        raise InvalidValue(sentence("family", family.__name__, "one of " + ", ".join(f.__name__ for f in FAMILIES)))
    if np.shape(law.counts)[-1] == 1:
        raise InvalidValue(f"cannot fit {family.__name__}: all nonzero magnitudes lie in one bin; use Empirical.")
    fitted = _FITS[family](law)
    fitted._set(count=int(law.count), zeros=int(law.zeros))
    return fitted


def ks_binned(law: Law, data: Empirical) -> float:
    """Return the largest gap between a law's cdf and that of the counted data at the edges of bins.

    The data's cdf is exact there.  Between two edges the gap of `ks_distance` can be larger by the share of that bin at
    most; for a smooth density it is not.
    """
    return float(np.max(np.abs(law.cdf(data.edges) - data.cdf(data.edges))))


def rank_binned(data: Empirical) -> list[Fit]:
    """Return all families fitted to a histogram, the best first, as `rank_laws` does for data."""
    return sorted((try_binned(family, data) for family in FAMILIES), key=lambda fit: (fit.law is None, fit.ks))


def try_binned(family: type[Law], data: Empirical) -> Fit:
    """Return the fit of one family with its distance, or with the reason why it cannot be fitted."""
    try:
        law = fit_binned(family, data)
    except InvalidValue as error:
        return Fit(family.__name__, None, 1.0, str(error))
    return Fit(family.__name__, law, ks_binned(law, data))
