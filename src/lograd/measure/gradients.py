"""Squared norms of gradients, by weight tensor and in all, and the variance of a stream of minibatch gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.layers import plain_name, unwrapped
from .measured import Measured, Values, mean_of
from .minibatch import TOTAL, VECTORS, GradientVariance, Minibatch


class Groups:
    """The parameters of a model in groups: each weight tensor alone, all vectors together, and everything.

    Args:
        parameters: those that learn, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        tensors = [name for name, one in parameters.items() if one.dim() > 1]
        vectors = [VECTORS] if len(tensors) < len(parameters) else []
        self.names = (*tensors, *vectors, TOTAL)
        self._of = [self.names.index(name if one.dim() > 1 else VECTORS) for name, one in parameters.items()]
        self.elements = self.summed([one.numel() for one in parameters.values()]).astype(np.int64).tolist()

    def summed(self, numbers: Sequence[float] | Values) -> Values:
        """Return sums over the groups of numbers that belong to parameters, the first dimension."""
        each = np.asarray(numbers, dtype=np.float64)
        found = np.zeros((len(self.names), *each.shape[1:]))
        np.add.at(found, self._of, each)
        found[-1] = each.sum(0)
        return found

    def energies(self, gradients: Sequence[Tensor]) -> Values:
        """Return |g|^2 of each group."""
        return self.summed([energy(one) for one in gradients])

    def products(self, ones: Sequence[Tensor], others: Sequence[Tensor]) -> Values:
        """Return <g, h> of each group."""
        pairs = zip(ones, others, strict=True)
        return self.summed([float(torch.dot(_flat(one), _flat(other))) for one, other in pairs])

    def gram(self, draws: Sequence[Sequence[Tensor]]) -> Values:
        """Return <d_r, d_s> of each group for all pairs of draws; its diagonal holds their energies."""
        found = []
        for several in zip(*draws, strict=True):
            matrix = torch.stack([_flat(one) for one in several])
            products = (matrix @ matrix.T).numpy(force=True)
            np.fill_diagonal(products, [energy(one) for one in several])
            found.append(products)
        return self.summed(np.array(found))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).double()


def energy(tensor: Tensor) -> float:
    """Return |g|^2 of a tensor."""
    flat = _flat(tensor)
    return float(torch.dot(flat, flat))


def learned_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that learn, by their names in the plain model."""
    named = unwrapped(model).named_parameters()
    return {plain_name(name): one for name, one in named if one.requires_grad}


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, dense, and zero where none came."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return gradient.to_dense() if gradient.is_sparse else gradient.detach()


class Minibatches:
    """The mean gradient of minibatches and its variance, from one after the other.

    With m_b the mean of the first b gradients, (b - 1) / b |g_b - m_(b-1)|^2 is an unbiased estimate of the variance,
    and for normal gradients these estimates are independent (Helmert's contrasts).  So their mean is V, the usual sum
    of squares over n - 1, and their spread gives its standard error, without a second look at any gradient.
    """

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.count = 0
        self._mean: list[Tensor] = []
        self._contrasts: list[Values] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradient of one more minibatch."""
        self.count += 1
        if not self._mean:
            self._mean = [one.to(torch.float64, copy=True) for one in gradients]
            return
        moved = []
        for mean, one in zip(self._mean, gradients, strict=True):  # one at a time, for the memory of one in float64
            step = one.double() - mean
            moved.append(energy(step))
            mean += step / self.count
        self._contrasts.append(self.groups.summed(moved) * (self.count - 1) / self.count)

    def variance(self) -> list[Measured]:
        """Return V of each group; it needs three minibatches."""
        means, errors = mean_of(np.array(self._contrasts).T)
        return [Measured(float(mean), float(error)) for mean, error in zip(means, errors, strict=True)]

    @property
    def finite(self) -> bool:
        """True if no gradient had NaN or infinite elements."""
        return bool(np.all(np.isfinite(self._contrasts)))

    def result(self) -> Minibatch:
        """Return variance and signal of each weight tensor and of the whole gradient; it needs three minibatches."""
        columns = zip(self.groups.names, self.groups.elements, self.variance(), self.signal().tolist(), strict=True)
        *tensors, total = (GradientVariance(*column) for column in columns)
        return Minibatch(tuple(tensors), total, self.count)

    def signal(self) -> Values:
        """Return |E g|^2 of each group, without the share of it that is variance."""
        variance = np.array([one.mean for one in self.variance()])
        result: Values = self.groups.energies(self._mean) - variance / self.count
        return result
