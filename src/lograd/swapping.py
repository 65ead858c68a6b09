"""Layers whose class was swapped for a subclass that lets a catcher meet the gradient; `restore` undoes it.

Parameters, buffers, hooks and names stay as they are: only `__class__` changes, and one attribute is added that is
neither a parameter nor a buffer.  Copies and pickles of a swapped layer are plain layers.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from . import gradients
from .gradients import Catcher, Geometry
from .ops.library import transforming

ATTRIBUTE = "_lograd_catcher"


def reason_not_supported(module: nn.Module) -> str | None:
    """Why a layer of a supported kind cannot be swapped; None if it can."""
    kind = kind_of(module)
    if kind is None:
        return f"{type(module).__name__} is not a linear layer or convolution"
    if isinstance(module, LazyModuleMixin):
        return "it is not initialised yet; run one forward first"
    for method in ("forward", "_conv_forward"):
        if method in vars(module) or getattr(type(module), method, None) is not getattr(kind, method, None):
            return f"{type(module).__name__} has its own {method}, which may do anything"
    weight = module._parameters.get("weight")
    if weight is None:  # a computed one; what it is computed from has its type, and to look at it may change buffers
        weight = next(module.parameters(), None)
    if not isinstance(weight, Tensor) or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        kind_of_weight = getattr(weight, "dtype", type(weight).__name__)
        return f"its weight is {kind_of_weight}, and float32, bfloat16 and float16 are treated"
    return None


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile and DistributedDataParallel, whose names have no prefix."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def plain_name(name: str) -> str:
    """A module's name without the wrapper that torch.compile puts around it."""
    return name.replace("_orig_mod.", "").removesuffix("._orig_mod")


def candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and convolutions by name, supported or not; one that is used twice has several names."""
    named = unwrapped(model).named_modules(remove_duplicate=False)
    return {plain_name(name): module for name, module in named if kind_of(module) is not None}


def catcher_of(module: nn.Module) -> Catcher | None:
    return vars(module).get(ATTRIBUTE)


def is_swapped(module: nn.Module) -> bool:
    """Whether the class is the one that `swap` gave; others may have put their own on top of it."""
    return type(module) in _made


def swap(module: nn.Module, catcher: Catcher) -> None:
    """Let the catcher meet the gradient of the module's output from the next forward on."""
    kind: Any = kind_of(module)
    plain: Any = type(module)
    assert kind is not None, "ask reason_not_supported first"
    vars(module)[ATTRIBUTE] = catcher
    module.__class__ = _swapped_class(plain, kind)


def restore(module: nn.Module) -> None:
    """The module as it was before `swap`."""
    module.__class__ = _plain_class(type(module))
    del vars(module)[ATTRIBUTE]


