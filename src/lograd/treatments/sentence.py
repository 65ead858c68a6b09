"""A sentence of treatments: several in order, each told what the ones before it leave over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..errors import InvalidType, InvalidValue, sentence
from ..laws import Empirical
from ..laws.law import Values
from .statistics import Prediction, Statistics
from .tensors import counted, is_finite, zeros_of
from .treatment import Numbers, Outcomes, Setting, Treatment

Sentence = tuple[Treatment, ...]


def describe(treatments: Sentence) -> str:
    """Return a few words for tables."""
    return ", then ".join(map(str, treatments)) if treatments else "unchanged"


def to_json(treatments: Sentence) -> list[dict[str, Any]]:
    """Return plain values, of which `from_json` makes this sentence again."""
    return [treatment.to_json() for treatment in treatments]


def from_json(data: Any) -> Sentence:
    """Return the sentence that `to_json` was given; the exact inverse."""
    if not isinstance(data, list):
        raise InvalidValue(sentence("a sentence of treatments", data, "a list"))
    return tuple(Treatment.from_json(item) for item in data)


def numbers_of(treatments: Sequence[Treatment], statistics: Statistics) -> list[Numbers]:
    """Return the numbers of each treatment, from the statistics of the tensor that reaches it."""
    if len(treatments) < 2:
        return [treatment.numbers(statistics) for treatment in treatments]
    # The statistics after the last treatment are skipped: nobody uses them, and they are the slowest part.
    *others, last = treatments
    numbers, ways = _follow(others, statistics)
    return [*numbers, last.numbers(_after(statistics, ways))]


def stages(
    treatments: Sequence[Treatment],
    numbers: Sequence[Mapping[str, Tensor]],
    key: Tensor,
    memory: Tensor,
    contracted: tuple[int, ...] = (),
    fold: Tensor | None = None,
    fold_dim: int = 1,
) -> list[Setting]:
    """Return what each treatment of a sentence is given beside the tensor.

    Args:
        numbers: of each treatment, those of its `number_names`.
        key: the int64 pair (seed, offset) of the random numbers.
        memory: the memories of all treatments, in order, changed in place.
        contracted, fold, fold_dim: see `Setting`.
    """
    parts = zip(numbers, memories(treatments, memory), strict=True)
    return [
        # Each treatment has its own random numbers: the seed is a hash, and so is its successor to Philox.
        Setting(
            dict(values), key if place == 0 else key + _successor(place, key.device), own, contracted, fold, fold_dim
        )
        for place, (values, own) in enumerate(parts)
    ]


def checked_result(one: Treatment, x: Tensor, found: Any) -> ops.Counted:
    """Return what `apply` has made of x, with its counts; refuse in a sentence what a user's treatment must not return.

    Where it has counted nothing, zeros and NaN of the result are counted.
    """
    what = f"apply of treatment {one.kind!r}"
    if not isinstance(found, ops.Counted):
        raise InvalidType(
            f"{what} must return ops.Counted(result, counts), with None for counts where it has none; got "
            f"{_described(found)}."
        )
    result, counts = found
    alike = isinstance(result, Tensor) and (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)
    if not alike:
        raise InvalidValue(
            f"the result of {what} must be like its argument, {_described(x)}; got {_described(result)}."
        )
    if torch._C._is_alias_of(result, x):  # type: ignore[attr-defined]  # which the result of an operator may not be
        result = result.clone()
    if counts is None:
        return counted(result)
    known = isinstance(counts, Tensor) and counts.dtype == torch.int64 and counts.device == x.device
    if not known or tuple(counts.shape) not in ((3,), (4,)):
        raise InvalidValue(
            f"the counts of {what} must be None, or int64 counts of zeros, NaN and saturated elements in a tensor of 3 "
            f"on the device of the result; got {_described(counts)}."
        )
    return ops.Counted(result, counts)


def _described(found: Any) -> str:
    if not isinstance(found, Tensor):
        return f"an object of type {type(found).__name__}"
    return f"a tensor of {str(found.dtype).removeprefix('torch.')} {tuple(found.shape)} on {found.device}"


def settled(treatments: Sequence[Treatment], g: Tensor, results: Sequence[ops.Counted]) -> ops.Counted:
    """Return the result of a sentence with its counts, from what each treatment has made of g in turn.

    Counts are zeros and NaN of the result, saturated elements, and zeros of g; where the sentence both prunes and
    rounds, the zeros that pruning has made are a fifth.
    """
    if not results:
        before = zeros_of(g)
        return ops.Counted(g, torch.stack([before, torch.count_nonzero(g.isnan()), torch.zeros_like(before), before]))
    total = total_counts(treatments, g, [one.counts for one in results])
    result = results[-1].result
    # A GradScaler looks for infinities, and formats would saturate them.
    if int(total[2]) and not is_finite(g):
        swallowed = g.isinf() & result.isfinite()
        if bool(swallowed.any()):
            result = result.masked_scatter(swallowed, g[swallowed])
    if g.dtype != torch.float32:  # operators count in float32, and a small number may become zero in 16 bits
        total = torch.cat([zeros_of(result).reshape(1), total[1:]])
    return ops.Counted(result, total)


def total_counts(treatments: Sequence[Treatment], g: Tensor, counts: Sequence[Tensor]) -> Tensor:
    """Return the counts of a sentence, as `settled` gives them, from the counts of each of its treatments in turn."""
    first = counts[0]
    total = first if first.numel() == 4 else torch.cat([first, zeros_of(g).reshape(1)])
    if len(counts) == 1:
        return total
    zeros = [total[3], first[0]]
    for one in counts[1:]:
        total = torch.cat([one[:2], total[2:3] + one[2:3], total[3:]])
        zeros.append(one[0])
    return torch.cat([total, _pruned(treatments, zeros)]) if mixes(treatments) else total


def mixes(treatments: Sequence[Treatment]) -> bool:
    """Return True if some treatments are there to make zeros, and others may flush small elements to zero."""
    return len({treatment.makes_zeros for treatment in treatments}) > 1


def _pruned(treatments: Sequence[Treatment], zeros: Sequence[Tensor]) -> Tensor:
    """Return the zeros that pruning has made, from the zeros before the first treatment and after each."""
    steps = zip(treatments, pairwise(zeros), strict=True)
    made = [(after - before).clamp(min=0) for treatment, (before, after) in steps if treatment.makes_zeros]
    return torch.stack(made).sum().reshape(1)


def apply(
    treatments: Sequence[Treatment],
    g: Tensor,
    seed: int = 0,
    *,
    numbers: list[Numbers] | None = None,
    contracted: tuple[int, ...] = (),
) -> ops.Counted:
    """Return a tensor treated by a sentence, with its counts: `apply(recipe("fp6").input_gradient.gradient, g).result`.

    Args:
        numbers: of each treatment; by default those that follow from the statistics of g itself.
        contracted: the dimensions that the product sums over; the last where it matters and nothing is given.
    """
    if numbers is None:
        needed = any(one.number_names for one in treatments)
        numbers = numbers_of(treatments, Statistics(Empirical.fit(g))) if needed else [{} for _ in treatments]
    tensors = [
        {name: torch.tensor(values[name], dtype=torch.float32, device=g.device) for name in one.number_names}
        for one, values in zip(treatments, numbers, strict=True)
    ]
    memory = torch.zeros(sum(one.memory_size for one in treatments), dtype=torch.float64, device=g.device)
    results: list[ops.Counted] = []
    settings = stages(treatments, tensors, torch.tensor([seed, 0], device=g.device), memory, contracted)
    for one, setting in zip(treatments, settings, strict=True):
        current = results[-1].result if results else g
        results.append(checked_result(one, current, one.apply(current, setting)))
    return settled(treatments, g, results)


def memories(treatments: Sequence[Treatment], memory: Tensor) -> list[Tensor]:
    """Return the part of a sentence's memory that belongs to each treatment, as views."""
    return list(torch.split(memory, [one.memory_size for one in treatments])) if treatments else []


