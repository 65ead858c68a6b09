"""The error of levels over a clipped interval, on all elements and on the large ones; its bound, and the best interval.

[kim2024] rounds a gradient to 2^bits - 1 levels over [-c, c], c = gamma max |g|, and clips what lies outside.
Its large gradients are the share `alpha` of the largest magnitudes.  Errors here are means of |Q(x) - x| over a set of
elements, in units of the largest magnitude, and with stochastic rounding means over the random numbers as well:

    E|Q(x) - x| = 2 (x - p)(q - x) / (q - p) between two levels p < q, and x - c beyond the last.

Exact zeros, which a law leaves out and counts (`law.zero_share`), are elements without error.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from lograd.errors import InvalidValue, sentence
from lograd.formats import Rounding
from lograd.formats.values import check_rounding, check_width
from lograd.laws import Law
from lograd.laws.law import Values, magnitudes, parameter, values
from lograd.theory.layers import Laws, over_axis, over_layers

ALPHA = 1e-3
"""The share of elements that [kim2024] calls large."""
_TOP = 1 - 1e-9
"""The quantile that stands for the largest magnitude of a law that has none."""
_GRID = np.unique(np.concatenate([np.geomspace(1e-3, 1.0, 121), np.linspace(0.05, 1.0, 191)]))
"""The gammas among which the best is looked for."""


@final
class IntervalErrors(NamedTuple):
    """The errors of one interval, in units of the largest magnitude; arrays where several were asked for."""

    gamma: Values
    clipped: Values
    """The share of all elements beyond the interval."""
    all: Values
    """The mean error of all elements."""
    large: Values
    """The mean error of the large ones."""
    bound: Values
    """The paper's bound on the error of the large ones."""


def interval_errors(
    law: Law, bits: int, gamma: ArrayLike, alpha: float = ALPHA, rounding: Rounding = "stochastic"
) -> IntervalErrors:
    """Return what clipping at gamma times the largest magnitude does to all elements, and to the large ones.

    >>> from lograd.laws import Exponential
    >>> found = interval_errors(Exponential(1.0), 4, [0.5, 1.0])
    >>> found.large.round(4).tolist(), found.all.round(4).tolist()
    ([0.0225, 0.0587], [0.023, 0.0419])
    """
    found = np.asarray(gamma, dtype=np.float64)
    return IntervalErrors(
        values(found), interval_clipped(law, found), interval_error(law, bits, found, 1.0, rounding),
        interval_error(law, bits, found, alpha, rounding), interval_bound(law, bits, found, alpha),
    )  # fmt: skip


def interval_error(
    law: Laws, bits: int, gamma: ArrayLike, share: float = 1.0, rounding: Rounding = "stochastic"
) -> Values:
    """Return the mean |Q(x) - x| of the largest `share` of all elements, in units of the largest magnitude."""
    check_width("bits", bits, 2, 8)
    check_rounding(rounding, ("stochastic", "nearest"))
    _check_share("share", share)

    def compute(one: Law, g: Values) -> Values:
        largest, elements = _largest(one), 1 - one.zero_share
        axes = len(np.broadcast_shapes(one.shape, g.shape))
        points = over_axis(np.arange(2 ** (bits - 1)), axes) * (g * largest / (2 ** (bits - 1) - 1))
        total = elements * _error_above(one, points, _magnitude_of(one, share), rounding)
        return values(total / (share * largest))

    return over_layers(law, compute, _gammas(gamma))


def interval_clipped(law: Laws, gamma: ArrayLike) -> Values:
    """Return the share of all elements with |g| > gamma max |g|: R of [kim2024]."""

    def compute(one: Law, g: Values) -> Values:
        end = np.asarray(g * _largest(one))
        return values((1 - one.zero_share) * one.interval_moment(0, end, np.full_like(end, np.inf)))

    return over_layers(law, compute, _gammas(gamma))


def interval_bound(law: Laws, bits: int, gamma: ArrayLike, alpha: float = ALPHA) -> Values:
    """Return the upper bound of [kim2024] on the mean error of the large elements, in units of the largest magnitude.

        U(gamma) = (1 - r) gamma / (2^bits - 2) + r (1 - gamma),        r = min(R, alpha) / alpha

    Elements inside are at most half a step from their level, those outside at most 1 - gamma from the last one.
    """
    check_width("bits", bits, 2, 8)
    _check_share("alpha", alpha)
    g = _gammas(gamma)
    r = np.minimum(interval_clipped(law, g), alpha) / alpha
    return values((1 - r) * g / (2**bits - 2) + r * np.maximum(1 - g, 0.0))


