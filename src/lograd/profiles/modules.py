"""Which modules of a model are looked at, under which names, and what their two backward products cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..engine.layers import kind_of, plain_name, unwrapped
from ..errors import InvalidType, sentence
from ..ops.library import FLOAT_TYPES

FilterFunction = Callable[[nn.Module, str], bool]


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules by the names that the plain model gives them, so that a plan fits before and after compile."""
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    for name, module in unwrapped(model).named_modules():
        if "_orig_mod" not in module._modules:  # the wrapper; the module itself follows
            yield plain_name(name), module


def is_product(module: nn.Module) -> bool:
    """Whether the module's backward is two matrix products: Linear, convolutions, and the Conv1D of transformers."""
    return kind_of(module) is not None


def weight_of(module: nn.Module) -> nn.Parameter | None:
    """The module's own weight.

    None for a weight that is computed, as under spectral_norm: to look at it would be to compute it once more, and some
    of these computations change buffers.
    """
    return module._parameters.get("weight")


def convolution_of(module: nn.Module) -> dict[str, Any]:
    """Groups of a convolution and whether it is transposed; empty for any other module."""
    if not isinstance(module, _ConvNd):
        return {}
    return {"groups": int(module.groups), "transposed": isinstance(module, _ConvTransposeNd)}


def on_gradient(tensor: Any, act: Callable[[Tensor], Tensor | None]) -> Any:
    """A hook that is called with the gradient of a tensor, and may return another."""
    return tensor.register_hook(act)


def countable(gradient: Tensor) -> Tensor:
    """The gradient as operators take it: float64 becomes float32."""
    gradient = gradient.detach()
    return gradient if gradient.dtype in FLOAT_TYPES else gradient.float()


def multiply_adds(module: Any, x: Tensor | None, output: Tensor) -> int | None:
    """Multiply-adds of each of the three products in this use of the module; None for one that is no product."""
    if isinstance(module, nn.Linear):
        return output.numel() * module.in_features
    if isinstance(module, _ConvTransposeNd):
        return None if x is None else x.numel() * (module.out_channels // module.groups) * math.prod(module.kernel_size)
    if isinstance(module, _ConvNd):
        return output.numel() * (module.in_channels // module.groups) * math.prod(module.kernel_size)
    if is_product(module):  # the Conv1D of transformers, a linear layer with its weight the other way round
        return output.numel() * int(module.weight.shape[0])
    return None


class Flops(NamedTuple):
    """Operations of the products of one use of a module, two for each multiply-add; None where it is no product."""

    forward: int | None = None
    input: int | None = None
    """For dX; 0 where the input needs no gradient."""
    weight: int | None = None
    """For dW; 0 where the weight needs none."""

    def plus(self, other: Flops) -> Flops:
        """The operations of both uses."""
        pairs = zip(self, other, strict=True)
        return Flops(*(mine if more is None else more if mine is None else mine + more for mine, more in pairs))


def flops_of(module: nn.Module, x: Any, output: Tensor) -> Flops:
    """Operations of the products in this use of the module."""
    count = multiply_adds(module, x if isinstance(x, Tensor) else None, output)
    if count is None:
        return Flops()
    input_needs = isinstance(x, Tensor) and x.requires_grad
    own = weight_of(module)
    weight_needs = any(one.requires_grad for one in ([own] if own is not None else module.parameters()))
    return Flops(2 * count, 2 * count * input_needs, 2 * count * weight_needs)
