"""The layers of a model as a profile sees them: names, weights, geometry, and operations of their products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..engine.layers import kind_of, plain_name, unwrapped
from ..errors import InvalidType, sentence
from ..ops.contracts import FLOAT_TYPES

FilterFunction = Callable[[nn.Module, str], bool]


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules with their names in the plain model, so that a plan fits before and after `torch.compile`."""
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    for name, module in unwrapped(model).named_modules():
        if "_orig_mod" not in module._modules:  # skips the wrapper of torch.compile; the module itself follows
            yield plain_name(name), module


def is_layer(module: nn.Module) -> bool:
    """Return True for layers: Linear, convolutions, and the Conv1D of the transformers library."""
    return kind_of(module) is not None


def weight_of(module: nn.Module) -> nn.Parameter | None:
    """Return the module's weight if it is a plain parameter, else None.

    A weight that is computed, as under spectral_norm, is not touched: reading it would compute it once more, and some
    of these computations change buffers.
    """
    return module._parameters.get("weight")


def convolution_of(module: nn.Module) -> dict[str, Any]:
    """Return the fields `groups` and `transposed` of a convolution; empty for any other module."""
    if not isinstance(module, _ConvNd):
        return {}
    return {"groups": int(module.groups), "transposed": isinstance(module, _ConvTransposeNd)}


def on_gradient(tensor: Any, act: Callable[[Tensor], Tensor | None]) -> Any:
    """Call `act` with the gradient of a tensor, which it may replace; return the handle that removes the hook."""
    return tensor.register_hook(act)


def countable(gradient: Tensor) -> Tensor:
    """Return the gradient in a type that the operators take: float64 becomes float32."""
    gradient = gradient.detach()
    return gradient if gradient.dtype in FLOAT_TYPES else gradient.float()


def multiply_adds(module: Any, x: Tensor | None, output: Tensor) -> int | None:
    """Return the multiply-adds of each of the three products in one call of a layer; None for any other module."""
    if isinstance(module, nn.Linear):
        return output.numel() * module.in_features
    if isinstance(module, _ConvTransposeNd):
        return None if x is None else x.numel() * (module.out_channels // module.groups) * math.prod(module.kernel_size)
    if isinstance(module, _ConvNd):
        return output.numel() * (module.in_channels // module.groups) * math.prod(module.kernel_size)
    if is_layer(module):  # Conv1D of transformers: a linear layer whose weight is transposed
        return output.numel() * int(module.weight.shape[0])
    return None


class Flops(NamedTuple):
    """Operations of the three products in one call of a layer, two for each multiply-add; None for other modules."""

    forward: int | None = None
    input: int | None = None
    """For dX; 0 where the input needs no gradient."""
    weight: int | None = None
    """For dW; 0 where the weight needs none."""

    def plus(self, other: Flops) -> Flops:
        """Return the operations of two calls together."""
        pairs = zip(self, other, strict=True)
        return Flops(*(mine if more is None else more if mine is None else mine + more for mine, more in pairs))


def flops_of(module: nn.Module, x: Any, output: Tensor) -> Flops:
    """Return the operations of the products in one call of a module.

    Args:
        x: the first argument of the call.
        output: its result.
    """
    count = multiply_adds(module, x if isinstance(x, Tensor) else None, output)
    if count is None:
        return Flops()
    input_needs = isinstance(x, Tensor) and x.requires_grad
    own = weight_of(module)
    weight_needs = any(one.requires_grad for one in ([own] if own is not None else module.parameters()))
    return Flops(2 * count, 2 * count * input_needs, 2 * count * weight_needs)
