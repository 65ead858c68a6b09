"""The variance that the minibatch itself puts into the gradient: the unit in which noise is measured.  No torch here.

Over minibatches B at fixed weights the gradient g_B has the variance V = E|g_B - E g|^2 and the signal |E g|^2.  Noise
that adds W to the variance costs about as much as a batch that is smaller by 1 + W / V.  V / signal is the gradient
noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), in batches of this size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ..errors import InvalidValue, nearest_name, sentence
from .measured import Measured

VECTORS = "(vectors)"
"""Stands for all parameters with one dimension, such as biases and the parameters of norms."""
TOTAL = "(all)"
"""Stands for the whole gradient."""
LEAST_BATCHES = 3
"""The fewest minibatches from which a variance and its standard error can be estimated."""
SUMS = 1e-9
"""Relative rounding of sums over tensors, with room to spare."""


@final
@dataclass(frozen=True)
class GradientVariance:
    """The gradient of one weight tensor over minibatches.

    Args:
        name: of the parameter; "(vectors)" for all with one dimension, "(all)" for the whole gradient.
        elements: of the tensor.
        variance: V = E|g_B - E g|^2.
        signal: |E g|^2 without bias, |mean|^2 - V / n.  By chance it may be negative.
    """

    name: str
    elements: int
    variance: Measured
    signal: float

    def __post_init__(self) -> None:
        numbers = (self.variance.mean, self.variance.error, self.signal)
        if not all(map(math.isfinite, numbers)) or min(numbers[:2]) < 0 or self.elements < 1:
            raise InvalidValue(
                sentence(f"the variance of {self.name!r}", numbers, "finite: V and its error, not negative, and signal")
            )
        if self.signal < -self.variance.mean / LEAST_BATCHES * (1 + SUMS):
            raise InvalidValue(sentence(f"the signal of {self.name!r}", self.signal, "not below -V over its batches"))

    @property
    def noise_scale(self) -> float | None:
        """V / signal, in batches; None where the batches show no signal."""
        return self.variance.mean / self.signal if self.signal > 0 else None


@final
@dataclass(frozen=True)
class Minibatch:
    """The variance of the gradient over minibatches, by weight tensor and in all.

    Args:
        tensors: each weight tensor that learns; the last entry may be "(vectors)".
        total: the whole gradient, named "(all)".
        batches: minibatches that it was estimated from, 3 at least.
    """

    tensors: tuple[GradientVariance, ...]
    total: GradientVariance
    batches: int

    def __post_init__(self) -> None:
        names = [one.name for one in (*self.tensors, self.total)]
        if not self.tensors or len(set(names)) < len(names) or names[-1] != TOTAL:
            raise InvalidValue(
                sentence("tensors of a minibatch's variance", names, f"different, and {TOTAL!r} at last")
            )
        if self.batches < LEAST_BATCHES:
            raise InvalidValue(sentence("batches of a minibatch's variance", self.batches, f"{LEAST_BATCHES} or more"))
        summed = [sum(column) for column in zip(*map(_numbers, self.tensors), strict=True)]
        scale = max(self.total.variance.mean, sum(abs(one.signal) for one in self.tensors))
        if not np.allclose(summed, _numbers(self.total), rtol=SUMS, atol=SUMS * scale):
            raise InvalidValue("the variances of weight tensors must add up to that of the whole gradient.")

    def __getitem__(self, name: str) -> GradientVariance:
        for one in (*self.tensors, self.total):
            if one.name == name:
                return one
        names = [one.name for one in self.tensors]
        raise InvalidValue(f"the profile has no weight tensor {name!r}.{nearest_name(name, names)}")

    @property
    def unit(self) -> float:
        """V of the whole gradient, by which noise is divided."""
        return self.total.variance.mean

    def share(self, layer: str) -> float | None:
        """Return the share of V in the weight of a layer; None where no weight tensor belongs to it alone."""
        own = [one.variance.mean for one in self.tensors if one.name.startswith(f"{layer}.")]
        return sum(own) / self.unit if own and self.unit > 0 else None

    def words(self) -> str:
        """Return a sentence with V, the signal and the gradient noise scale."""
        total = self.total
        scale = total.noise_scale
        told = (
            f"the signal |E g|^2 is {total.signal:.3g}, and the gradient noise scale V / signal is {scale:.3g} batches"
            if scale is not None
            else "so few batches show no signal |E g|^2 beside it"
        )
        return (
            f"The minibatch's own variance V of the gradient is {total.variance.mean:.3g} "
            f"(+- {total.variance.error:.2g}, over {self.batches} batches); {told}."
        )


def _numbers(one: GradientVariance) -> tuple[float, float, float]:
    return one.elements, one.variance.mean, one.signal


def mean_of_minibatches(several: Sequence[Minibatch | None]) -> Minibatch | None:
    """Return the mean over ranks, each with batches of its own; None where one has none, or other tensors."""
    known = [one for one in several if one is not None]
    shapes = {tuple((tensor.name, tensor.elements) for tensor in one.tensors) for one in known}
    if len(known) < len(several) or len(shapes) != 1:
        return None
    columns = zip(*((*one.tensors, one.total) for one in known), strict=True)
    *tensors, total = (_mean(column) for column in columns)
    return Minibatch(tuple(tensors), total, sum(one.batches for one in known))


def _mean(column: Sequence[GradientVariance]) -> GradientVariance:
    mean = float(np.mean([one.variance.mean for one in column]))
    error = float(np.hypot.reduce([one.variance.error for one in column])) / len(column)
    signal = float(np.mean([one.signal for one in column]))
    return GradientVariance(column[0].name, column[0].elements, Measured(mean, error), signal)