class _Swapped:
    """What all swapped classes share: a copy is plain."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        build, arguments, *rest = _plain_twin(self, "__reduce_ex__")(protocol)
        if build is copyreg.__newobj__ and len(arguments) == 1:  # type: ignore[attr-defined]
            # pickle holds that way to the object's own class; the older way may name another.
            build, arguments = copyreg._reconstructor, (*arguments, object, None)  # type: ignore[attr-defined]
        return build, arguments, *rest


class _Linear(_Swapped):
    def forward(self: Any, input: Tensor) -> Tensor:
        if not _records(self, input):
            result: Tensor = super().forward(input)  # type: ignore[misc]
            return result
        return gradients.linear(*_cast(input, self.weight, self.bias), getattr(self, ATTRIBUTE))


class _Conv1D(_Swapped):
    def forward(self: Any, x: Tensor) -> Tensor:
        if not _records(self, x):
            result: Tensor = super().forward(x)  # type: ignore[misc]
            return result
        return gradients.addmm(*_cast(x, self.weight, self.bias), getattr(self, ATTRIBUTE))


class _Convolution(_Swapped):
    def forward(self: Any, input: Tensor) -> Tensor:
        if not _records(self, input):
            result: Tensor = super().forward(input)  # type: ignore[misc]
            return result
        padding = self.padding
        if self.padding_mode != "zeros":  # before the cast, as torch does it: some modes pad in float32 only
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,) * len(self.stride)
        x, weight, bias = _cast(input, self.weight, self.bias)
        if isinstance(padding, str):
            extra, padding = _padding_of(self)
            x = F.pad(x, extra) if any(extra) else x
        geometry = Geometry(self.stride, padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        return gradients.convolution(x, weight, bias, geometry, getattr(self, ATTRIBUTE))


class _Transposed(_Swapped):
    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if not _records(self, input):
            result: Tensor = super().forward(input, output_size)  # type: ignore[misc]
            return result
        spatial = len(self.stride)
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, spatial, self.dilation
        )
        geometry = Geometry(self.stride, self.padding, self.dilation, True, tuple(output_padding), self.groups)
        return gradients.convolution(*_cast(input, self.weight, self.bias), geometry, getattr(self, ATTRIBUTE))


_BEHAVIOUR: dict[type[nn.Module], type[_Swapped]] = {
    nn.Linear: _Linear,
    nn.Conv1d: _Convolution,
    nn.Conv2d: _Convolution,
    nn.Conv3d: _Convolution,
    nn.ConvTranspose1d: _Transposed,
    nn.ConvTranspose2d: _Transposed,
    nn.ConvTranspose3d: _Transposed,
}


def kind_of(module: nn.Module) -> type[nn.Module] | None:
    """The class whose forward, and whose two products in the backward, we know; None for any other module."""
    for base in type(module).__mro__:
        if base in _BEHAVIOUR or (base.__name__ == "Conv1D" and base.__module__.startswith("transformers.")):
            return base
    return None


_made: set[type] = set()
"""The classes that `swap` gives."""


@cache
def _swapped_class(plain: Any, kind: Any) -> type[nn.Module]:
    body: dict[str, Any] = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
    if hasattr(plain, "__deepcopy__"):
        body["__deepcopy__"] = lambda self, memo: _plain_twin(self, "__deepcopy__")(memo)
    made = type(plain.__name__, (_BEHAVIOUR.get(kind, _Conv1D), plain), body)
    _made.add(made)
    return made


def _plain_class(swapped: Any) -> Any:
    return swapped.__mro__[swapped.__mro__.index(_Swapped) + 1]


def _plain_twin(module: Any, method: str) -> Callable[[Any], Any]:
    """A method of the plain layer with the same attributes, for whoever copies or pickles."""
    plain = _plain_class(type(module))
    twin = plain.__new__(plain)
    vars(twin).update({name: value for name, value in vars(module).items() if name != ATTRIBUTE})
    vars(module)[ATTRIBUTE].copied()
    bound: Callable[[Any], Any] = getattr(twin, method)
    return bound


def _records(module: Any, x: Tensor) -> bool:
    """Whether a gradient will come back."""
    if not torch.is_grad_enabled() or x.requires_grad or transforming():  # a tensor under vmap hides that it needs one
        return torch.is_grad_enabled()
    if "weight" not in module._parameters:  # computed, and to compute it twice may change buffers, as spectral_norm's
        return any(parameter.requires_grad for parameter in module.parameters())
    return bool(module.weight.requires_grad or (module.bias is not None and module.bias.requires_grad))


def _cast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any, Any]:
    """The tensors in the type that autocast would give them."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor | None) -> Tensor | None:
        eligible = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if tensor is not None and eligible else tensor

    return cast(x), cast(weight), cast(bias)


def _padding_of(module: Any) -> tuple[list[int], tuple[int, ...]]:
    """The padding "same" or "valid": zeros to add on the right, as F.pad wants them, and the rest for both sides."""
    if module.padding == "valid":
        return [], (0,) * len(module.stride)
    total = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    extra = [amount for t in reversed(total) for amount in (0, t % 2)]
    return extra, tuple(t // 2 for t in total)
