"""Tensors that wait: the result of a BatchNorm until its ReLU is known, and the gradient of that ReLU until BatchNorm's.

Each stands for a tensor that is computed when anybody looks at it, by whatever operator of PyTorch.  What came to wait
for it takes it as it is: a ReLU computes BatchNorm, sum and ReLU in one pass, and BatchNorm's backward takes the
gradient before the ReLU together with the mask.  Autograd's graph is the one that PyTorch would have.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.utils._pytree import tree_map

from ..ops.reference.normalization import in_memory, laid_as, where_passes
from ..ops.registry import call

aten = torch.ops.aten
_C: Any = torch._C


class Layer(Protocol):
    """What is known of a BatchNorm from call to call."""

    waits: bool
    """True if its result waits for a ReLU."""
    fused: int
    """Results that a ReLU took."""


class Waiting(Tensor):
    """A tensor that is computed when it is looked at; `plain` gives it."""

    value: Tensor | None

    @staticmethod
    def __new__(cls, like: Tensor, *rest: Any) -> Waiting:
        made: Waiting = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        made.value = None
        return made

    def compute(self) -> Tensor:
        """Return the tensor that this one stands for."""
        raise NotImplementedError

    def plain(self) -> Tensor:
        """Return the tensor, computed at the first call."""
        if self.value is None:
            self.value = self.compute()
        return self.value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (func in RELU or func in RELU_IN_PLACE) and isinstance(args[0], Normalized) and args[0].value is None:
            in_place = func in RELU_IN_PLACE or (kwargs or {}).get("inplace", len(args) > 1 and args[1])
            return _rectified(args[0], in_place)
        with _C.DisableTorchFunctionSubclass():
            if func in _OF_MEMORY:
                args = tree_map(lambda one: aten.alias(one) if isinstance(one, Waiting) else one, args)
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SUMS and (taken := _sum(func, *args, **(kwargs or {}))) is not None:
            return taken
        owners: dict[int, Waiting] = {}

        def plain(one: Any) -> Any:
            if not isinstance(one, Waiting):
                return one
            owners[id(one.plain())] = one
            return one.plain()

        args, kwargs = tree_map(plain, args), tree_map(plain, kwargs or {})
        # What an operator in place returns is the tensor that was given.
        return tree_map(lambda one: owners.get(id(one), one), func(*args, **kwargs))


class Source:
    """What a BatchNorm computes its result from; it must not change until then."""

    def __init__(self, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
        self.arguments = (x, mean, inverse, weight, bias)
        self.versions = _versions(self.arguments)

    def result(self, residual: Tensor | None, relu: bool) -> tuple[Tensor, Tensor]:
        """Return the result, and the mask of the ReLU."""
        if _versions(self.arguments) != self.versions:
            raise _changed("the input or a parameter of a BatchNorm")
        y, mask = call("batch_normalize", *(one if one is None else one.detach() for one in self.arguments), residual, relu)
        return y, mask


class Normalized(Waiting):
    """The result of a BatchNorm, or the sum of it and another tensor, which waits for a ReLU."""

    def __init__(self, like: Tensor, source: Source, layer: Layer, residual: Tensor | None = None) -> None:
        self.source, self.layer = source, layer
        self.residual, self.version = residual, -1 if residual is None else residual._version

    def compute(self) -> Tensor:
        """Return the result without a ReLU; from now on the layer does not wait for one."""
        self.layer.waits = False
        return self._result(relu=False)[0]

    def rectified(self) -> tuple[Tensor, Tensor]:
        """Return the result behind a ReLU, and where a gradient passes it."""
        self.layer.fused += 1
        return self._result(relu=True)

    def add(self, residual: Tensor) -> None:
        """Stand for the sum from now on."""
        self.residual, self.version = residual, residual._version

    def _result(self, relu: bool) -> tuple[Tensor, Tensor]:
        if self.residual is not None and self.residual._version != self.version:
            raise _changed("a tensor that was added to the result of a BatchNorm")
        return self.source.result(self.residual, relu)


class Masked(Waiting):
    """The gradient behind a ReLU, for the BatchNorm before it; `shared` if something else wants it as well."""

    def __init__(self, like: Tensor, g: Tensor, mask: Tensor, shared: bool) -> None:
        self.g, self.mask, self.shared = g, mask, shared

    def compute(self) -> Tensor:
        """Return the gradient where it passes, else 0."""
        layout = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)
        return torch.where(where_passes(self.mask, layout), laid_as(layout, self.g), 0)


def _versions(tensors: tuple[Tensor | None, ...]) -> tuple[int, ...]:
    return tuple(-1 if one is None else one._version for one in tensors)


def _changed(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} has been modified by an inplace operation before the result was used; change a copy of it, or train "
        "without lograd.integer.normalization."
    )


def _sum(func: Any, x: Any, other: Any, *, alpha: Any = 1) -> Tensor | None:
    """A sum that still waits; None where it cannot."""
    if func is aten.add.Tensor and not _joins(x) and _joins(other):
        x, other = other, x
    if not _joins(x) or not isinstance(other, Tensor) or other is x or alpha != 1:
        return None
    if other.shape != x.shape or other.dtype != x.dtype or other.device != x.device:
        return None
    residual = other.plain() if isinstance(other, Waiting) else other
    if type(residual) not in (Tensor, torch.nn.Parameter):
        return None
    residual = residual.detach()
    if func is aten.add.Tensor:
        return Normalized(x, x.source, x.layer, residual)
    x.add(residual)
    return x


def _joins(x: Any) -> bool:
    return isinstance(x, Normalized) and x.value is None and x.residual is None


def _rectified(y: Normalized, in_place: bool) -> Tensor:
    if not in_place:
        result: Tensor = _Rectify.apply(y)
        return result
    # The name that was overwritten and the result are the same memory; the result is a plain tensor for what follows.
    plain: Tensor = aten.alias(_RectifyInPlace.apply(y))
    return plain


def _masked(context: Any, g: Tensor) -> Tensor:
    """The gradient of a ReLU; one that is to be differentiated again is computed by what autograd knows."""
    (mask,) = context.saved_tensors
    if torch.is_grad_enabled():
        like = torch.empty_strided(g.shape, context.strides, dtype=g.dtype, device=g.device)
        return g * where_passes(mask, like)
    like = g.new_empty(0).set_(g.untyped_storage(), 0, g.shape, context.strides) if False else None
    return Masked(_Like(g, context.strides), g, mask, context.shared)


class _Like:
    """The shape, strides and type of a tensor."""


class _Rectify(Function):
    """BatchNorm, sum and ReLU in one pass."""

    @staticmethod
    def forward(context: Any, y: Normalized) -> Tensor:
        result, mask = y.rectified()
        _remember(context, y, mask)
        return result

    backward = staticmethod(_masked)


class _RectifyInPlace(Function):
    """As `_Rectify`, written over BatchNorm's result."""

    @staticmethod
    def forward(context: Any, y: Normalized) -> Tensor:
        y.value, mask = y.rectified()
        _remember(context, y, mask)
        context.mark_dirty(y)
        return y

    backward = staticmethod(_masked)
