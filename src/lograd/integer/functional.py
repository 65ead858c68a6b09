"""linear, conv1d and conv2d of torch.nn.functional whose three products are computed in exact integers.

Each call rounds its operands by their own ranges.  Random numbers, for the stochastic rounding of the gradient, are a
function of (seed, position): give each step its own seed.  What integer products do not serve, such as 16-bit tensors
or a depthwise convolution, is rounded alike and computed by dense products.
"""

from __future__ import annotations

from torch import Tensor

from ..engine import forms
from ..engine.autograd import Engine
from ..engine.backends import integer
from ..engine.forms import Convolution, cast_as_autocast_would
from ..engine.layer import LayerEngine
from ..ops.geometry import Geometry, Pair, pair, single
from .engine import make_engine, treated_by
from .softmax_attention import scaled_dot_product_attention as scaled_dot_product_attention


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, bits: int | str = 8, seed: int = 0) -> Tensor:
    """Return x @ weight.T + bias for any leading dimensions.

    Args:
        bits: 2 to 8, or the name of a recipe such as "int6-full".
        seed: of the stochastic rounding of the gradient.
    """
    return apply_linear(x, weight, bias, _engine(weight, 1, bits, seed))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    bits: int | str = 8,
    seed: int = 0,
) -> Tensor:
    """Return the convolution of a batch of images, or of one; `bits` and `seed` are those of `linear`."""
    geometry = Geometry(pair(stride), pair(padding), pair(dilation), groups)
    return apply_convolution(x, weight, bias, geometry, _engine(weight, groups, bits, seed))


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    *,
    bits: int | str = 8,
    seed: int = 0,
) -> Tensor:
    """Return the convolution of a batch of sequences, or of one; `bits` and `seed` are those of `linear`."""
    geometry = Geometry(single(stride), single(padding), single(dilation), groups)
    return apply_convolution(x, weight, bias, geometry, _engine(weight, groups, bits, seed))


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, engine: Engine) -> Tensor:
    """Return the output of a linear layer with a given engine."""
    return forms.linear(*cast_as_autocast_would(x, weight, bias), engine)


def apply_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, engine: Engine) -> Tensor:
    """Return the output of a convolution with a given engine."""
    return forms.convolution(*cast_as_autocast_would(x, weight, bias), Convolution(geometry), engine)


def _engine(weight: Tensor, groups: int, bits: int | str, seed: int) -> LayerEngine:
    reason = integer.unserved(weight.shape, groups) or integer.unserved_here(weight)
    return make_engine(treated_by(bits), reason, weight.device, seed)
