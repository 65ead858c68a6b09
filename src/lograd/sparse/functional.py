"""linear, conv1d and conv2d of torch.nn.functional with a sparse backward.

The forward is PyTorch's own, autocast included.  In the backward the gradient is pruned as `ops.stochastic_prune` does
it, E[T(g)] = g, and enters both products and the bias; without a threshold it stays as it is and only the zeros that it
has are skipped.  Random numbers are a function of (seed, position): give each step its own seed, or a key tensor (seed,
offset) that you change in place.
"""

from __future__ import annotations

from torch import Tensor

from ..engine import forms
from ..engine.forms import Convolution, cast_as_autocast_would
from ..ops.arguments import Scalar, key_of, scalar
from ..ops.geometry import Geometry, Pair, pair, single
from .threshold import Pruning


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, threshold: Scalar | None = None, seed: int | Tensor = 0
) -> Tensor:
    """Return x @ weight.T + bias for any leading dimensions.

    Args:
        threshold: of pruning, for the gradient in the backward; None takes the gradient as it is.
        seed: a number, or the int64 pair (seed, offset).
    """
    return apply_linear(x, weight, bias, _pruning(x, threshold, seed))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    threshold: Scalar | None = None,
    seed: int | Tensor = 0,
) -> Tensor:
    """Return the convolution of a batch of images, or of one; `threshold` and `seed` are those of `linear`."""
    geometry = Geometry(pair(stride), pair(padding), pair(dilation), groups)
    return apply_convolution(x, weight, bias, geometry, _pruning(x, threshold, seed))


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    *,
    threshold: Scalar | None = None,
    seed: int | Tensor = 0,
) -> Tensor:
    """Return the convolution of a batch of sequences, or of one; `threshold` and `seed` are those of `linear`."""
    geometry = Geometry(single(stride), single(padding), single(dilation), groups)
    return apply_convolution(x, weight, bias, geometry, _pruning(x, threshold, seed))


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, pruning: Pruning) -> Tensor:
    """Return the output of a linear layer with a given pruning in its backward."""
    return forms.linear(*cast_as_autocast_would(x, weight, bias), pruning)


def apply_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pruning: Pruning) -> Tensor:
    """Return the output of a convolution with a given pruning in its backward."""
    return forms.convolution(*cast_as_autocast_would(x, weight, bias), Convolution(geometry), pruning)


def _pruning(x: Tensor, threshold: Scalar | None, seed: int | Tensor) -> Pruning:
    key = key_of(seed, 0, x)
    return Pruning(None if threshold is None else scalar("threshold", threshold, x, 0.0), key)
