"""The scale at which rounding does the least harm: where large magnitudes are cut off, the rest has finer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidValue, nearest_name, sentence
from ..formats import Format, Rounding
from ..laws import Law
from ..laws.law import Values, values
from .error import expectation, squared_error
from .layers import Laws, over_layers

ScaleCriterion = Literal["squared", "cosine"]
CRITERIA = get_args(ScaleCriterion)

_OCTAVES, _COARSE, _FINE = 12, 4, 32
"""Clips down to 2^-12 of the largest magnitude are tried, four in an octave; then thirty-two around the best."""
_TOP = 1 - 1e-9
"""The quantile that stands for the largest magnitude of a law that has none."""


def rounding_cosine(law: Laws, format: Format, scale: ArrayLike = 1.0, rounding: Rounding = "nearest") -> Values:
    """Return the cosine of x and Q(x): E[x Q] / sqrt(E[x^2] E[Q^2]).

    A cell rounded to c contributes c dM_1 to E[x Q]; stochastic rounding inside the format's range contributes dM_2.
    """
    cross = expectation(_cross, law, format, scale, rounding)
    signal = over_layers(law, lambda one: one.interval_moment(2, np.zeros(one.shape), np.full(one.shape, np.inf)))
    energy = squared_error(law, format, scale, rounding) + 2 * cross - signal
    return values(np.divide(cross, np.sqrt(signal * energy), out=np.zeros(np.shape(cross * energy)), where=energy > 0))


def best_scale(
    law: Laws, format: Format, criterion: ScaleCriterion = "squared", rounding: Rounding = "stochastic"
) -> Values:
    """Return the scale s with which Q(s x) / s has the least squared error, or the largest cosine with x.

    Scales that cut off large magnitudes are tried besides the one that keeps them all.  By the cosine this is
    direction-sensitive clipping [zhu2020], with the cosine from the law and not from the tensor.

    >>> from lograd.formats import IntFormat
    >>> from lograd.laws import HalfNormal
    >>> format = IntFormat(4, symmetric=True)
    >>> round(float(format.max / best_scale(HalfNormal(1.0), format, rounding="nearest")), 1)  # the largest value kept
    2.5

    @inproceedings{zhu2020,
      title     = {Towards Unified INT8 Training for Convolutional Neural Network},
      author    = {Zhu, Feng and Gong, Ruihao and Yu, Fengwei and Liu, Xianglong and Wang, Yanfei and Li, Zhelong and
                   Yang, Xiuqi and Yan, Junjie},
      booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
      year      = {2020}
    }
    """
    if criterion not in CRITERIA:
        raise InvalidValue(
            sentence("criterion", criterion, "'squared' or 'cosine'") + nearest_name(str(criterion), CRITERIA)
        )
    harm: Callable[[Values], Values] = (
        (lambda s: squared_error(law, format, s, rounding))
        if criterion == "squared"
        else (lambda s: values(-rounding_cosine(law, format, s, rounding)))
    )
    whole = over_layers(law, lambda one: format.max / _largest(one))
    at_once = isinstance(law, Law)  # a list of laws takes one scale for each at a time
    coarse = _least(harm, whole, np.arange(_OCTAVES * _COARSE + 1) / _COARSE, at_once)
    around = np.arange(-_FINE // _COARSE, _FINE // _COARSE + 1) / _FINE
    return np.maximum(_least(harm, coarse, around, at_once), whole)


def _least(harm: Callable[[Values], Values], start: Values, octaves: Values, at_once: bool) -> Values:
    """Return the best of some scales around `start`, for each layer."""
    scales = np.stack([start * 2.0**octave for octave in octaves])
    harms = harm(scales) if at_once else np.stack([harm(row) for row in scales])
    return np.asarray(np.take_along_axis(scales, harms.argmin(axis=0)[None], axis=0)[0])


def _largest(law: Law) -> Values:
    largest = np.asarray(law.maximum)
    return values(np.where(np.isfinite(largest), largest, law.quantile(_TOP)))


def _cross(law: Law, edges: Values, points: Values, rounding: Rounding) -> Values:
    if rounding == "stochastic":
        inside = law.interval_moment(2, points[0], points[-1])
        beyond = points[-1] * law.interval_moment(1, points[-1], np.full_like(points[-1], np.inf))
        below = points[0] * law.interval_moment(1, np.zeros_like(points[0]), points[0])
        return values(inside + beyond + below)
    return values((points * law.interval_moment(1, edges[:-1], edges[1:])).sum(axis=0))
