"""Numbers that a measurement returns: means with errors, the minibatch's variance, and how far noise travels.

Values without torch; `passes` and `noise` measure them, profiles keep them, predictions read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue, nearest_name
from ..theory import Propagation

Values = NDArray[np.float64]
SIGMAS = 4.0
"""Half the width of a band, in standard deviations of a normal law; chance leaves it once in 30,000 times."""
SUM_ROUNDING = 1e-12
"""Relative error of a sum in float64, with room to spare; what differs by less is equal."""
VECTORS = "(vectors)"
"""Stands for all parameters with one dimension, such as biases and the parameters of norms."""
TOTAL = "(all)"
"""Stands for the whole gradient."""
LEAST_BATCHES = 3
"""The fewest minibatches from which a variance and its standard error can be estimated."""


@final
@dataclass(frozen=True)
class Measured:
    """A mean and its standard error."""

    mean: float
    error: float

    def over(self, other: Measured) -> Measured | None:
        """Return the ratio to another mean that is independent, to first order in both errors; None over zero."""
        if other.mean <= 0:
            return None
        ratio = self.mean / other.mean
        spread = np.hypot(self.error, ratio * other.error) / other.mean
        return Measured(float(ratio), float(spread))

    def agrees(self, value: float, error: float = 0.0) -> bool:
        """Return True if a value, with a standard error of its own, lies within 4 standard errors of the mean.

        Sums of float64 that differ by rounding alone agree, whatever their errors are.
        """
        rounding = SUM_ROUNDING * max(abs(self.mean), abs(value))
        return bool(abs(self.mean - value) <= SIGMAS * np.hypot(self.error, error) + rounding)


def mean_of(samples: Values) -> tuple[Values, Values]:
    """Return mean and standard error over the last dimension, in which samples are independent."""
    count = samples.shape[-1]
    return samples.mean(-1), samples.std(-1, ddof=1) / np.sqrt(count)


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

    @property
    def noise_scale(self) -> float | None:
        """V / signal, in batches; None where the batches show no signal."""
        return self.variance.mean / self.signal if self.signal > 0 else None


@final
@dataclass(frozen=True)
class Minibatch:
    """The variance that the minibatch itself puts into the gradient: the unit in which noise is measured.

    Over minibatches B at fixed weights the gradient g_B has the variance V = E|g_B - E g|^2 and the signal |E g|^2.
    Noise that adds W to the variance costs about as much as a batch that is smaller by 1 + W / V.  V / signal is the
    gradient noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), in batches of this
    size.

    Args:
        tensors: each weight tensor that learns; the last entry may be "(vectors)".
        total: the whole gradient, named "(all)".
        batches: minibatches that it was estimated from, 3 at least.
    """

    tensors: tuple[GradientVariance, ...]
    total: GradientVariance
    batches: int

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
        total, scale = self.total, self.total.noise_scale
        told = (
            f"the signal |E g|^2 is {total.signal:.3g}, and the gradient noise scale V / signal is {scale:.3g} batches"
            if scale is not None
            else "so few batches show no signal |E g|^2 beside it"
        )
        return (
            f"The minibatch's own variance V of the gradient is {total.variance.mean:.3g} "
            f"(+- {total.variance.error:.2g}, over {self.batches} batches); {told}."
        )


@final
@dataclass(frozen=True)
class NoiseFactors:
    """Measured factors by which noise travels between layers, in the order of `layers`.

    Args:
        layers: their names.
        factors: relative to the energies of the weight gradients without noise, as `Propagation` says.
        energies: the same transfer with `own` and `passed` as energies: |error of the gradient|^2 for a noise-to-signal
            ratio of one in a layer's gradient, in the layer's own weight and bias, and in all other parameters of the
            model, for a batch of usual size: the mean over the observed steps.  So `energies.total(n_dX, n_dW)` is the
            variance W that a plan adds.  None where a gradient is not finite.
    """

    layers: tuple[str, ...]
    factors: Propagation
    energies: Propagation | None = None

    def places(self, names: Sequence[str]) -> list[int]:
        """Return the places of some layers among those that were measured."""
        return [self.layers.index(name) for name in names]

    def among(self, names: Sequence[str]) -> Propagation:
        """Return the factors between some of the layers, without the noise of the others."""
        return self.factors.among(self.places(names))
