"""Facts about layers: which modules are treated, why one is not, the shape of a weight, and its multiply-adds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.lazy import LazyModuleMixin

from ..ops.contracts import FLOAT_TYPES
from .backends.choice import Kind, unserved, unserved_here
from .site import CPU

KINDS: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""The classes whose products we know; the Conv1D of transformers is known by its name."""
ON_META = "its weight is on the meta device, where nothing is computed"


def kind_of(module: nn.Module) -> type[nn.Module] | None:
    """Return the class whose forward, and whose two products in the backward, we know; None for any other module."""
    return kind_of_class(type(module))


def kind_of_class(found: type) -> type[nn.Module] | None:
    """Return the kind of a class of modules, by the classes that it inherits from."""
    for base in found.__mro__:
        if base in KINDS or (base.__name__ == "Conv1D" and base.__module__.startswith("transformers.")):
            return base
    return None


def reason_not_supported(module: nn.Module) -> str | None:
    """Return why a layer of a supported kind cannot be treated; None if it can."""
    kind = kind_of(module)
    if kind is None:
        return f"{type(module).__name__} is not a linear layer or convolution"
    if isinstance(module, LazyModuleMixin):
        return "it is not initialised yet; run one forward first"
    if any(parameter.is_inference() for parameter in module.parameters()):
        return "its weight was made under torch.inference_mode() and cannot be trained"
    for method in ("forward", "_conv_forward"):
        if method in vars(module) or getattr(type(module), method, None) is not getattr(kind, method, None):
            return f"{type(module).__name__} has its own {method}, which may do anything"
    weight = _own_weight(module)
    if weight is None:
        return "it has no parameters of its own; under FullyShardedDataParallel attach first, then wrap"
    if type(weight).__name__ == "DTensor" and not getattr(module, "_is_fsdp_managed_module", False):
        return "its weight is distributed over processes; fully_shard and DistributedDataParallel are supported"
    return _reason_of_type(weight)


def reason_converted(module: nn.Module) -> str | None:
    """Return why a layer that was supported when it was attached is not treated now; None if it is.

    It may have been converted since, by `model.double()` or in any other way.
    """
    weight = _own_weight(module)
    if weight is None:
        return None
    if isinstance(weight, Tensor) and weight.is_meta:
        return ON_META
    return _reason_of_type(weight)


def _own_weight(module: nn.Module) -> Any:
    """Return the weight of a layer, or a parameter that it is computed from; None where it has neither.

    What a weight is computed from has its type, and to look at the weight itself may change buffers.
    """
    weight = module._parameters.get("weight")
    return next(module.parameters(), None) if weight is None else weight


def _reason_of_type(weight: Any) -> str | None:
    """Return why a layer with a weight of this type is not treated; None if it is."""
    if isinstance(weight, Tensor) and weight.dtype in FLOAT_TYPES:
        return None
    found = getattr(weight, "dtype", type(weight).__name__)
    return f"its weight is {found}, and float32, bfloat16 and float16 are treated"


def reason_not_channels_last(model: nn.Module) -> str | None:
    """Return why images may not lie channels-last in a model; None if they may.

    On CPUs without AVX-512, PyTorch's channels-last convolutions of one pixel with a stride write beyond their memory
    where they have fewer than 8 input channels (oneDNN, seen with torch 2.13).
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        return None
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        channels = module.in_channels // module.groups
        if channels < 8 and set(module.kernel_size) == {1} != set(module.stride):
            each = " in each group" * (module.groups > 1)
            return (
                f"layer {name!r} is a convolution of one pixel with a stride and {channels} input channels{each}, for "
                "which PyTorch's channels-last kernels write beyond their memory on this CPU; 8 channels are safe"
            )
    return None


def reason_unserved(module: nn.Module, kind: Kind) -> str | None:
    """Return why a layer has no sparse, or no integer, products; None if it has."""
    like = next(module.parameters(), None)
    if like is None:
        return "it has no parameters"
    shape, groups = weight_shape(module), getattr(module, "groups", 1)
    if works_transposed(module):
        shape = shape[::-1]
    reason = unserved(kind, shape, groups, isinstance(module, _ConvTransposeNd))
    # A layer on meta has its device still to come; the operator that multiplies serves any.
    return reason or unserved_here(kind, torch.empty(0, dtype=like.dtype, device=CPU) if like.is_meta else like)


def output_ranges(module: nn.Module) -> Tensor:
    """Return the largest magnitude among the weights of each output, float32 on the CPU."""
    with torch.no_grad():
        weight: Any = module.weight
        weight = weight.t() if works_transposed(module) else weight
        found: Tensor = weight.flatten(1).abs().amax(1).float().cpu()
        return found


def works_transposed(module: nn.Module) -> bool:
    """Return True if a layer's weight is (inputs, outputs): that of the Conv1D of transformers."""
    return not isinstance(module, _ConvNd | nn.Linear)


def weight_shape(module: nn.Module) -> tuple[int, ...]:
    """Return the shape of a layer's weight, without computing one that is computed, as under spectral_norm."""
    weight = module._parameters.get("weight")
    if weight is None and isinstance(module, _ConvNd):
        channels = (module.out_channels, module.in_channels // module.groups)
        if module.transposed:
            channels = (module.in_channels, module.out_channels // module.groups)
        return (*channels, *module.kernel_size)
    return () if weight is None else tuple(weight.shape)


def row_units(module: nn.Module) -> tuple[str, ...]:
    """Return what a layer can leave out of its products: single rows (tokens, pixels), and all rows of a sample.

    >>> row_units(nn.Linear(4, 4)), row_units(nn.Conv2d(4, 4, 1)), row_units(nn.Conv2d(4, 4, 3))
    (('row', 'sample'), ('row', 'sample'), ('sample',))
    """
    if not isinstance(module, _ConvNd):
        return "row", "sample"
    known = isinstance(module.padding, tuple) and isinstance(module, nn.Conv1d | nn.Conv2d)
    plain = known and {*module.kernel_size, *module.stride} == {1} and not any(module.padding) and module.groups == 1
    return ("row", "sample") if plain else ("sample",)


def work_of_element(module: nn.Module) -> float:
    """Return the multiply-adds that one element of a layer's gradient costs in each product, borders not counted.

    >>> work_of_element(nn.Conv2d(16, 32, 3, groups=2))
    72.0
    """
    if isinstance(module, _ConvNd):
        apart = math.prod(module.stride) if module.transposed else 1
        return module.in_channels / module.groups * math.prod(module.kernel_size) / apart
    if isinstance(module, nn.Linear):
        return float(module.in_features)
    weight = module.get_parameter("weight")  # the Conv1D of transformers
    return float(weight.shape[0])


# -- models --


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile and DistributedDataParallel, whose names have no prefix."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def plain_name(name: str) -> str:
    """Return a module's name without the wrapper that torch.compile puts around it."""
    return name.replace("_orig_mod.", "").removesuffix("._orig_mod")


def candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Return linear layers and convolutions by name, supported or not; one that is used twice has several names."""
    named = unwrapped(model).named_modules(remove_duplicate=False)
    return {plain_name(name): module for name, module in named if kind_of(module) is not None}
