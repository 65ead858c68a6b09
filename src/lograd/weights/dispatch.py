"""Operators on tensors in low precision: most see decoded numbers, a few need codes only.

Transposing, and taking rows, give views that share codes and spacings; so a product saves codes for its backward and
not a float32 copy of the weight.  What an operator changes in place is rounded back, stochastically; what it overwrites
altogether, to nearest.  Any other view decodes the whole tensor when it is read, and changes it when it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from .tensor import LowPrecisionTensor, Window

aten: Any = torch.ops.aten

_OVERWRITES = {"copy_", "fill_", "zero_", "normal_", "uniform_", "log_normal_", "cauchy_", "exponential_"}
"""Operators in place whose result has nothing to do with the numbers before."""
_TURNS = {aten.t.default, aten.transpose.int, aten.permute.default}
"""Views that only change the order of dimensions."""
_ROWS = {aten.slice.Tensor, aten.select.int}
"""Views of whole rows, where they take the first dimension."""

_VIEWS = {*_ROWS, aten.view.default, aten.unsqueeze.default, aten.squeeze.dim}
"""Views that are as good where there are no spacings."""


_COPIED = {aten.as_strided.default, aten.view.dtype}
"""Views that depend on how numbers lie in memory: they give copies."""


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator of which at least one argument is a tensor in low precision."""
    first = args[0] if args else None
    if isinstance(first, LowPrecisionTensor):
        found = _in_codes(func, first, args, kwargs) if first.window is None else None
        if found is not None:
            return found
        if func.is_view and func not in _COPIED and type(first.codes) is Tensor:  # else a compiler traces it
            return _windows(func, first, args, kwargs)
    return _decoded(func, args, kwargs)


def _in_codes(func: Any, first: LowPrecisionTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that needs no numbers, or few; None for any other."""
    if func in _TURNS or (func in _ROWS and _takes_rows(first, args)):
        return _aliased(func, args, kwargs, first.mapped(lambda part: func(part, *args[1:], **kwargs)))
    if first.bare and func in _VIEWS:
        codes = func(first.codes, *args[1:], **kwargs)
        spacing = first.spacing.new_ones((1,) * codes.dim())
        made = LowPrecisionTensor(codes, spacing, first.ledger, first.coding, first.dtype)
        return _aliased(func, args, kwargs, made)
    if func in (aten.detach.default, aten.alias.default):
        return _aliased(func, args, kwargs, first.mapped(func))
    if func is aten.clone.default:
        return _apart(_moved(first, func, kwargs), first)
    if func is aten._to_copy.default and (kwargs.get("dtype") or first.dtype).is_floating_point:
        return _apart(_moved(first, func, kwargs), first)
    if func is aten.embedding.default and not first.bare:
        return _embedded(first, args[1])
    if func is aten.copy_.default and _copied(first, args[1]):
        return first
    return None


def _windows(func: Any, first: LowPrecisionTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The view, or views, of any other kind: they read and write by way of the whole tensor."""

    def views(x: Tensor) -> list[Tensor]:
        found = func(x, *args[1:], **kwargs)
        return [found] if isinstance(found, Tensor) else list(found)

    made = []
    for place, codes in enumerate(views(first.codes)):
        window = LowPrecisionTensor(codes, first.spacing, first.ledger, first.coding, first.dtype)
        window.window = Window(first, partial(_nth, views, place))
        made.append(window)
    several = not isinstance(func._schema.returns[0].type, torch.TensorType)
    return _aliased(func, args, kwargs, made if several else made[0])


def _nth(views: Callable[[Tensor], list[Tensor]], place: int, x: Tensor) -> Tensor:
    return views(x)[place]


def _aliased(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    return return_and_correct_aliasing(func, args, kwargs, result)  # type: ignore[no-untyped-call]


def _takes_rows(x: LowPrecisionTensor, args: tuple[Any, ...]) -> bool:
    """True where a slice or selection is one of whole rows, each with its spacing."""
    dim = args[1] if len(args) > 1 else 0
    return dim in (0, -x.dim()) and x.spacing.shape[0] == x.shape[0] and not x.bare


def _moved(x: LowPrecisionTensor, func: Any, kwargs: dict[str, Any]) -> LowPrecisionTensor:
    """A copy on another device, in another layout, or that decodes to another type."""
    options = {name: value for name, value in kwargs.items() if name not in ("dtype", "pin_memory")}
    return x.mapped(lambda part: func(part, **options), kwargs.get("dtype"))


def _apart(made: LowPrecisionTensor, first: LowPrecisionTensor) -> LowPrecisionTensor:
    """A copy with a ledger of its own."""
    made.ledger = first.ledger.to(made.codes.device, copy=True)
    return made


def _embedded(table: LowPrecisionTensor, index: Tensor) -> Tensor:
    """Rows of a table, of which only these are decoded."""
    flat = index.reshape(-1)
    several = table.spacing.shape[0] > 1
    spacing = table.spacing.index_select(0, flat) if several else table.spacing
    found = table.coding.decode(table.codes.index_select(0, flat), spacing, table.dtype)
    return found.reshape(*index.shape, *table.shape[1:])


def _copied(target: LowPrecisionTensor, source: Any) -> bool:
    """True where codes could be copied as they are: both have the same coding."""
    if not isinstance(source, LowPrecisionTensor) or source.coding != target.coding or source.window is not None:
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

    def own(x: Tensor) -> Tensor:
        return originals.get(id(x), x)

    result = func(*tree_map_only(Tensor, plain, args), **tree_map_only(Tensor, plain, kwargs))
    if not changed:
        return result
    originals = {id(values): x for x, values in opened.values()}
    for x in changed:
        values = opened[id(x)][1]
        if func._schema.name.split("::")[1] in _OVERWRITES:
            x.overwrite_(values)
        else:
            x.write_(values.to(torch.float32))
    return tree_map_only(Tensor, own, result)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operator writes to."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_leaves(value) if isinstance(x, Tensor)]
    return found


LowPrecisionTensor.rules = staticmethod(answer)