@lru_cache(maxsize=64)
def _successor(place: int, device: torch.device) -> Tensor:
    """Return the step from the first key to that of a place; made once, as a tensor costs as much as a kernel."""
    return torch.tensor([place, 0], device=device)


def predict(
    treatments: Sequence[Treatment],
    statistics: Statistics,
    numbers: list[Numbers] | None = None,
    factors: Values | None = None,
) -> Prediction | None:
    """Return the predicted effect on a gradient with these statistics; None where the law of magnitudes does not tell.

    Each magnitude x becomes a value y with known probabilities; sparsity, cosine E[xy] / sqrt(E[x^2] E[y^2]) and
    relative error E[|y - x| / x] are sums over the histogram.

    Args:
        numbers: the numbers in force; by default those that follow from the statistics.
        factors: those of channels (`Setting.fold`), by which the tensor is multiplied before the last treatment.  The
            prediction is then in the measure of the product that needs them, where a channel counts by its factor.
    """
    if factors is not None:
        return _predict_folded(treatments, statistics, numbers, factors)
    x, weights = statistics.points()
    _, ways = _follow(treatments, statistics, numbers)
    if ways is None:
        return None
    y, probabilities = ways
    shares = probabilities * (weights / weights.sum())
    signal, energy = np.sum(weights / weights.sum() * x**2), np.sum(shares * y**2)
    zeros = statistics.zero_share
    return Prediction(
        sparsity=float(zeros + (1 - zeros) * np.sum(shares[y == 0])),
        cosine=float(np.clip(np.sum(shares * x * y) / np.sqrt(signal * energy), 0.0, 1.0)) if energy > 0 else 0.0,
        relative_error=float(np.sum(shares * np.abs(y - x) / x)),
    )


