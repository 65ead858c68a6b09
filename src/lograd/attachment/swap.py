"""Layers whose class was swapped for a subclass that lets an engine meet the gradient; `restore` undoes it.

Parameters, buffers, hooks and names stay as they are: only `__class__` changes, and one attribute is added that is
neither a parameter nor a buffer.  Copies and pickles of a swapped layer are plain layers.
"""

from __future__ import annotations

import copyreg
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..engine import autograd
from ..engine.forms import ConvolutionForm, cast_as_autocast_would
from ..engine.layer import LayerEngine
from ..engine.layers import kind_of_class
from ..errors import InvalidValue
from ..ops.geometry import Geometry
from ..ops.registry import transforming

ATTRIBUTE = "_lograd_engine"


def engine_of(module: nn.Module) -> LayerEngine | None:
    """Return the engine of an attached layer; None for a plain one."""
    return vars(module).get(ATTRIBUTE)


def swap(module: nn.Module, engine: LayerEngine) -> None:
    """Let the engine meet the gradient of the module's output from the next forward on.

    Its class goes below that of a parametrization, which torch takes off from the top.
    """
    plain = type(module)
    if any(name in vars(plain) for name in getattr(module, "parametrizations", ())):
        plain = plain.__bases__[0]
    vars(module)[ATTRIBUTE] = engine
    module.__class__ = _rebased(type(module), plain, _swapped_class(plain))


def restore(module: nn.Module) -> None:
    """Undo `swap`; classes that others have put on top of ours since stay."""
    module.__class__ = _restored_class(type(module))
    del vars(module)[ATTRIBUTE]


def reason_not_restored(module: nn.Module) -> str | None:
    """Return why a class that others put on top of ours cannot go on top of the plain one; None if it can."""
    ours = _swapped_base(type(module))
    for above in type(module).__mro__:
        if ours is None or above is ours:
            break
        if ours not in above.__mro__:
            continue
        codes = [value.__code__ for value in vars(above).values() if hasattr(value, "__code__")]
        if any("__class__" in code.co_freevars for code in codes):  # it knows itself, and a copy would not
            return f"its class was changed after attach, to {above.__name__}, which calls super()"
    return None


class _Swapped:
    """The base of all swapped classes: a copy is plain, and the engine goes where the parameters go."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        plain = _restored_class(cls)
        made = object.__new__(plain)
        if arguments or options:  # without, it is a copy of a parametrized layer, which gets all attributes at once
            made.__init__(*arguments, **options)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        build, arguments, *rest = _plain_twin(self).__reduce_ex__(protocol)
        if build is copyreg.__newobj__ and len(arguments) == 1:  # type: ignore[attr-defined]
            # pickle holds that way to the object's own class; the older way may name another.
            build, arguments = copyreg._reconstructor, (*arguments, object, None)  # type: ignore[attr-defined]
        return build, arguments, *rest

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which would put whatever is returned here in the layer's place in the model."""
        raise InvalidValue(
            "torch.jit.script cannot read an attached layer; script copy.deepcopy(model), which is plain, or call "
            "handle.remove() first."
        )

    def _replicate_for_data_parallel(self: Any) -> Any:
        replica: Any = super()._replicate_for_data_parallel()  # type: ignore[misc]
        replica.__class__ = type(self)
        return replica

    def _apply(self: Any, *arguments: Any, **options: Any) -> Any:
        """Move parameters to another device or type, and the engine with them."""
        result: Any = super()._apply(*arguments, **options)  # type: ignore[misc]
        engine, parameter = engine_of(self), next(self.parameters(), None)
        if engine is not None and parameter is not None:
            engine.converted(parameter)
        return result


class _Linear(_Swapped):
    def forward(self: Any, input: Tensor) -> Tensor:
        if not _records(self, input):
            result: Tensor = super().forward(input)  # type: ignore[misc]
            return result
        return autograd.linear(*cast_as_autocast_would(input, self.weight, self.bias), getattr(self, ATTRIBUTE))


class _Conv1D(_Swapped):
    def forward(self: Any, x: Tensor) -> Tensor:
        if not _records(self, x):
            result: Tensor = super().forward(x)  # type: ignore[misc]
            return result
        return autograd.addmm(*cast_as_autocast_would(x, self.weight, self.bias), getattr(self, ATTRIBUTE))


class _ConvolutionForm(_Swapped):
    def forward(self: Any, input: Tensor) -> Tensor:
        if not _records(self, input):
            result: Tensor = super().forward(input)  # type: ignore[misc]
            return result
        padding = self.padding
        if self.padding_mode != "zeros":  # before the cast, as torch does it: some modes pad in float32 only
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,) * len(self.stride)
        x, weight, bias = cast_as_autocast_would(input, self.weight, self.bias)
        if isinstance(padding, str):
            extra, padding = _padding_of(self)
            x = F.pad(x, extra) if any(extra) else x
        form = ConvolutionForm(Geometry(self.stride, padding, self.dilation, self.groups))
        return autograd.convolution(x, weight, bias, form, getattr(self, ATTRIBUTE))


