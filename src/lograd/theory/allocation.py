"""Splits a budget of sparsity over layers.

The budget is a weighted sum: sum_l n_l S_l = S sum_l n_l, where n_l are the elements of a layer, or the operations that
they cost.  The same sparsity hurts a layer with narrow magnitudes far more than one with a wide spread, so the budget
is better spent where the cosine stays high, or where noise does the least harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from ..errors import InvalidType, InvalidValue, sentence
from ..laws import Law
from ..laws.law import Values, real, values
from .pruning import (
    check_sparsity,
    check_zero_share,
    nonzero_sparsity,
    sparsity,
    threshold,
    threshold_for_noise,
)

Method = Literal["uniform", "cosine", "noise"]


def allocate(
    laws: Sequence[Law],
    counts: ArrayLike,
    sparsity: float,
    method: Method = "cosine",
    *,
    costs: ArrayLike | None = None,
    zero_share: ArrayLike | None = None,
    max_sparsity: float = 1.0,
) -> Values:
    """Return one sparsity per layer, existing zeros included, that together keep the budget.

    "uniform" gives every layer the same: `sparsity`, or a little less where other layers have more zeros already.
    "cosine" finds the largest cosine that ALL layers can share within the budget, which maximises the smallest cosine.
    (The heterogeneous rule of [chmiel2021] takes a floor for each layer's cosine instead.)

    "noise" minimises sum_l c_l NSR_l, where NSR_l = (a M_1(a) - M_2(a)) / E[x^2] is the noise-to-signal ratio of the
    pruned gradient and c_l the cost of a unit of it.  As d NSR / da = M_1 / E[x^2] and dS / da = M_1 / a^2 have the
    same factor, the thresholds are known up to one number for all layers:

        a_l = sqrt(lambda n_l (1 - z_l) E_l[x^2] / c_l)       with z_l the share of existing zeros.

    Args:
        laws: the law of |g| in each layer.
        counts: the weight of each layer in the budget: its elements, or its operations.
        sparsity: the share of zeros over all elements.
        method: "uniform", "cosine" or "noise".
        costs: c_l of each layer, positive; for "noise" only.
        zero_share: the share of zeros that each layer has before pruning; by default that of the fitted data.
        max_sparsity: the most that any one layer is given, unless it has more zeros already.

    Existing zeros stay.  Where they alone exceed the budget, they are the result.

    >>> from lograd.laws import LogNormal
    >>> wide, narrow = allocate([LogNormal(0.0, 3.0), LogNormal(0.0, 1.0)], [1000, 1000], 0.8)
    >>> bool(wide > 0.8 > narrow)
    True
    """
    n, zeros = _checked_layers(laws, counts, zero_share)
    _check_method(method, costs)
    target = _checked_target(sparsity, max_sparsity)
    ceiling = np.maximum(zeros, max_sparsity)
    if n @ ceiling < target * n.sum():
        raise InvalidValue(
            f"sparsity {target:g} is out of reach with max_sparsity={max_sparsity:g}; ask for less, or raise it."
        )
    if n @ zeros >= target * n.sum():
        return zeros.copy()
    if method == "uniform":
        return _one_level(n, target * n.sum(), zeros, ceiling)
    if method == "noise":
        return _least_noise(laws, n, target, costs, zeros, ceiling)
    return _common_cosine(laws, n, target, zeros, ceiling)


def _checked_layers(laws: Sequence[Law], counts: ArrayLike, zero_share: ArrayLike | None) -> tuple[Values, Values]:
    """Return the weight and the share of existing zeros of each layer."""
    layers = len(laws) if isinstance(laws, Sequence) else 0
    if not layers or not all(isinstance(law, Law) for law in laws):
        raise InvalidType(sentence("laws", laws, "a list of laws, one per layer"))
    n = real("counts", counts)
    if n.shape != (layers,) or not np.all((n > 0) & np.isfinite(n)):
        raise InvalidValue(sentence("counts", counts, f"{layers} positive numbers, one per law"))
    zeros = check_zero_share([law.zero_share for law in laws] if zero_share is None else zero_share)
    if zeros.shape not in ((), (layers,)):
        raise InvalidValue(sentence("zero_share", zero_share, f"one number, or {layers}, one per law"))
    return n, np.broadcast_to(zeros, n.shape)


def _checked_target(sparsity: float, max_sparsity: float) -> float:
    for what, given in (("sparsity", sparsity), ("max_sparsity", max_sparsity)):
        if (number := real(what, given)).ndim or not 0 < number <= 1:
            raise InvalidValue(sentence(what, given, "one number, above 0 and at most 1"))
    return float(check_sparsity(sparsity))


def _check_method(method: Method, costs: object) -> None:
    if method not in get_args(Method):
        raise InvalidValue(sentence("method", method, "'uniform', 'cosine' or 'noise'"))
    if costs is not None and method != "noise":
        raise InvalidValue(f"costs= belongs to method='noise'; got method={method!r}.")


def _one_level(n: Values, total: float, zeros: Values, ceiling: Values) -> Values:
    """Return one sparsity for all layers, clipped to their limits, with n @ result = total as far as these allow."""

    def excess(level: float) -> float:
        return float(n @ np.clip(level, zeros, ceiling) - total)

    level = total / n.sum()
    if excess(level) != 0:
        level = 0.0 if excess(0.0) >= 0 else 1.0 if excess(1.0) <= 0 else float(brentq(excess, 0.0, 1.0, xtol=1e-15))
    return values(np.clip(level, zeros, ceiling))


def _sparsity_at_noise(laws: Sequence[Law], noise: ArrayLike, zeros: Values, ceiling: Values) -> Values:
    pruned = sparsity(laws, threshold_for_noise(laws, noise))
    return np.clip(zeros + (1 - zeros) * pruned, zeros, ceiling)


def _common_cosine(laws: Sequence[Law], n: Values, target: float, zeros: Values, ceiling: Values) -> Values:
    """Search for the noise-to-signal ratio that all layers share within the budget; sparsity grows with it.

    The ratio is searched and not the cosine, which for a wide law equals 1 to the last digit up to high sparsities.
    """

    def layers(log_noise: float) -> Values:
        return _sparsity_at_noise(laws, np.exp(log_noise), zeros, ceiling)

    return _within_budget(layers, n, target)


def _least_noise(
    laws: Sequence[Law], n: Values, target: float, costs: ArrayLike | None, zeros: Values, ceiling: Values
) -> Values:
    """Search for the multiplier lambda that all thresholds share."""
    c = real("costs", np.nan if costs is None else costs)
    if c.shape != n.shape or not np.all((c > 0) & np.isfinite(c)):
        raise InvalidValue(sentence("costs", costs, f"{len(laws)} positive numbers, one per law"))
    signal = np.array([float(law.moment(2)) for law in laws])
    # In logarithms, since the energy of a gradient may be below the range of float64.
    unit = 0.5 * (np.log(n / n.sum()) + np.log1p(-zeros) + np.log(signal) - np.log(c))

    def layers(log_factor: float) -> Values:
        return np.clip(zeros + (1 - zeros) * sparsity(laws, np.exp(log_factor + unit)), zeros, ceiling)

    return _within_budget(layers, n, target)


def _within_budget(layers: Callable[[float], Values], n: Values, target: float) -> Values:
    """Return layers(number) at the number where the budget is kept; sparsities grow with the number."""

    def excess(number: float) -> float:
        return float(n @ layers(number) / n.sum() - target)

    low, high = -1.0, 1.0
    while excess(low) > 0 and low > -700:
        low = max(2 * low, -700.0)
    while excess(high) < 0 and high < 700:
        high = min(2 * high, 700.0)
    return layers(float(brentq(excess, low, high, xtol=1e-13, rtol=1e-13)))


def thresholds_for(laws: Sequence[Law], sparsities: ArrayLike, zero_share: ArrayLike | None = None) -> Values:
    """Return the pruning threshold of each layer for an allocation; 0 where the existing zeros suffice."""
    zeros = [law.zero_share for law in laws] if zero_share is None else zero_share
    pruned = np.broadcast_to(nonzero_sparsity(sparsities, zeros), (len(laws),))
    active = [index for index in range(len(laws)) if pruned[index] > 0]
    result = np.zeros(len(laws))
    if active:
        result[active] = threshold([laws[index] for index in active], pruned[active])
    return result