def _predict_folded(
    treatments: Sequence[Treatment], statistics: Statistics, numbers: list[Numbers] | None, factors: Values
) -> Prediction | None:
    """Return the prediction for a sentence whose last treatment rounds channels times factors: noises add up."""
    *front, last = treatments
    given = None if numbers is None else numbers[-1:]
    if not front:
        return predict((last,), statistics.times(factors), given)
    before = predict(front, statistics, None if numbers is None else numbers[:-1])
    _, ways = _follow(front, statistics, None if numbers is None else numbers[:-1])
    rounded = predict((last,), _after(statistics, ways).times(factors), given)
    if before is None or rounded is None:
        return None
    error = before.relative_error + rounded.relative_error
    return Prediction(rounded.sparsity, before.cosine * rounded.cosine, error)


def _follow(
    treatments: Sequence[Treatment], statistics: Statistics, given: list[Numbers] | None = None
) -> tuple[list[Numbers], Outcomes | None]:
    """Return the numbers, and the outcomes of the points of the statistics; None where these are not known."""
    x, _ = statistics.points()
    ways: Outcomes | None = Outcomes(x[None], np.ones((1, x.size)))
    numbers: list[Numbers] = []
    current = statistics
    for place, treatment in enumerate(treatments):
        if place:
            current = _after(statistics, ways)
        numbers.append(treatment.numbers(current) | ({} if given is None else given[place]))
        ways = None if ways is None else _one_further(treatment, numbers[-1], ways)
    return numbers, ways


def _one_further(treatment: Treatment, numbers: Numbers, ways: Outcomes) -> Outcomes | None:
    steps = [treatment.outcomes(row, numbers) for row in ways.values]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return None
    probabilities = np.concatenate([p * step.probabilities for p, step in zip(ways.probabilities, known, strict=True)])
    reached = probabilities.any(axis=1)
    return Outcomes(np.concatenate([step.values for step in known])[reached], probabilities[reached])


def _after(statistics: Statistics, ways: Outcomes | None) -> Statistics:
    """Return the statistics of the outcomes; the old ones where these are not known, or are nothing but zeros."""
    if ways is None:
        return statistics
    _, weights = statistics.points()
    return statistics.after(ways.values.ravel(), (ways.probabilities * weights).ravel()) or statistics
