"""Operators whose first result may go into a given tensor: two rows of the table from one kernel that writes.

`name(x, arguments) -> (y, others)` gives a new y in the layout of x; `name_out(x, arguments, out) -> (others)` writes y
into `out`, which may be x itself and may have a layout of its own.  A kernel is a *writer*,

    write(out, x, *arguments) -> others,

and never meets an awkward layout: in "memory" order x fills a block of memory and `out` lies exactly as x does; in
"rows" order both are contiguous.  Random numbers belong to positions in that order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidValue
from .contracts import Takes, type_name
from .layouts import dense, empty_for
from .registry import Kernel, add_kernel, register

Order = Literal["memory", "rows"]
Writer = Callable[..., tuple[Tensor, ...]]
DtypeOf = Callable[..., torch.dtype]


class _Form(NamedTuple):
    """How the writers of an operator are called."""

    order: Order
    dtype: DtypeOf | torch.dtype | None
    alone: bool
    """True if y is the only result."""


_forms: dict[str, _Form] = {}


def register_writer(
    signature: str,
    reference: Writer,
    fake: Writer,
    *,
    order: Order,
    dtype: DtypeOf | torch.dtype | None = None,
    check: Callable[..., None] | None = None,
    takes: Mapping[str, Takes] | None = None,
) -> None:
    """Declare `name` and `name_out`.

    Args:
        signature: that of `name`, whose first argument is x and whose first result is y.
        reference: the writer in plain PyTorch.
        fake: fake(x, *arguments) gives the other results without elements.
        order: what the writers see: see the module.
        dtype: the type of y, or dtype(x, *arguments) that gives it; that of x if None.
        check: called as check(x, *arguments), as in `register`.
        takes: as in `register`.
    """
    name, arguments, results = _parts(signature)
    alone = len(results) == 1
    _forms[name] = _Form(order, dtype, alone)

    def fake_new(x: Tensor, *rest: Any) -> Any:
        others = fake(x, *rest)
        out = empty_for(x, _type_of(dtype, x, *rest))
        return out if alone else (out, *others)

    def check_out(x: Tensor, *rest: Any) -> None:
        if check is not None:
            check(x, *rest[:-1])
        check_result(x, rest[-1], _type_of(dtype, x, *rest[:-1]))

    new, into = _kernels(_forms[name], reference)
    register(signature, new, None, fake_new, check, takes)
    register(
        f"{name}_out({arguments}, Tensor(a!) out) -> ({', '.join(results[1:])})",
        into, None, lambda x, *rest: _given(fake(x, *rest[:-1])), check_out, takes,
    )  # fmt: skip


def add_writer(name: str, backend: str, write: Writer) -> None:
    """Give `name` and `name_out` their kernels for one more backend."""
    new, into = _kernels(_forms[name], write)
    add_kernel(name, backend, new)
    add_kernel(f"{name}_out", backend, into)


def _kernels(form: _Form, write: Writer) -> tuple[Kernel, Kernel]:
    """The kernels of `name` and of `name_out`."""
    order, dtype, alone = form
    in_memory, fixed = order == "memory", None if callable(dtype) else dtype

    def fill(out: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        source = dense(x) if in_memory else x.contiguous()
        if out.stride() == source.stride() or (not in_memory and out.is_contiguous()):
            return write(out, source, *rest)
        target = torch.empty_like(source, dtype=out.dtype)
        others = write(target, source, *rest)
        out.copy_(target)
        return others

    def new(x: Tensor, *rest: Any) -> Any:
        out = empty_for(x, _type_of(dtype, x, *rest))
        others = fill(out, x, *rest)
        return out if alone else (out, *others)

    def new_in_memory_order(x: Tensor, *rest: Any) -> Any:  # fewer steps on the way of the fastest operators
        if not x.is_contiguous():
            x = dense(x)
        out = torch.empty_like(x) if fixed is None else torch.empty_like(x, dtype=fixed)
        return out, *write(out, x, *rest)

    def into(x: Tensor, *rest: Any) -> Any:
        torch.autograd.graph.increment_version(rest[-1])  # the kernels write behind PyTorch's back
        return _given(fill(rest[-1], x, *rest[:-1]))

    return new_in_memory_order if in_memory and not alone and not callable(dtype) else new, into


def _type_of(dtype: DtypeOf | torch.dtype | None, x: Tensor, *rest: Any) -> torch.dtype:
    if dtype is None:
        return x.dtype
    return dtype if isinstance(dtype, torch.dtype) else dtype(x, *rest)


def _given(results: tuple[Tensor, ...]) -> Any:
    """The results as an operator gives them: nothing, a tensor, or several."""
    return results[0] if len(results) == 1 else results or None


def _parts(signature: str) -> tuple[str, str, list[str]]:
    """Name, arguments and results of a signature."""
    match = re.fullmatch(r"(\w+)\((.*)\) -> \(?([^()]*)\)?", signature)
    assert match is not None, signature
    return match[1], match[2], match[3].split(", ")


def check_result(x: Tensor, out: Tensor, dtype: torch.dtype) -> None:
    """Refuses an `out` that cannot take a result of x in this type."""
    if out.dtype != dtype or out.shape != x.shape:
        raise InvalidValue(
            f"out must be {type_name(dtype)} of shape {tuple(x.shape)}; got {type_name(out.dtype)} of shape "
            f"{tuple(out.shape)} and strides {tuple(out.stride())}."
        )
    refuse_overlap(x, out)


def refuse_overlap(x: Tensor, out: Tensor) -> None:
    """Refuses an `out` that shares some memory with x without being laid out as x in the same place."""
    if out is not x and out.device.type != "meta" and native.overlap(x, out):
        raise InvalidValue(
            "out and x share some memory but are not the same tensor; write into x itself, or elsewhere."
        )
