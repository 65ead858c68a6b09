"""Which modules of a model are looked at, under which names, and what their two backward products cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..errors import InvalidType, sentence
from ..swapping import unwrapped

FilterFunction = Callable[[nn.Module, str], bool]


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules by the names that the plain model gives them, so that a plan fits before and after compile."""
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    for name, module in unwrapped(model).named_modules():
        if "_orig_mod" not in module._modules:  # the wrapper; the module itself follows
            yield ".".join(part for part in name.split(".") if part != "_orig_mod"), module


def is_product(module: nn.Module) -> bool:
    """Whether the module's backward is two matrix products: Linear, convolutions, and the Conv1D of transformers."""
    return isinstance(module, nn.Linear | _ConvNd) or _is_transformers_conv1d(module)


def multiply_adds(module: nn.Module, x: Tensor | None, output: Tensor) -> int | None:
    """Of one of the two products of this use of the module; the other has as many."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        return output.numel() * int(weight.shape[1])
    if isinstance(module, _ConvTransposeNd):
        return None if x is None else x.numel() * int(weight[0].numel())
    if isinstance(module, _ConvNd):
        return output.numel() * int(weight[0].numel())
    if _is_transformers_conv1d(module):
        return output.numel() * int(weight.shape[0])
    return None


def _is_transformers_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