def optimal_interval(law: Laws, bits: int, alpha: float = ALPHA) -> Values:
    """Return the gamma of [kim2024]: where a share alpha / (2^bits - 1) of all elements is clipped.

    The bound is least there if R is taken to change slowly with gamma.

    >>> from lograd.laws import Exponential
    >>> round(float(optimal_interval(Exponential(1.0), 4)), 3)
    0.464
    """
    check_width("bits", bits, 2, 8)
    _check_share("alpha", alpha)
    share = alpha / (2**bits - 1)
    return over_layers(law, lambda one: values(np.minimum(_magnitude_of(one, share) / _largest(one), 1.0)))


def best_interval(law: Laws, bits: int, share: float = ALPHA, rounding: Rounding = "stochastic") -> Values:
    """Return the gamma with the least mean error of the largest `share` of all elements, to half a percent or so.

    For `share` 1 it is the interval of least mean error on all elements.
    """

    def compute(one: Law) -> Values:
        grid = over_axis(_GRID, len(one.shape))
        return values(_GRID[interval_error(one, bits, grid, share, rounding).argmin(axis=0)])

    return over_layers(law, compute)


def measured_interval_errors(
    x: Any, bits: int, gamma: float, alpha: float = ALPHA, rounding: Rounding = "stochastic"
) -> IntervalErrors:
    """Return the errors of an interval on the elements of an array or tensor, one by one.

    The large elements are the `alpha` largest, rounded to a whole number of them and one at least.  `interval_errors`
    gives the same from a histogram, to the width of its bins.
    """
    check_width("bits", bits, 2, 8)
    check_rounding(rounding, ("stochastic", "nearest"))
    _check_share("alpha", alpha)
    g = float(parameter("gamma", gamma, low=0.0))
    found, zeros = magnitudes(x, "an interval")
    count, largest = found.size + zeros, float(found.max())
    end = g * largest
    errors = _error(found, end / (2 ** (bits - 1) - 1), end, rounding) / largest
    few = min(max(round(alpha * count), 1), count)
    top = errors[np.argpartition(found, -few)[-few:]] if few < found.size else errors
    clipped = float((found > end).sum()) / count
    r = min(clipped * count / few, 1.0)
    bound = (1 - r) * g / (2**bits - 2) + r * max(1 - g, 0.0)
    return IntervalErrors(*map(values, (g, clipped, errors.sum() / count, top.sum() / few, bound)))


def _error(x: Values, step: float, end: float, rounding: Rounding) -> Values:
    """Return |Q(x) - x| of magnitudes, the mean over random numbers where rounding is stochastic."""
    part = np.minimum(x, end) / step
    part = part - np.floor(part)
    inside = 2 * part * (1 - part) if rounding == "stochastic" else np.minimum(part, 1 - part)
    return np.asarray(np.where(x > end, x - end, inside * step))


def _error_above(law: Law, points: Values, low: Values, rounding: Rounding) -> Values:
    """Return E[|Q(x) - x| ; x > low] for levels at `points`."""

    def moments(a: Values, b: Values) -> tuple[Values, Values]:
        a, b = np.maximum(a, low), np.maximum(b, low)
        return law.interval_moment(0, a, b), law.interval_moment(1, a, b)

    p, q, end = points[:-1], points[1:], points[-1]
    mass, mean = moments(end, np.full_like(end, np.inf))
    beyond = mean - end * mass
    if rounding == "nearest":
        middle = (p + q) / 2
        (m0, m1), (n0, n1) = moments(p, middle), moments(middle, q)
        return values((m1 - p * m0 + q * n0 - n1).sum(axis=0) + beyond)
    m0, m1 = moments(p, q)
    m2 = law.interval_moment(2, np.maximum(p, low), np.maximum(q, low))
    return values((2 * ((p + q) * m1 - m2 - p * q * m0) / (q - p)).sum(axis=0) + beyond)


def _largest(law: Law) -> Values:
    largest = np.asarray(law.maximum)
    return values(np.where(np.isfinite(largest), largest, law.quantile(_TOP)))


def _magnitude_of(law: Law, share: float) -> Values:
    """Return the magnitude that a share of all elements exceeds; 0 where fewer are not zero."""
    return law.quantile(np.maximum(1 - share / np.maximum(1 - law.zero_share, 1e-300), 0.0))


def _gammas(gamma: ArrayLike) -> Values:
    return np.asarray(parameter("gamma", gamma, low=0.0))


def _check_share(what: str, share: float) -> None:
    if not 0 < share <= 1:
        raise InvalidValue(sentence(what, share, "above 0 and at most 1"))
