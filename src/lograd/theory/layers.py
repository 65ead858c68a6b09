"""Lists of laws: stacks the laws of each family into one law with array parameters, for which the theory is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidType, InvalidValue, sentence
from ..laws import Law
from ..laws.law import Values, real

Laws = Law | Sequence[Law]


def over_layers(laws: Laws, compute: Callable[..., Values], *arguments: ArrayLike) -> Values:
    """Return compute(law, *arguments); for a list of laws an entry for each, with one vectorised call per family."""
    if isinstance(laws, Law):
        return compute(laws, *arguments)
    if not isinstance(laws, Sequence) or not all(issubclass(kind, Law) for kind in set(map(type, laws))):
        raise InvalidType(sentence("law", laws, "a Law such as LogNormal(0, 2), or a list of them, one per layer"))
    families: dict[tuple[type[Law], ...], list[int]] = defaultdict(list)
    for index, law in enumerate(laws):
        families[law.family].append(index)
    if any(laws[index].shape for indices in families.values() for index in indices[:1]):
        raise InvalidType("a list of laws must hold one law per layer; got one that is a stack itself.")
    columns = []
    for argument in arguments:
        array = real("a number for each law", argument)
        if array.shape not in ((), (1,), (len(laws),)):
            raise InvalidValue(
                f"{len(laws)} laws need one number, or {len(laws)}; got an array of shape {array.shape}."
            )
        columns.append(np.broadcast_to(array, len(laws)))
    result = np.empty(len(laws))
    for family, indices in families.items():
        stacked = family[0].stack([laws[index] for index in indices])
        result[indices] = compute(stacked, *(column[indices] for column in columns))
    return result


def over_axis(values: ArrayLike, axes: int) -> Values:
    """Return values along a new first axis, followed by `axes` axes of length one that broadcast over layers."""
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(array.shape + (1,) * axes)


def solve_increasing(
    function: Callable[[Values], tuple[Values, Values]], target: Values, start: Values, tolerance: ArrayLike = 1e-14
) -> Values:
    """Solve value(l) = target for each entry by Newton steps that stay inside a bracket, and return l.

    Args:
        function: returns value and slope at l; the value must not decrease with l, and should be nearly a line.
        target: the wanted value of each entry.
        start: any finite guess.
        tolerance: the allowed difference between value and target.
    """
    target, point = np.broadcast_arrays(target, start)
    shape, target, point = point.shape, np.atleast_1d(target), np.atleast_1d(point).astype(np.float64)
    low, high = np.full(point.shape, -np.inf), np.full(point.shape, np.inf)
    reach = 1.0
    for _ in range(200):
        value, slope = function(point.reshape(shape))
        low, high = np.where(value <= target, point, low), np.where(value >= target, point, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            done = (np.abs(value - target) <= tolerance) | (high - low <= 1e-15 * (1 + np.abs(point)))
            step = point + (target - value) / slope
            # Where a Newton step leaves the bracket: halve it, or take a longer step while one side is open.
            middle = np.where(np.isinf(high), low + reach, np.where(np.isinf(low), high - reach, (low + high) / 2))
        if done.all():
            break
        newton = (step > low) & (step < high) & (np.abs(step - point) < 100)
        point = np.where(done, point, np.where(newton, step, middle))
        reach *= 2
    return point.reshape(shape)
