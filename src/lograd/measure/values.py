"""The values of which a measurement consists: weight tensors, sites, and the matrix of contributions.

Squared norms have the unit of the squared gradient; ratios have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ..errors import InvalidValue, nearest_name
from .measured import Measured, Values
from .minibatch import TOTAL


@final
@dataclass(frozen=True)
class ForwardChange:
    """The change of a gradient by the quantized forward alone: the exact gradient against that of float32.

    It is a bias of another kind than that of the backward, which no repetition averages out and no band contains.
    """

    cosine: float
    norm: float
    """The norm of the exact gradient over that of the float32 gradient."""


@final
@dataclass(frozen=True)
class TensorVariance:
    """The gradient of one weight tensor.

    Args:
        name: of the parameter.
        elements: of the tensor.
        energy: |g|^2 of the exact gradient, mean over the batches that were run with the plan.
        signal: |E g|^2 over minibatches, without bias: |mean|^2 - V / n.  By chance it may be negative.
        minibatch: V = E|g_B - E g|^2, the variance of the exact gradient over minibatches.
        noise: W = E|g_q - g_B|^2 over the random numbers of the plan, for the same minibatch.
        bias: |E g_q - g_B|^2, without bias: by chance it may be negative.
        band: the largest estimate of the bias that random numbers without a bias would give, at 4 sigma.
        forward: the change by the quantized forward; None where the plan leaves the forward as it is.
    """

    name: str
    elements: int
    energy: float
    signal: float
    minibatch: Measured
    noise: Measured
    bias: Measured
    band: float
    forward: ForwardChange | None = None

    @property
    def rho(self) -> Measured | None:
        """W / V; None where V is zero.

        Without a bias, a step costs as much as one with 1 / (1 + rho) of the samples.  With one, W contains its square,
        which no number of samples averages out.
        """
        return self.noise.over(self.minibatch)

    @property
    def inside_band(self) -> bool:
        """True if the bias may be chance."""
        return self.bias.mean <= self.band


@final
@dataclass(frozen=True)
class SiteVariance:
    """The treated gradient of one layer, in one product or in both.

    Args:
        layer: its name.
        product: "dX", "dW", or "dX, dW" where one treated copy serves both.
        words: the treatments.
        energy: |G|^2 of the gradient that arrives, without noise.
        noise: E|Q(G) - G|^2 of the quantizer alone.
        predicted: the same by the law of |G|; None where the law does not tell.
        bound: the paper's bound on it; None for treatments that the paper does not have.
    """

    layer: str
    product: str
    words: str
    energy: float
    noise: Measured
    predicted: float | None = None
    bound: float | None = None


@final
@dataclass(frozen=True, eq=False)
class Contributions:
    """The noise that each layer brings to each weight tensor when it alone is treated.

    Args:
        layers: the rows.
        tensors: the columns, the names of weight tensors; the last one is the whole gradient.
        noise: in row j and column i, E|g_q - g_B|^2 of tensor i with layer j treated.
        errors: their standard errors.
        arrived: for each layer, the sum over the weights of layers of noise relative to |dW|^2.
        predicted: the same by `theory.Propagation` from the measured noise of the layer's quantizers; NaN where it
            cannot tell.
        arrived_together: the sum for the whole plan.
        predicted_together: the same by `theory.Propagation`, growth over depth included; NaN where it cannot tell.
    """

    layers: tuple[str, ...]
    tensors: tuple[str, ...]
    noise: Values
    errors: Values
    arrived: Values
    predicted: Values
    arrived_together: float
    predicted_together: float

    def __post_init__(self) -> None:
        shape = len(self.layers), len(self.tensors)
        for name, wanted in (
            ("noise", shape),
            ("errors", shape),
            ("arrived", shape[:1]),
            ("predicted", shape[:1]),
        ):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64).reshape(wanted))
        if not np.all(self.noise >= 0):
            raise InvalidValue("contributions are squared norms, and none may be negative or NaN.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contributions):
            return NotImplemented
        names = ("noise", "errors", "arrived", "predicted", "arrived_together", "predicted_together")
        equal = [np.array_equal(getattr(self, name), getattr(other, name), equal_nan=True) for name in names]
        return (self.layers, self.tensors) == (other.layers, other.tensors) and all(equal)

    def sum(self, tensor: str = TOTAL) -> Measured:
        """Return the noise of all layers in one tensor, or in the whole gradient, as if noises just added up."""
        column = self.tensors.index(tensor)
        return Measured(float(self.noise[:, column].sum()), float(np.hypot.reduce(self.errors[:, column])))


@dataclass(frozen=True, repr=False)
class Findings:
    """The variance that a plan adds to the gradients of a model, beside the variance that they have anyway.

    Attributes:
        plan: the plan in words.
        tensors: each weight tensor that learns; the last entry is all parameters with one dimension together.
        total: the whole gradient.
        sites: the treated gradient of each layer and product, the noise of its quantizer alone, predictions and bounds.
        contributions: the noise that each layer's treatment alone brings to each weight tensor; None if not measured.
        batches: minibatches from which V was estimated.
        treated: those of them that were also run with the plan.
        repeats: draws of random numbers for each of these.
        seed: of the random numbers.
    """

    plan: str
    tensors: tuple[TensorVariance, ...]
    total: TensorVariance
    sites: tuple[SiteVariance, ...]
    contributions: Contributions | None
    batches: int
    treated: int
    repeats: int
    seed: int

    def __getitem__(self, name: str) -> TensorVariance:
        for one in self.tensors:
            if one.name == name:
                return one
        names = [one.name for one in self.tensors]
        raise InvalidValue(f"no weight tensor {name!r} was measured.{nearest_name(name, names)}")

    @property
    def biased(self) -> tuple[str, ...]:
        """The names of tensors whose bias is outside the band of chance."""
        return tuple(one.name for one in self.tensors if not one.inside_band)