class _Transposed(_Swapped):
    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if not _records(self, input):
            result: Tensor = super().forward(input, output_size)  # type: ignore[misc]
            return result
        spatial = len(self.stride)
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, spatial, self.dilation
        )
        geometry = Geometry(self.stride, self.padding, self.dilation, self.groups)
        form = ConvolutionForm(geometry, True, tuple(output_padding))
        x, weight, bias = cast_as_autocast_would(input, self.weight, self.bias)
        return autograd.convolution(x, weight, bias, form, getattr(self, ATTRIBUTE))


_BEHAVIOUR: dict[type[nn.Module], type[_Swapped]] = {
    nn.Linear: _Linear,
    nn.Conv1d: _ConvolutionForm,
    nn.Conv2d: _ConvolutionForm,
    nn.Conv3d: _ConvolutionForm,
    nn.ConvTranspose1d: _Transposed,
    nn.ConvTranspose2d: _Transposed,
    nn.ConvTranspose3d: _Transposed,
}
_KINDS = {_Conv1D, *_BEHAVIOUR.values()}


_made: WeakKeyDictionary[type, ref[type]] = WeakKeyDictionary()
"""The class that `swap` gives, by the plain one; weak, since classes of parametrized layers come and go."""


def _swapped_class(plain: Any) -> Any:
    made = _made[plain]() if plain in _made else None
    if made is None:
        body: dict[str, Any] = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
        if hasattr(plain, "__deepcopy__"):
            body["__deepcopy__"] = lambda self, memo: _plain_twin(self).__deepcopy__(memo)
        made = type(plain.__name__, (_BEHAVIOUR.get(kind_of_class(plain) or plain, _Conv1D), plain), body)
        _made[plain] = ref(made)
    return made


def _swapped_base(found: type) -> type | None:
    """Return the class made by `swap` among those that a class inherits from; None if there is none."""
    return next((base for base in found.__mro__ if base.__bases__[:1] and base.__bases__[0] in _KINDS), None)


def _restored_class(found: type) -> Any:
    """Return the class without ours; itself if ours is no longer there."""
    ours = _swapped_base(found)
    return found if ours is None else _rebased(found, ours, ours.__bases__[1])


def _rebased(found: Any, old: type, new: type) -> Any:
    """Return the class with `new` in the place of `old` below it: one that exists already, or a copy."""
    if found is old or old not in found.__mro__:
        return new if found is old else found
    bases = tuple(_rebased(base, old, new) for base in found.__bases__)
    body = _body(found)
    for other in bases[-1].__subclasses__():
        if other.__bases__ == bases and other.__name__ == found.__name__ and _body(other) == body:
            return other
    return type(found)(found.__name__, bases, body)


def _body(found: type) -> dict[str, Any]:
    return {name: value for name, value in vars(found).items() if name not in ("__dict__", "__weakref__")}


def _plain_twin(module: Any) -> Any:
    """Return the plain layer with the same attributes, to be copied or pickled."""
    twin = object.__new__(_restored_class(type(module)))
    vars(twin).update({name: value for name, value in vars(module).items() if name != ATTRIBUTE})
    if (engine := engine_of(module)) is not None:
        engine.copied()
    return twin


def _records(module: Any, x: Tensor) -> bool:
    """Return True if the engine has work: a gradient will come back, or the output takes treated operands."""
    if _is_being_copied(module):
        return False
    if getattr(module, ATTRIBUTE).treats_output:
        return True
    if not torch.is_grad_enabled():
        return False
    if x.requires_grad or transforming():  # a tensor under vmap hides that it needs a gradient
        return True
    if "weight" not in module._parameters:  # computed, and to compute it twice may change buffers, as spectral_norm's
        if any(parameter.requires_grad for parameter in module.parameters()):
            return True
        weight = vars(module).get("weight")  # a view, as under FullyShardedDataParallel
        return weight is not None and weight.requires_grad
    return bool(module.weight.requires_grad or (module.bias is not None and module.bias.requires_grad))


def _is_being_copied(module: Any) -> bool:
    """Return True if torch.jit.trace or torch.export records the forward: what they make is a plain model, too."""
    if not (_exporting() or (_tracing() and not torch.compiler.is_compiling())):
        return False
    if not torch.compiler.is_dynamo_compiling():
        getattr(module, ATTRIBUTE).copied()
    return True


_exporting: Any = getattr(torch.compiler, "is_exporting", lambda: False)
_tracing: Any = getattr(torch.jit, "is_tracing")  # noqa: B009  torch does not list it


def _padding_of(module: Any) -> tuple[list[int], tuple[int, ...]]:
    """Return the padding "same" or "valid" as zeros to add on the right, for F.pad, and a padding of both sides."""
    if module.padding == "valid":
        return [], (0,) * len(module.stride)
    total = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    extra = [amount for t in reversed(total) for amount in (0, t % 2)]
    return extra, tuple(t // 2 for t in total)
