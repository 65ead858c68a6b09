"""The exact error of rounding to a format, for any law; and Eq. 4, the paper's closed form for the lognormal law.

Rounding cuts the magnitudes into cells.  Over each cell the error is a polynomial in x and 1/x, so its mean needs only
the moments of order -1 to 2 on the cell's interval, which every law knows.  A scale s rounds x to Q(s x) / s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr

from ..errors import InvalidType, InvalidValue, sentence
from ..formats import FloatFormat, Format, Rounding
from ..formats.values import check_rounding, check_width
from ..laws import Law
from ..laws.law import Values, parameter, values
from .layers import Laws, over_axis, over_layers
from .scaling import resolve_scale

Criterion = Literal["relative", "squared"]
SomeFormat = TypeVar("SomeFormat", bound=Format)
LN2 = float(np.log(2.0))


def relative_error(law: Laws, format: Format, scale: ArrayLike = 1.0, rounding: Rounding = "nearest") -> Values:
    """Return E|Q(x) - x| / x (Eq. 3 of [chmiel2021]) for the format's real value set.

    A cell [u, v) rounded to c contributes E|c/x - 1|, split at x = c; stochastic rounding between p < q contributes
    2 E[(x - p)(q - x) / x] / (q - p).
    """
    return expectation(_relative, law, format, scale, rounding)


def squared_error(law: Laws, format: Format, scale: ArrayLike = 1.0, rounding: Rounding = "nearest") -> Values:
    """Return E(Q(x) - x)^2 for the format's real value set.

    A cell rounded to c contributes c^2 dM_0 - 2 c dM_1 + dM_2; stochastic rounding between p < q contributes
    (p + q) dM_1 - dM_2 - p q dM_0.
    """
    return expectation(_squared, law, format, scale, rounding)


def lognormal_relative_error(exponent: int, mantissa: int, sigma_log2: ArrayLike, *, printed: bool = False) -> Values:
    r"""Return the relative error of Eq. 2's quantizer for log2 x ~ N(0, sigma_log2^2), by Eq. 4 of [chmiel2021].

    With s = sigma_log2, E = 2^(exponent - 1) and z = (s ln 2 + E / s) / sqrt 2:

        (2 Phi(E/s) - 1) / (8 ln 2 * 2^mantissa)  +  2 (1 - Phi(E/s))  -  erfcx(z) exp(-E^2 / (2 s^2)) / 2

    This is the corrected form: the paper prints 2^mantissa - 1 where its own spacing gives 2^mantissa.  `printed=True`
    returns the form of the paper, which is infinite without mantissa bits.  The last term is the
    paper's, rewritten so that it neither over- nor underflows.
    """
    check_width("exponent bits", exponent, 1, 10)
    check_width("mantissa bits", mantissa, 0, 52)
    s = np.asarray(parameter("sigma_log2", sigma_log2, low=0.0))
    top = 2.0 ** (exponent - 1)
    levels = 2.0**mantissa - (1.0 if printed else 0.0)
    z = (s * LN2 + top / s) / np.sqrt(2.0)
    with np.errstate(divide="ignore"):
        in_range = (1 - 2 * ndtr(-top / s)) / np.float64(8 * LN2 * levels)
    return values(in_range + 2 * ndtr(-top / s) - erfcx(z) * np.exp(-((top / s) ** 2) / 2) / 2)


def float_formats(bits: int) -> list[FloatFormat]:
    """Return every split of `bits` bits into sign, 1 to 8 exponent bits, and mantissa.

    >>> [str(format) for format in float_formats(4)]
    ['1-1-2', '1-2-1', '1-3-0']
    """
    check_width("bits", bits, 2, 16)
    return [FloatFormat(exponent, bits - 1 - exponent) for exponent in range(1, min(bits, 9))]


def format_errors(
    law: Laws, formats: Sequence[Format], scale: str | ArrayLike = "mean", criterion: Criterion = "relative"
) -> Values:
    """Return the error of each format (rows) on each law (columns), at the scale that the rule gives."""
    if criterion not in ("relative", "squared"):
        raise InvalidValue(sentence("criterion", criterion, "'relative' or 'squared'"))
    if not isinstance(formats, Sequence) or not formats or not all(isinstance(one, Format) for one in formats):
        raise InvalidType(sentence("formats", formats, "a list of formats, such as [FloatFormat(4, 1)]"))
    error = relative_error if criterion == "relative" else squared_error
    return np.stack([error(law, format, resolve_scale(law, format, scale)) for format in formats])


@overload
def best_format(law: Law, bits: int, *, scale: str | ArrayLike = ..., criterion: Criterion = ...) -> FloatFormat: ...
@overload
def best_format(
    law: Law, bits: int, *, scale: str | ArrayLike = ..., criterion: Criterion = ..., candidates: Sequence[SomeFormat]
) -> SomeFormat: ...
@overload
def best_format(
    law: Sequence[Law], bits: int, *, scale: str | ArrayLike = ..., criterion: Criterion = ...
) -> list[FloatFormat]: ...
def best_format(
    law: Laws,
    bits: int,
    *,
    scale: str | ArrayLike = "mean",
    criterion: Criterion = "relative",
    candidates: Sequence[Format] | None = None,
) -> Format | list[Format] | list[FloatFormat]:
    """Return the split of `bits` bits into exponent and mantissa with the least expected error; a list for many laws.

    At most eight candidates are compared by their exact errors.

    Args:
        law: one law, or one per layer (a list, or a stacked law).
        bits: width of the format, sign included.
        scale: a rule of `theory.scale`, or a number; "mean" (the paper's) puts the mean of log2 x at 0.
        criterion: "relative" (the paper's) or "squared".
        candidates: formats to choose from instead of all splits.

    >>> from lograd.laws import LogNormal
    >>> str(best_format(LogNormal.from_log2(-20.0, 4.0), 6))
    '1-4-1'
    """
    formats: Sequence[Format] = float_formats(bits) if candidates is None else candidates
    if isinstance(formats, Sequence) and not formats:
        raise InvalidValue("best_format needs at least one candidate; got none.")
    errors = format_errors(law, formats, scale, criterion)
    best = np.argmin(errors, axis=0)
    return formats[int(best)] if best.ndim == 0 else [formats[index] for index in best]


def expectation(
    kernel: Callable[[Law, Values, Values, Rounding], Values],
    law: Laws,
    format: Format,
    scale: ArrayLike,
    rounding: Rounding,
) -> Values:
    """Return the mean of a kernel over the cells of a format, at a scale, for both signs alike.

    Args:
        kernel: gets a law, the edges and points of the cells, and how magnitudes are rounded.
    """
    if not isinstance(format, Format):
        raise InvalidType(
            sentence("format", format, "a FloatFormat, IntFormat or IdealFormat (a block has no fixed set of values)")
        )
    check_rounding(rounding)
    scales = np.asarray(parameter("scale", scale, low=0.0))
    sides = format.cells(rounding)

    def compute(one: Law, s: Values) -> Values:
        axes = len(np.broadcast_shapes(one.shape, s.shape))
        errors = [
            kernel(one, over_axis(cells.edges, axes) / s, over_axis(cells.points, axes) / s, rounding)
            for cells in sides
        ]
        return values(sum(errors) / len(errors))  # both signs are equally likely

    return over_layers(law, compute, scales)


def _relative(law: Law, edges: Values, points: Values, rounding: Rounding) -> Values:
    if rounding == "stochastic":
        p, q = points[:-1], points[1:]
        mass, mean = law.interval_moment(0, p, q), law.interval_moment(1, p, q)
        between = (2 / (q - p) * ((p + q) * mass - mean - p * q * _inverse(law, p, q, p))).sum(axis=0)
        return values(between + _outside(_relative, law, points))
    u, v = edges[:-1], edges[1:]
    split = np.clip(points, u, v)
    below = points * _inverse(law, u, split, points) - law.interval_moment(0, u, split)
    above = law.interval_moment(0, split, v) - points * _inverse(law, split, v, points)
    return np.asarray((below + above).sum(axis=0))


def _inverse(law: Law, low: Values, high: Values, needed: Values) -> Values:
    """Return E[1/x ; low < x <= high], or any number where its factor `needed` is 0, since it may diverge there."""
    off = needed == 0
    return law.interval_moment(-1, np.where(off, 1.0, low), np.where(off, 1.0, high))


def _outside(kernel: Callable[[Law, Values, Values, Rounding], Values], law: Law, points: Values) -> Values:
    """Return the error of magnitudes outside the format's values, which are rounded to the nearest end."""
    error = kernel(law, np.stack([points[-1], np.full_like(points[-1], np.inf)]), points[-1:], "nearest")
    if np.any(points[0] > 0):
        error = error + kernel(law, np.stack([np.zeros_like(points[0]), points[0]]), points[:1], "nearest")
    return error


def _squared(law: Law, edges: Values, points: Values, rounding: Rounding) -> Values:
    if rounding == "stochastic":
        p, q = points[:-1], points[1:]
        m0, m1, m2 = (law.interval_moment(order, p, q) for order in (0, 1, 2))
        between = ((p + q) * m1 - m2 - p * q * m0).sum(axis=0)
        return values(between + _outside(_squared, law, points))
    m0, m1, m2 = (law.interval_moment(order, edges[:-1], edges[1:]) for order in (0, 1, 2))
    return np.asarray((points**2 * m0 - 2 * points * m1 + m2).sum(axis=0))
