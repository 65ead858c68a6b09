"""How much more noise a treatment adds to a gradient that noise arrives with; and such gradients in a profile's file.

Gradients have many tiny elements and a few large ones; noise that has passed through some layers has not.  So pruning
adds more to noise than to a gradient of the same energy (`theory.rises`).  No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import InvalidValue
from ..files.checks import MANY, check_number, check_object, check_whole
from ..laws import Empirical
from ..theory import Rise
from ..treatments import Sentence, Statistics, numbers_of, predict
from ..treatments.verdicts import noise_of
from .file_checks import HIGHEST_BIN, LOWEST_BIN
from .records import LayerProfile, NoisyGradient, Range, thinned

MOST_NOISE = 1e6
"""The largest noise-to-signal ratio of one layer; that of a format which rounds all to zero would be infinite."""
LEAST_LEVEL = 1e-3
"""Noise that is weaker tells little: differences of two histograms would be divided by it."""
MOST_STEPS = 12
"""The most steps over which noise is summed; a dozen tell how batches differ."""


def statistics_of(layer: LayerProfile) -> Statistics | None:
    """Return the law of a layer's gradient, what is masked, and its range; None for a gradient of zeros."""
    return None if layer.law is None else Statistics(layer.law, round(layer.masked or 0.0, 6), range=layer.range)


def ratio_of(treatments: Sentence, statistics: Statistics) -> float | None:
    """Return the noise-to-signal ratio that theory predicts of unbiased treatments; None where it does not tell."""
    found = predict(treatments, statistics)
    return None if found is None else min(noise_of(found.cosine), MOST_NOISE)


def ratio_over(treatments: Sentence, layer: LayerProfile) -> float | None:
    """Return the noise-to-signal ratio of unbiased treatments over all observed steps; None where theory tells none.

    Batches differ in energy, and a threshold is that of an earlier one.  So noise and gradients are summed over the
    steps before they are compared, and numbers follow from the step before each.
    """
    known = [record.law for record in thinned(layer.records, MOST_STEPS) if record.law is not None]
    signal = noise = 0.0
    for before, law in zip(known[:1] + known, known, strict=False):
        numbers = numbers_of(treatments, _with_range(layer, before))
        fixed = [{name: of[name] for name in one.number_names} for one, of in zip(treatments, numbers, strict=True)]
        found = predict(treatments, _with_range(layer, law), fixed)
        if found is None:
            return None
        energy = float(law.count) * float(law.moment(2))
        signal, noise = signal + energy, noise + energy * min(noise_of(found.cosine), MOST_NOISE)
    return noise / signal if signal else None


def _with_range(layer: LayerProfile, law: Empirical) -> Statistics:
    """Return statistics of a layer with the law of one step; its range grows with the largest magnitude."""
    factor = 1.0 if layer.range is None or layer.law is None else float(law.maximum) / float(layer.law.maximum)
    range_ = None if layer.range is None else (layer.range[0] * factor, layer.range[1] * factor)
    return Statistics(law, round(layer.masked or 0.0, 6), range=range_)


def steps_over_last(treatments: Sentence, layer: LayerProfile | None) -> float:
    """Return the factor from the noise-to-signal ratio of the last step to `ratio_over`; 1 where theory tells none."""
    last = None if layer is None else statistics_of(layer)
    if layer is None or last is None or not treatments:
        return 1.0
    alone, over = ratio_of(treatments, last), ratio_over(treatments, layer)
    return over / alone if alone and over is not None else 1.0


def rise_of(treatments: Sentence, layer: LayerProfile | None, noise: float) -> Rise:
    """Return the noise-to-signal ratio of treatments on noise that arrives at a layer.

    Args:
        treatments: unbiased ones.
        layer: None where it was not observed; the rise is then the ratio itself, as it is where theory tells nothing
            or no noise arrives.
        noise: their ratio on the layer's gradient.  Where that was measured, the rise by theory is scaled to it.
    """
    clean = None if layer is None else statistics_of(layer)
    before = ratio_of(treatments, clean) if clean is not None and noise else None
    if layer is None or clean is None or not before:
        return Rise.constant(noise)
    levels: list[float] = []
    added: list[float] = []
    for one in layer.noisy:
        after = ratio_of(treatments, Statistics(one.law, clean.masked, range=one.range))
        if one.level >= LEAST_LEVEL and one.level > max(levels, default=0.0) and after is not None:
            levels.append(one.level)
            added.append(after * (1 + one.level))
    return Rise.through(before, levels, added).times(noise / before) if levels else Rise.constant(noise)


def packed_noisy(several: Sequence[NoisyGradient]) -> list[dict[str, Any]]:
    """Return plain values, of which `unpacked_noisy` makes these gradients again."""
    return [
        {
            "level": one.level, "range": list(one.range), "first": int(one.law.first),
            "counts": one.law.counts.tolist(), "zeros": int(one.law.zeros),
        }
        for one in several
    ]  # fmt: skip


def unpacked_noisy(data: Any) -> tuple[NoisyGradient, ...]:
    """Return the gradients that `packed_noisy` was given; the exact inverse, every value checked."""
    if not isinstance(data, list):
        raise InvalidValue("the gradients with noise of a layer must be a list.")
    found = tuple(map(_unpacked, data))
    if any(one.level > other.level for one, other in pairwise(found)):
        raise InvalidValue("the gradients with noise of a layer must be in the order of their noise.")
    return found


def _unpacked(data: Any) -> NoisyGradient:
    check_object("a gradient with noise", data, ("level", "range", "first", "counts", "zeros"))
    first = check_whole("the first bin of a gradient with noise", data["first"], LOWEST_BIN, HIGHEST_BIN)
    counts = data["counts"]
    if not isinstance(counts, list) or not 0 < len(counts) <= HIGHEST_BIN + 1 - first:
        raise InvalidValue("the histogram of a gradient with noise must be a list of counts.")
    for count in counts:
        check_whole("a count of a gradient with noise", count, 0, MANY)
    if not 0 < sum(counts) <= MANY:
        raise InvalidValue("the histogram of a gradient with noise must have elements, and no more than there are.")
    zeros = check_whole("zeros of a gradient with noise", data["zeros"], 0, MANY)
    level = check_number("the noise in a gradient", data["level"], 0)
    law = Empirical(np.array(counts, dtype=np.int64), first, zeros=zeros)
    return NoisyGradient(law, level, unpacked_range(data["range"]))


def unpacked_range(data: Any) -> Range:
    """Return the smallest and the largest element of a gradient from its file."""
    if not isinstance(data, list) or len(data) != 2:
        raise InvalidValue("the range of a gradient must be its smallest and its largest element.")
    low, high = (check_number("an end of the range of a gradient", one) for one in data)
    if low > high:
        raise InvalidValue("the range of a gradient must begin with its smallest element.")
    return low, high
