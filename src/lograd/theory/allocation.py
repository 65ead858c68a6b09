"""How to split a budget of sparsity over layers.

The budget counts elements: sum_l n_l S_l = S sum_l n_l.  The same sparsity hurts a layer with narrow magnitudes far
more than one with a wide spread, so the budget is better spent where the cosine stays high.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from ..errors import InvalidValue, sentence
from ..laws import Law
from ..laws.law import Values, values
from .pruning import check_sparsity, nonzero_sparsity, sparsity, threshold, threshold_for_cosine

Method = Literal["uniform", "floors", "cosine"]


def allocate(
    laws: Sequence[Law],
    counts: ArrayLike,
    sparsity: float,
    method: Method = "cosine",
    *,
    floors: Sequence[float | None] | None = None,
    zero_share: ArrayLike | None = None,
    max_sparsity: float = 1.0,
) -> Values:
    """One sparsity per layer, zeros before pruning included, that together keep the budget.

    "uniform" gives every layer `sparsity`.  "floors" is the heterogeneous rule of [chmiel2021]: a layer with a floor
    gives up sparsity until its cosine reaches the floor, and the layers whose floor is None make up for it.  (In the
    released code the count of zeros already produced stays 0; here it is kept.)  "cosine" is the optimum that needs no
    hand-set floors: the largest cosine that ALL layers can share within the budget, which maximises the smallest one.

    Args:
        laws: the law of |g| in each layer.
        counts: elements in each layer.
        sparsity: the share of zeros asked for over all elements.
        method: "uniform", "floors" or "cosine".
        floors: the smallest cosine of each layer, or None for a free layer; for "floors" only.
        zero_share: the share of exact zeros that each layer has anyway; by default what the laws were fitted to.
        max_sparsity: the most that any one layer is given, unless it has more zeros already.

    A layer that already has more zeros than its share keeps them.  Where that alone exceeds the budget, the result is
    the zeros that are there.  Where `max_sparsity` or the floors leave no layer to make up, "floors" stays below it.
    """
    n = np.asarray(counts, dtype=np.float64)
    if n.shape != (len(laws),) or not np.all(n > 0):
        raise InvalidValue(sentence("counts", counts, f"{len(laws)} positive numbers, one per law"))
    target = float(check_sparsity(sparsity))
    zeros = (
        np.array([law.zero_share for law in laws]) if zero_share is None else np.asarray(zero_share, dtype=np.float64)
    )
    zeros = np.broadcast_to(zeros, n.shape)
    if not np.all((zeros >= 0) & (zeros < 1)):
        raise InvalidValue(sentence("zero_share", zero_share, "at least 0 and below 1"))
    ceiling = np.maximum(zeros, max_sparsity)
    if n @ ceiling < target * n.sum():
        raise InvalidValue(
            f"sparsity {target:g} is out of reach with max_sparsity={max_sparsity:g}; ask for less, or raise it."
        )
    if n @ zeros >= target * n.sum():
        return zeros.copy()
    if method == "uniform":
        return values(np.clip(target, zeros, ceiling))
    if method == "floors":
        return _with_floors(laws, n, target, floors, zeros, ceiling)
    if method == "cosine":
        return _common_cosine(laws, n, target, zeros, ceiling)
    raise InvalidValue(sentence("method", method, "'uniform', 'floors' or 'cosine'"))


def _sparsity_at_cosine(laws: Sequence[Law], cosines: ArrayLike, zeros: Values, ceiling: Values) -> Values:
    pruned = sparsity(laws, threshold_for_cosine(laws, cosines))
    return np.clip(zeros + (1 - zeros) * pruned, zeros, ceiling)


def _common_cosine(laws: Sequence[Law], n: Values, target: float, zeros: Values, ceiling: Values) -> Values:
    """Bisection on one number, the noise-to-signal ratio that all layers share: sparsity grows with it."""

    def layers(log_noise: float) -> Values:
        return _sparsity_at_cosine(laws, 1 / np.sqrt(1 + np.exp(log_noise)), zeros, ceiling)

    def excess(log_noise: float) -> float:
        return float(n @ layers(log_noise) / n.sum() - target)

    low, high = -1.0, 1.0
    while excess(low) > 0 and low > -600:
        low *= 2
    while excess(high) < 0 and high < 600:
        high *= 2
    return layers(float(brentq(excess, low, high, xtol=1e-13, rtol=1e-13)))


def _with_floors(
    laws: Sequence[Law], n: Values, target: float, floors: Sequence[float | None] | None, zeros: Values, ceiling: Values
) -> Values:
    if floors is None or len(floors) != len(laws):
        raise InvalidValue(sentence("floors", floors, f"{len(laws)} entries, a cosine or None for each layer"))
    free = np.array([floor is None for floor in floors])
    result: Values = np.clip(target, zeros, ceiling)
    if not free.all():
        held = [law for law, is_free in zip(laws, free, strict=True) if not is_free]
        limits = np.array([floor for floor in floors if floor is not None], dtype=np.float64)
        result[~free] = np.minimum(result[~free], _sparsity_at_cosine(held, limits, zeros[~free], ceiling[~free]))
    if free.any():
        rest = (target * n.sum() - n[~free] @ result[~free]) / n[free].sum()
        result[free] = np.clip(rest, zeros[free], ceiling[free])
    return result


def thresholds_for(laws: Sequence[Law], sparsities: ArrayLike, zero_share: ArrayLike | None = None) -> Values:
    """The pruning threshold of each layer for an allocation; 0 where the zeros that are there suffice."""
    zeros = [law.zero_share for law in laws] if zero_share is None else zero_share
    pruned = np.broadcast_to(nonzero_sparsity(sparsities, zeros), (len(laws),))
    active = [index for index in range(len(laws)) if pruned[index] > 0]
    result = np.zeros(len(laws))
    if active:
        result[active] = threshold([laws[index] for index in active], pruned[active])
    return result
