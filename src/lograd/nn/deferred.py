"""Tensors that wait: the result of a BatchNorm for its ReLU, and the gradient of that ReLU for BatchNorm's backward.

Each stands for a tensor that is computed as soon as any operator of PyTorch looks at it.  What it waits for takes it as
it is: a ReLU computes BatchNorm, sum and ReLU in one pass, and BatchNorm's backward takes the gradient before the ReLU
together with its mask.  Autograd's graph has the nodes that it would have without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from ..ops.normalization import like_in_memory, where_passes
from ..ops.registry import call

aten: Any = torch.ops.aten
_C: Any = torch._C
_make: Any = Tensor._make_wrapper_subclass
_opaque: Any = torch.compiler.disable  # a compiled part of a model is not to follow what happens here


class Layer(Protocol):
    """A BatchNorm layer, and what is known of it from call to call."""

    def fused(self) -> None:
        """Count a result that a ReLU took."""

    def read(self, reader: str) -> None:
        """Note a result that something else took."""


class Waiting(Tensor):
    """A tensor that is computed when it is looked at."""

    value: Tensor | None
    """The tensor, once it is computed."""
    sources: tuple[str, ...] = ()
    """Attributes that it is computed from, which nothing needs afterwards."""

    @staticmethod
    def __new__(cls, like: Tensor, strides: Sequence[int], *rest: Any) -> Waiting:
        made: Waiting = _make(cls, like.shape, strides=strides, dtype=like.dtype, device=like.device)
        made.value = None
        return made

    def compute(self, reader: str) -> Tensor:
        """Return the tensor that this one stands for; reader names what looks at it."""
        raise NotImplementedError

    def plain(self, reader: str) -> Tensor:
        """Return the tensor, computed at the first call, for what has the name of reader."""
        return self.become(self.compute(reader)) if self.value is None else self.value

    def become(self, value: Tensor) -> Tensor:
        """Stand for a tensor that is computed, hold no other, and return it."""
        self.value = value
        for name in self.sources:
            setattr(self, name, None)
        return value

    @classmethod
    @_opaque  # type: ignore[untyped-decorator]
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        with _C.DisableTorchFunctionSubclass():
            if func in RELU and args and isinstance(args[0], Normalized) and args[0].value is None:
                return rectified(args[0], in_place=RELU[func] or bool((*args[1:], *options.values(), False)[0]))
            if func in OF_MEMORY:
                args, options = without_waiting((args, options), func.__name__.strip("_"))
            return func(*args, **options)

    @classmethod
    @_opaque  # type: ignore[untyped-decorator]
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SUMS and (taken := _sum(func is SUMS[1], *args, **(kwargs or {}))) is not None:
            return taken
        owners: dict[int, Waiting] = {}

        def plain(one: Any) -> Any:
            if not isinstance(one, Waiting):
                return one
            value = one.plain(func.overloadpacket.__name__)
            owners[id(value)] = one
            return value

        args, kwargs = tree_map(plain, args), tree_map(plain, kwargs or {})
        # What an operator in place returns is the tensor that it was given.
        return tree_map(lambda one: owners.get(id(one), one), func(*args, **kwargs))


class Source:
    """All that BatchNorm's result follows from: x must not change until it is computed, weight and bias may."""

    def __init__(self, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
        self.x, self.version = x.detach(), x._version
        # An optimizer may change weight and bias while a result still waits, say one that a hook has stored.
        self.numbers = mean, inverse, _copy_of(weight), _copy_of(bias)

    def result(self, residual: Tensor | None, relu: bool) -> tuple[Tensor, Tensor]:
        """Return the result, and the mask of the ReLU."""
        if self.x._version != self.version:
            raise _changed("the input of a BatchNorm")
        y, mask = call("batch_normalize", self.x, *self.numbers, residual, relu)
        return y, mask


def _copy_of(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach().clone()


class Normalized(Waiting):
    """The result of a BatchNorm, or the sum of it and another tensor, which waits for a ReLU."""

    sources = ("source", "residual", "watched")

    def __init__(self, like: Tensor, strides: Sequence[int], source: Source, layer: Layer) -> None:
        self.source, self.layer = source, layer
        self.residual: Tensor | None = None
        self.watched: list[tuple[Tensor, int]] = []
        """Tensors of the sum that must not change, with their versions."""

    def compute(self, reader: str) -> Tensor:
        """Return the result without a ReLU."""
        self.layer.read(reader)
        return self._result(relu=False)[0]

    def rectified(self) -> tuple[Tensor, Tensor]:
        """Return the result behind a ReLU, and where a gradient passes it."""
        self.layer.fused()
        return self._result(relu=True)

    def joined_by(self, other: Tensor, residual: Tensor) -> Normalized:
        """Stand for the sum with another tensor from now on, of which residual is the plain one."""
        self.residual = residual
        # Operators in place on a tensor that waited move its own version; those on views of it, that of the plain one.
        self.watched = [(one, one._version) for one in (other, residual)]
        return self

    def _result(self, relu: bool) -> tuple[Tensor, Tensor]:
        if any(one._version != version for one, version in self.watched):
            raise _changed("a tensor that was added to the result of a BatchNorm")
        return self.source.result(self.residual, relu)


class Masked(Waiting):
    """The gradient behind a ReLU, which waits for the backward of the BatchNorm."""

    sources = ("g", "mask")

    def __init__(self, g: Tensor, strides: Sequence[int], mask: Tensor, shared: bool) -> None:
        self.g, self.mask = g, mask
        self.shared = shared
        """True if it is the gradient of another tensor, too."""

    def compute(self, reader: str) -> Tensor:
        """Return the gradient where it passes, else 0."""
        layout = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)
        return torch.where(where_passes(self.mask, layout), like_in_memory(layout, self.g), 0)


def _changed(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} has been modified by an inplace operation before that result was used; modify a copy of it, or remove "
        "lograd.nn.normalization."
    )


