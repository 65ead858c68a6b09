"""The factor that puts a gradient into a format's range, from the law alone.

Relative error and cosine want opposite things.  Relative error weighs all elements alike and is smallest with the
middle of the magnitudes in the middle of the range.  Cosine depends on the few largest elements and wants them inside.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..formats import Format
from ..laws import Law
from ..laws.law import Values, parameter, values
from .layers import Laws, over_layers

RULES = ("mean", "mean-3", "expected_max", "max", "quantile(Q)")


def scale(
    law: Laws,
    format: Format,
    rule: str = "mean",
    *,
    count: ArrayLike | None = None,
    maximum: ArrayLike | None = None,
) -> Values:
    """Return the factor s with which a gradient is rounded as Q(s g) / s.

    Args:
        law: the law of |g|, or one per layer.
        format: the format, whose largest value is the target of the last three rules.
        rule: "mean" puts the mean of log2|g| at 0, the middle of Eq. 2's range and, with the default bias, near that of
            a float format; "mean-3" three octaves lower, as the released code of [chmiel2021] does, so that fewer of
            the large elements saturate; "expected_max" puts the largest of `count` elements that the law predicts at
            the top of the range; "max" puts `maximum` there; "quantile(0.999)" that quantile.
        count: elements of the tensor, for "expected_max"; by default the number that the law was fitted to.
        maximum: the largest magnitude, for "max"; by default that of the law, if it has one.

    >>> from lograd.formats import IntFormat
    >>> from lograd.laws import Uniform
    >>> float(scale(Uniform(0.0, 3.5), IntFormat(4), "max"))
    2.0
    """
    if not isinstance(format, Format):
        raise InvalidType(sentence("format", format, "a FloatFormat, IntFormat or IdealFormat"))
    quantile = re.fullmatch(r"quantile\((\d*\.?\d+(e-?\d+)?)\)", str(rule))
    if quantile:
        share = float(quantile[1])
        if not 0 < share < 1:
            raise InvalidValue(sentence("the share of scale rule 'quantile(Q)'", share, "above 0 and below 1"))
        return over_layers(law, lambda one: format.max / one.quantile(share))
    if rule in ("mean", "mean-3"):
        octaves = 3.0 if rule == "mean-3" else 0.0
        return over_layers(law, lambda one: np.exp(-one.log_mean) * 2.0**-octaves)
    if rule == "expected_max":
        elements = _counts(law) if count is None else parameter("count", count, low=0.0)
        if not np.all(np.asarray(elements) > 0):
            raise InvalidValue(
                "scale rule 'expected_max' needs count=, the number of elements: this law was not fitted."
            )
        return over_layers(law, lambda one, n: format.max / one.expected_max(n), elements)
    if rule == "max":
        largest = (
            over_layers(law, lambda one: one.maximum) if maximum is None else parameter("maximum", maximum, low=0.0)
        )
        if not np.all(np.isfinite(largest)):
            raise InvalidValue("scale rule 'max' needs maximum=, the largest magnitude: this law has no largest value.")
        return values(format.max / largest)
    raise InvalidValue(sentence("scale rule", rule, "one of " + ", ".join(RULES)) + nearest_name(str(rule), RULES))


def resolve_scale(law: Laws, format: Format, rule: str | ArrayLike) -> ArrayLike:
    """Return a number as it is, and the number that `scale` gives for a rule."""
    return scale(law, format, rule) if isinstance(rule, str) else rule


def _counts(law: Laws) -> ArrayLike:
    return law.count if isinstance(law, Law) else [one.count for one in law]
