"""The operators as PyTorch knows them: one signature, one fake and one kernel per backend each.

`torch.library` dispatches: plain PyTorch is the kernel of every device, the native one that of the CPU.  Every
operator also exists as `NAME_out`, which writes into a given tensor and serves `out=` and the in-place forms.  Both
return counts beside it: zeros, NaN and saturated elements of the result, and zeros of x.

Random numbers belong to positions in memory order.  A dense tensor of any layout is processed as it lies and keeps its
layout; one with gaps or overlaps is copied to a contiguous one first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import native
from . import reference
from .grid import Grid

_Library: Any = torch.library.Library  # torch leaves it untyped
library = _Library("lograd", "DEF")

FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Element types, and the number by which the native module knows each."""
COUNTS = 3
"""Zeros, NaN and saturated elements of a result; those of this file count the zeros of x besides."""


_direct: dict[str, Callable[..., Any]] = {}
"""Native kernels by the name of their operator."""

_dispatch_keys: Any = getattr(torch._C, "_dispatch_keys", None)
_PLAIN_KEYS = _dispatch_keys(torch.empty(0)) if _dispatch_keys is not None else None


def call(name: str, x: Tensor, *arguments: Any) -> Any:
    """The result of the operator `lograd::name`.

    PyTorch's dispatcher takes up to 10 microseconds to find a kernel in Python.  So where it would find nothing else on
    its way (a plain tensor, no gradient, no tracing, transform, mode or profiler), the native kernel is called at once.
    """
    if not torch.compiler.is_compiling():
        kernel = _direct.get(name)
        if kernel is not None and _is_plain(x):
            return kernel(x, *arguments)
    return getattr(torch.ops.lograd, name).default(x, *arguments)


def implement(name: str, kernel: Callable[..., Any]) -> None:
    """Make a native kernel that of the operator on the CPU."""
    library.impl(name, kernel, "CPU")
    _direct[name] = kernel


def _is_plain(x: Tensor) -> bool:
    return (
        _dispatch_keys is not None
        and _dispatch_keys(x) == _PLAIN_KEYS
        and not x.requires_grad
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._is_torch_function_mode_enabled()
        and not torch._C._autograd._profiler_enabled()
    )


def dense(x: Tensor) -> Tensor:
    """x itself where its elements fill a block of memory, in whatever order; else a contiguous copy."""
    if x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(x):
        return x
    return x.contiguous()


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor in memory order."""
    return x.as_strided((x.numel(),), (1,))


def _define(name: str, arguments: str, plain: Callable[..., reference.Result]) -> None:
    """Register `lograd::name(Tensor x, arguments, bool counted) -> (y, counts)` and `name_out(..., out) -> counts`.

    `plain(x, *arguments)` maps a flat float32 tensor.  The native kernel of the same name takes (type, x, y, elements,
    *arguments, threads, counts) with addresses in place of tensors.  `counts` is empty unless `counted`.
    """

    def run_plain(x: Tensor, out: Tensor, *rest: Any) -> Tensor:
        *values, counted = rest
        before = (flat(x) == 0).sum() if counted else None  # x may be out
        result, clipped = plain(flat(x).float(), *values)
        flat(out).copy_(result)
        if before is None:
            return _counts(x, False)
        zeros, nan = (result == 0).sum(), result.isnan().sum()
        return torch.stack([zeros, nan, torch.as_tensor(clipped, device=x.device), before])

    kernel = native.kernel(name)

    def run_native(x: Tensor, out: Tensor, *rest: Any) -> Tensor:
        *values, counted = rest
        counts = _counts(x, True) if counted else _NO_COUNTS
        addresses = [value.data_ptr() if isinstance(value, Tensor) else value for value in values]
        kernel(
            FLOAT_TYPES[x.dtype], x.data_ptr(), out.data_ptr(), x.numel(), *addresses, torch.get_num_threads(),
            counts.data_ptr() if counted else 0,
        )  # fmt: skip
        return counts

    def forms(run: Callable[..., Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def functional(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            x = dense(x)
            out = torch.empty_like(x)
            return out, run(x, out, *rest)

        def into(x: Tensor, *rest: Any) -> Tensor:
            torch.autograd.graph.increment_version(rest[-1])  # the kernels write behind PyTorch's back
            return run(x, rest[-1], *rest[:-1])

        return functional, into

    library.define(f"{name}(Tensor x, {arguments}, bool counted) -> (Tensor, Tensor)")
    library.define(f"{name}_out(Tensor x, {arguments}, bool counted, Tensor(a!) out) -> Tensor")
    for operator, plain_form, native_form in zip(
        (name, f"{name}_out"), forms(run_plain), forms(run_native), strict=True
    ):
        library.impl(operator, plain_form, "CompositeExplicitAutograd")
        if kernel is not None:
            implement(operator, native_form)
    torch.library.register_fake(
        f"lograd::{name}", lambda x, *rest: (torch.empty_like(dense(x)), _counts(x, rest[-1])), lib=library
    )
    torch.library.register_fake(f"lograd::{name}_out", lambda x, *rest: _counts(x, rest[-2]), lib=library)


_NO_COUNTS = torch.empty(0, dtype=torch.int64)


def _counts(x: Tensor, counted: bool) -> Tensor:
    return x.new_zeros(COUNTS + 1, dtype=torch.int64) if counted else x.new_empty(0, dtype=torch.int64)


def _quantize(x: Tensor, scale: Tensor, *grid_stochastic_key: Any) -> reference.Result:
    *grid, stochastic, key = grid_stochastic_key
    return reference.quantize(x, scale, Grid(*grid), stochastic, key)


_define("stochastic_prune", "Tensor threshold, Tensor key", reference.stochastic_prune)
_define("threshold_prune", "Tensor threshold", reference.threshold_prune)
_define("dither", "Tensor step, Tensor key", reference.dither)
_define(
    "quantize",
    "Tensor scale, bool integer, int mantissa, int smallest_exponent, bool odd_exponents_up, float largest, "
    "float largest_negative, bool stochastic, Tensor key",
    _quantize,
)
