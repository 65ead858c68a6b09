"""A sentence of treatments: several in order, each told what the ones before it leave over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidValue, sentence
from ..laws.law import Values
from .statistics import Prediction, Statistics
from .treatment import Numbers, Treatment

Sentence = tuple[Treatment, ...]


def describe(treatments: Sentence) -> str:
    """A few words for tables."""
    return ", then ".join(map(str, treatments)) if treatments else "unchanged"


def to_json(treatments: Sentence) -> list[dict[str, Any]]:
    return [treatment.to_json() for treatment in treatments]


def from_json(data: Any) -> Sentence:
    """The exact inverse of `to_json`."""
    if not isinstance(data, list):
        raise InvalidValue(sentence("a sentence of treatments", data, "a list"))
    return tuple(Treatment.from_json(item) for item in data)


def numbers_of(treatments: Sequence[Treatment], statistics: Statistics) -> list[Numbers]:
    """The numbers of each treatment, from the statistics of what it is given."""
    if len(treatments) < 2:
        return [treatment.numbers(statistics) for treatment in treatments]
    # What the last one leaves over concerns nobody, and takes most of the time.
    *others, last = treatments
    numbers, values, probabilities = _follow(others, statistics)
    return [*numbers, last.numbers(_after(statistics, values, probabilities))]


def predict(
    treatments: Sequence[Treatment], statistics: Statistics, numbers: list[Numbers] | None = None
) -> Prediction:
    """What the sentence does to a gradient with these statistics.

    Each magnitude x becomes a value y with known probabilities; sparsity, cosine E[xy] / sqrt(E[x^2] E[y^2]) and
    relative error E[|y - x| / x] are sums over the histogram.

    Args:
        numbers: the numbers in force; by default those that follow from the statistics.
    """
    x, weights = statistics.points()
    _, y, probabilities = _follow(treatments, statistics, numbers)
    shares = probabilities * (weights / weights.sum())
    signal, energy = np.sum(weights / weights.sum() * x**2), np.sum(shares * y**2)
    zeros = statistics.zero_share
    return Prediction(
        sparsity=float(zeros + (1 - zeros) * np.sum(shares[y == 0])),
        cosine=float(np.clip(np.sum(shares * x * y) / np.sqrt(signal * energy), 0.0, 1.0)) if energy > 0 else 0.0,
        relative_error=float(np.sum(shares * np.abs(y - x) / x)),
    )


def _follow(
    treatments: Sequence[Treatment], statistics: Statistics, given: list[Numbers] | None = None
) -> tuple[list[Numbers], Values, Values]:
    """Numbers, values and probabilities (a row for each way to go, a column for each point) at the sentence's end."""
    x, _ = statistics.points()
    values, probabilities = x[None], np.ones((1, x.size))
    numbers: list[Numbers] = []
    current = statistics
    for place, treatment in enumerate(treatments):
        if place:
            current = _after(statistics, values, probabilities)
        numbers.append(treatment.numbers(current) if given is None else given[place])
        steps = [treatment.outcomes(row, numbers[-1]) for row in values]
        probabilities = np.concatenate([p * step.probabilities for p, step in zip(probabilities, steps, strict=True)])
        values = np.concatenate([step.values for step in steps])
        reached = probabilities.any(axis=1)
        values, probabilities = values[reached], probabilities[reached]
    return numbers, values, probabilities


def _after(statistics: Statistics, values: Values, probabilities: Values) -> Statistics:
    """The statistics of the values; where nothing but zeros is left any will do, so the old ones."""
    _, weights = statistics.points()
    return statistics.after(values.ravel(), (probabilities * weights).ravel()) or statistics