def _joins(x: Any) -> bool:
    return isinstance(x, Normalized) and x.value is None and x.residual is None


def _sum(in_place: bool, x: Any, other: Any, *, alpha: Any = 1) -> Tensor | None:
    """A sum that still waits; None where it cannot."""
    if not in_place and not _joins(x):
        x, other = other, x
    if not _joins(x) or not isinstance(other, Tensor) or other is x or alpha != 1:
        return None
    if other.shape != x.shape or other.dtype != x.dtype or other.device != x.device:
        return None
    residual = other.plain("add") if isinstance(other, Waiting) else other
    if type(residual) not in (Tensor, torch.nn.Parameter) or residual.is_inference():
        return None
    made = x if in_place else Normalized(x, x.stride(), x.source, x.layer)
    return made.joined_by(other, residual)


def rectified(y: Normalized, in_place: bool) -> Tensor:
    """Return the ReLU of a result that waits, in one pass."""
    # In place, y and what is returned are the same memory; what follows gets a plain tensor.
    result: Tensor = aliased(_Rectify.apply(y, in_place), "relu")  # type: ignore[no-untyped-call]
    return result


def aliased(one: Any, reader: str) -> Any:
    """Return a plain tensor with the memory and the history of one that waits; anything else as it is."""
    if not isinstance(one, Waiting):
        return one
    one.plain(reader)
    return aten.alias.default(one)


def without_waiting(results: Any, reader: str) -> Any:
    """Return results, in whatever lists or dictionaries, with plain tensors in the place of those that wait."""
    return tree_map(lambda one: aliased(one, reader), results)


class _Rectify(torch.autograd.Function):
    """BatchNorm, sum and ReLU in one pass; on request written over BatchNorm's result."""

    @staticmethod
    def forward(context: Any, y: Normalized, in_place: bool) -> Tensor:
        result, mask = y.rectified()
        context.save_for_backward(mask)
        context.strides, context.shared = y.stride(), y.residual is not None
        if not in_place:
            return result
        context.mark_dirty(y)
        y.become(result)
        return y

    @staticmethod
    def backward(context: Any, g: Tensor) -> tuple[Tensor, None]:
        (mask,) = context.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            like = torch.empty_strided(g.shape, context.strides, dtype=g.dtype, device=g.device)
            return g * where_passes(mask, like), None
        g = g.plain("relu") if isinstance(g, Waiting) else g
        return Masked(g, context.strides, mask, context.shared), None


class Normalize(torch.autograd.Function):
    """A BatchNorm in training; with `waits` its result waits for a ReLU."""

    lograd_normalized = (0,)
    """The place of x among the saved tensors, which `Plan.saved` may round."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        layer: Layer,
        strides: Sequence[int],
        waits: bool,
    ) -> Tensor:
        """Return the result."""
        context.save_for_backward(x, mean, inverse, weight)
        context.epsilon = epsilon
        source = Source(x, mean, inverse, weight, bias)
        if waits and any(context.needs_input_grad):
            return Normalized(x, strides, source, layer)
        return source.result(None, relu=False)[0]

    @staticmethod
    def backward(context: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        x, mean, inverse, weight = context.saved_tensors
        needs = context.needs_input_grad
        if torch.is_grad_enabled():  # to be differentiated again: PyTorch knows how
            d_x, d_weight, d_bias = aten.native_batch_norm_backward(
                g, x, weight, None, None, mean, inverse, True, context.epsilon, [needs[0], needs[3], needs[4]]
            )
            return d_x, None, None, d_weight, d_bias, None, None, None, None
        if isinstance(g, Masked) and g.value is None and g.stride() == x.stride():
            d_x, d_weight, d_bias, masked = call(
                "batch_normalize_backward", g.g, x, mean, inverse, weight, g.mask, g.shared
            )
            if g.shared:
                g.become(masked)
        else:
            g = g.plain("batch_norm") if isinstance(g, Waiting) else g
            d_x, d_weight, d_bias, _ = call("batch_normalize_backward", g, x, mean, inverse, weight, None, False)
        return d_x, None, None, d_weight if needs[3] else None, d_bias if needs[4] else None, None, None, None, None


RELU = {F.relu: False, torch.relu: False, Tensor.relu: False, torch.relu_: True, Tensor.relu_: True}
"""Functions that a result may wait for; True for those that write over it, which F.relu takes as an argument."""
SUMS = (aten.add.Tensor, aten.add_.Tensor)
OF_MEMORY = {
    getattr(Tensor, name)
    for name in (
        "__array__", "__deepcopy__", "__dlpack__", "__reduce_ex__", "__repr__", "data_ptr", "numpy", "storage",
        "tolist", "untyped_storage",
    )
}  # fmt: skip
"""Methods that see the memory itself."""
