"""What operators on codes, blocks and the Hadamard transform share: registration with `out=`, layouts, formats as text.

A format travels as its text, so that a signature stays short and a compiled graph holds no Python object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..formats import BlockFormat, Format
from .grid import constant
from .library import check_result, dense, kept_finite, register


def register_with_out(
    name: str,
    arguments: str,
    others: str,
    plain: Callable[..., tuple[Tensor, ...]],
    into: Callable[..., tuple[Tensor, ...]] | None,
    dtype_of: Callable[..., torch.dtype],
    fake_others: Callable[..., tuple[Tensor, ...]],
    check: Callable[..., None] | None = None,
) -> None:
    """`register` of `name(Tensor x, arguments) -> (y, others)` and of `name_out(Tensor x, arguments, out) -> (others)`.

    `plain(x, *arguments)` gives all results.  `into(out, x, *arguments)` writes y, of the type that `dtype_of` gives,
    into a contiguous tensor, which may be x, and gives the others; it is None where the native module is not in use.
    `check(x, *arguments)` is that of `register`.
    """

    def unpacked(results: tuple[Tensor, ...]) -> Any:
        return results if others else results[0]

    def plain_out(x: Tensor, *rest: Any) -> Any:
        result, *further = plain(x, *rest[:-1])
        rest[-1].copy_(result)
        return _given(tuple(further))

    compiled = compiled_out = None
    if into is not None:
        write = into

        def compiled(x: Tensor, *rest: Any) -> Any:
            out = x.new_empty(x.shape, dtype=dtype_of(x, *rest))
            further = write(out, x, *rest)
            return unpacked((in_layout_of(x, out), *further))

        def compiled_out(x: Tensor, *rest: Any) -> Any:
            *arguments, out = rest
            torch.autograd.graph.increment_version(out)  # the kernels write behind PyTorch's back
            target = out if out.is_contiguous() else out.new_empty(out.shape)
            further = write(target, x, *arguments)
            if target is not out:
                out.copy_(target)
            return _given(further)

    def check_with_out(x: Tensor, *rest: Any) -> None:
        check_result(x, rest[-1], dtype_of(x, *rest[:-1]))
        if check is not None:
            check(x, *rest[:-1])

    register(
        f"{name}(Tensor x, {arguments}) -> " + (f"(Tensor, {others})" if others else "Tensor"),
        lambda x, *rest: unpacked(plain(x, *rest)),
        compiled,
        lambda x, *rest: unpacked((empty_for(x, dtype_of(x, *rest)), *fake_others(x, *rest))),
        check,
    )
    register(
        f"{name}_out(Tensor x, {arguments}, Tensor(a!) out) -> ({others})",
        plain_out,
        compiled_out,
        lambda x, *rest: _given(fake_others(x, *rest[:-1])),
        check_with_out,
    )


def _given(results: tuple[Tensor, ...]) -> Any:
    """What an operator gives: nothing, a tensor, or several."""
    return results[0] if len(results) == 1 else results or None


def text_of(format: BlockFormat | Format) -> str:
    """str(format), in steps that torch.compile can follow."""
    format = constant(format)
    if isinstance(format, BlockFormat):
        return "/".join((str(format.element), str(format.size), str(format.scale)))
    return str(format)


def empty_for(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A result in the layout of x; contiguous where x has gaps or overlaps."""
    return torch.empty_like(dense(x), dtype=dtype)


def in_layout_of(x: Tensor, result: Tensor) -> Tensor:
    """A fresh contiguous result, in the layout of x."""
    out = empty_for(x, result.dtype)
    return result if out.stride() == result.stride() else out.copy_(result)


def narrowed(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y in another type, with one NaN for all: torch writes NaN as it happens to compute them."""
    y = kept_finite(y, dtype).to(dtype)
    return y.masked_fill(y.isnan(), math.nan)


def rows_and_columns(x: Tensor) -> tuple[int, int]:
    """A tensor as rows of its last dimension; one without dimensions is a row of one."""
    columns = x.shape[-1] if x.dim() else 1
    return (x.numel() // columns if columns else 0), columns
