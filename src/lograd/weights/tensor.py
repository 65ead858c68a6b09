"""A parameter that is stored in low precision: a tensor for everyone else, codes and spacings inside.

Operators see decoded numbers, which are freed afterwards.  Transposing, and taking rows, give views that share codes
and spacings; so a product saves codes for its backward and not a float32 copy of the weight.  What an operator changes
in place is rounded back, stochastically; what it overwrites altogether, to nearest.  Any other view is a part: it has
a spacing for each element, and is only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import InvalidValue
from .coding import (
    BFLOAT16,
    Rounding,
    WeightFormat,
    all_finite,
    check_weight_format,
    decode_weights,
    encode_weights_,
    fresh_spacing,
    next_spacing,
)

SEED, OFFSET, GROWN, SHRUNK, LOST = range(5)
"""Places in a ledger: the key of the random numbers, then counts of rows."""

aten: Any = torch.ops.aten
_OVERWRITES = {"copy_", "fill_", "zero_", "normal_", "uniform_", "log_normal_", "cauchy_", "exponential_"}
"""Operators in place whose result has nothing to do with the numbers before."""
_TURNS = {aten.t.default, aten.transpose.int, aten.permute.default}
"""Views that only change the order of dimensions."""
_SAME = {aten.detach.default, aten.alias.default}
_ROWS = {aten.slice.Tensor, aten.select.int}
"""Views of whole rows, if they take the first dimension."""
_COPIED = {aten.as_strided.default, aten.view.dtype}
"""Views that depend on how numbers lie in memory: they give copies."""

_Base: Any = torch.Tensor  # its class methods for subclasses are untyped


@final
class LowPrecisionTensor(_Base):  # type: ignore[misc]  # _Base is Any
    """Numbers V(code) times spacing, of which only codes and spacings are in memory.

    Args:
        codes: uint8, or bfloat16 if these are the numbers themselves.
        spacing: float32, one for each row, in a shape that is broadcast with the codes.
        ledger: int64 (5,): seed and offset of the random numbers, then counts of rows (`next_spacing`).
        format: what the codes mean.
        dtype: the type that operators see.
        part: true for a view whose rows have other elements, too: it has a spacing for each element, and is only read.
    """

    codes: Tensor
    spacing: Tensor
    ledger: Tensor
    format: WeightFormat
    part: bool

    @staticmethod
    def __new__(
        cls: Any,
        codes: Tensor,
        spacing: Tensor,
        ledger: Tensor,
        format: WeightFormat,
        dtype: torch.dtype = torch.float32,
        part: bool = False,
    ) -> LowPrecisionTensor:
        made: LowPrecisionTensor = _Base._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=dtype, device=codes.device, requires_grad=False
        )
        made.codes, made.spacing, made.ledger, made.format, made.part = codes, spacing, ledger, format, part
        return made

    @classmethod
    def of(cls, values: Tensor, format: WeightFormat, seed: int) -> LowPrecisionTensor:
        """Return float numbers, rounded to nearest, with the narrowest spacings that fit, in their layout."""
        values = values.detach()
        codes = torch.empty_like(values, dtype=torch.bfloat16 if format == BFLOAT16 else torch.uint8)
        rows = 1 if format == BFLOAT16 else len(values)
        spacing = torch.ones((rows, *[1] * (values.dim() - 1)), device=values.device)
        ledger = torch.tensor([seed, 0, 0, 0, 0], dtype=torch.int64, device=values.device)
        made = cls(codes, spacing, ledger, format, values.dtype)
        made._renew_(values.to(torch.float32, copy=True))
        return made

    def decode(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return a plain tensor with the same numbers, float32 or of another type; it records no gradient."""
        with torch.no_grad():
            return decode_weights(self.codes, self.spacing, self.format, dtype or self.dtype)

    # -- writing --

    def write_(self, values: Tensor, rounding: Rounding = "stochastic") -> None:
        """Take new numbers: float32, in the layout of the codes, and overwritten on the way.

        Spacings stay as long as the numbers fit (`next_spacing`).
        """
        self._check_whole()
        with torch.no_grad():
            if not self.bare:
                spacing, changes = next_spacing(values, self.spacing, self.format)
                self.spacing.copy_(spacing)
                self.ledger[GROWN:] += changes
            elif not all_finite(values):
                self.ledger[LOST] += values.numel() - values.isfinite().sum()
            self._encode_(values, rounding)

    def overwrite_(self, values: Tensor) -> None:
        """Take numbers that have nothing to do with the old ones, rounded to nearest.

        Numbers that the present spacings hold exactly, as far as its type can tell, keep these; else spacings are the
        narrowest that fit.
        """
        self._check_whole()
        with torch.no_grad():
            own = torch.empty_like(self.codes, dtype=torch.float32).copy_(values)
            self._encode_(own.clone(), "nearest")
            if not torch.equal(self.decode(), values.to(self.dtype)):
                self._renew_(own)

    def _check_whole(self) -> None:
        if self.part:
            raise InvalidValue(
                "this view shares spacings with other elements of a weight in low precision, and can only be read; "
                "write to whole rows or to all of the weight."
            )

    def _renew_(self, values: Tensor) -> None:
        if not self.bare:
            self.spacing.copy_(fresh_spacing(values, self.spacing, self.format))
            self.ledger[LOST] += self.spacing.isnan().sum()
        self._encode_(values, "nearest")

    def _encode_(self, values: Tensor, rounding: Rounding) -> None:
        encode_weights_(values, self.spacing, self.codes, self.format, rounding, self.ledger[: OFFSET + 1])
        if rounding == "stochastic":
            self.ledger[OFFSET] += values.numel()

    # -- what is inside --

    @property
    def rounded(self) -> int:
        """Elements that were rounded stochastically since it was made; each took a random number of its own."""
        return int(self.ledger[OFFSET])

    @property
    def bytes(self) -> int:
        """Bytes of codes and spacings."""
        own = self.codes.numel() * self.codes.element_size()
        return own if self.bare else own + self.spacing.numel() * self.spacing.element_size()

    @property
    def bare(self) -> bool:
        """True if there are no spacings."""
        return self.format == BFLOAT16

    def mapped(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> LowPrecisionTensor:
        """Return a tensor with changed codes and spacings, and the same ledger."""
        codes, spacing = change(self.codes), change(self.spacing)
        return LowPrecisionTensor(codes, spacing, self.ledger, self.format, dtype or self.dtype, self.part)

    # -- what PyTorch asks of a subclass --

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, first = kwargs or {}, args[0] if args else None
        found = _in_codes(func, first, args, kwargs) if isinstance(first, LowPrecisionTensor) else None
        return _decoded(func, args, kwargs) if found is None else found

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """Return the names of the tensors inside, and the rest."""
        return ["codes", "spacing", "ledger"], (self.format, self.dtype, self.part)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> LowPrecisionTensor:
        """Return the tensor that `__tensor_flatten__` took apart."""
        return LowPrecisionTensor(inner["codes"], inner["spacing"], inner["ledger"], *context)

    def __repr__(self, **options: Any) -> str:
        return f"LowPrecisionTensor({self.format}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def numpy(self, *, force: bool = False) -> Any:
        """Return the numbers as an array, which is a copy."""
        return self.decode().numpy(force=force)

    def tolist(self) -> Any:
        """Return the numbers as lists."""
        return self.decode().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with its own codes, and the same random numbers from here on; of a part, a plain tensor."""
        if self.part:
            return self.decode()
        twin = _apart(self.mapped(torch.clone), self).requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            twin._is_param = True
        if self.grad is not None:
            twin.grad = self.grad.clone()
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a call with plain tensors, which torch.load(weights_only=True) takes once this is imported."""
        if self.part:
            plain: Any = self.decode()
            return plain.__reduce_ex__(protocol)
        parts = (self.codes, self.spacing, self.ledger, str(self.format), self.dtype)
        return rebuilt, (*parts, bool(self.requires_grad), bool(getattr(self, "_is_param", False)))


def rebuilt(
    codes: Tensor, spacing: Tensor, ledger: Tensor, format: str, dtype: torch.dtype, grad: bool, own: bool
) -> LowPrecisionTensor:
    """Return an unpickled tensor."""
    made = LowPrecisionTensor(codes, spacing, ledger, check_weight_format(format), dtype)
    made.requires_grad_(bool(grad))
    if own:
        made._is_param = True
    return made


torch.serialization.add_safe_globals([rebuilt])


# -- operators --


def _in_codes(func: Any, first: LowPrecisionTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator that needs no numbers, or few; None for any other."""
    if func.is_view and func not in _COPIED:
        return _aliased(func, args, kwargs, _view(func, first, args, kwargs))
    if first.part:
        return None
    to_float = func is aten._to_copy.default and (kwargs.get("dtype") or first.dtype).is_floating_point
    if func is aten.clone.default or to_float:
        options = {name: value for name, value in kwargs.items() if name not in ("dtype", "pin_memory")}
        return _apart(first.mapped(lambda part: func(part, **options), kwargs.get("dtype")), first)
    if func is aten.embedding.default and not first.bare:
        return _embedded(first, args[1])
    if func is aten.copy_.default and _copied(first, args[1]):
        return first
    return None


def _view(func: Any, x: LowPrecisionTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a view, or several: of whole rows, which can be written, or of parts."""

    def view(part: Tensor) -> Any:
        return func(part, *args[1:], **kwargs)

    if func in _SAME or func in _TURNS or (func in _ROWS and _takes_rows(x, args)):
        return x.mapped(view)
    codes = view(x.codes)
    whole = x.bare or (isinstance(codes, Tensor) and codes.shape == x.shape)  # such as view_as
    spacing = x.spacing if whole else view(x.spacing.expand(x.shape).contiguous())

    def made(codes: Tensor, spacing: Tensor) -> LowPrecisionTensor:
        return LowPrecisionTensor(codes, spacing, x.ledger, x.format, x.dtype, x.part or not whole)

    if isinstance(codes, Tensor):
        return made(codes, spacing)
    return [made(each, spacing if whole else spacing[place]) for place, each in enumerate(codes)]


def _takes_rows(x: LowPrecisionTensor, args: tuple[Any, ...]) -> bool:
    """Return True for a slice or selection of whole rows, each with its spacing."""
    dim = args[1] if len(args) > 1 else 0
    return dim in (0, -x.dim()) and x.spacing.shape[0] == x.shape[0]


def _aliased(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    return return_and_correct_aliasing(func, args, kwargs, result)  # type: ignore[no-untyped-call]


def _apart(made: LowPrecisionTensor, first: LowPrecisionTensor) -> LowPrecisionTensor:
    """Give a copy a ledger of its own."""
    made.ledger = first.ledger.to(made.codes.device, copy=True)
    return made


def _embedded(table: LowPrecisionTensor, index: Tensor) -> Tensor:
    """Return rows of a table, of which only these are decoded."""
    flat = index.reshape(-1)
    codes, spacing = (part.index_select(0, flat) for part in (table.codes, table.spacing))
    found = decode_weights(codes, spacing, table.format, table.dtype)
    return found.reshape(*index.shape, *table.shape[1:])


def _copied(target: LowPrecisionTensor, source: Any) -> bool:
    """Return True if codes could be copied as they are: both have the same coding."""
    if not isinstance(source, LowPrecisionTensor) or source.format != target.format:
        return False
    if source.shape != target.shape or source.spacing.shape != target.spacing.shape:
        return False
    target.codes.copy_(source.codes)
    target.spacing.copy_(source.spacing)
    return True


def _decoded(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on decoded numbers, and round back what it has changed."""
    opened: dict[int, tuple[LowPrecisionTensor, Tensor]] = {}
    written = _written(func, args, kwargs) if func._schema.is_mutable else []
    changed = [x for x in written if isinstance(x, LowPrecisionTensor)]
    # Numbers that stay must come back as they were, so what is rounded again is decoded to float32 in any model.
    wide = any(x.dtype != torch.float32 for x in changed)
    fixed = {id(x) for x in written}

    def plain(x: Tensor) -> Tensor:
        if isinstance(x, LowPrecisionTensor):
            if id(x) not in opened:
                opened[id(x)] = x, x.decode(torch.float32 if wide else None)
            return opened[id(x)][1]
        return x.to(torch.float32) if wide and x.is_floating_point() and id(x) not in fixed else x

    result = func(*tree_map_only(Tensor, plain, args), **tree_map_only(Tensor, plain, kwargs))
    if not changed:
        return result
    for x in changed:
        values = opened[id(x)][1]
        if func._schema.name.split("::")[1] in _OVERWRITES:
            x.overwrite_(values)
        else:
            x.write_(values.to(torch.float32))
    originals = {id(values): x for x, values in opened.values()}
    return tree_map_only(Tensor, lambda x: originals.get(id(x), x), result)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator writes to."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_leaves(value) if isinstance(x, Tensor)]
    return found
