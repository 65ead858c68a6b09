"""The operators as PyTorch knows them: one signature, one fake and one kernel per backend each.

`torch.library` dispatches: plain PyTorch is the kernel of every device, the native one that of the CPU.  Every
operator also exists as `NAME_out`, which writes into a given tensor and serves `out=` and the in-place forms.  Both
return counts beside it: zeros, NaN and saturated elements of the result, and zeros of x.

Random numbers belong to positions in memory order.  A dense tensor of any layout is processed as it lies and keeps its
layout; one with gaps or overlaps is copied to a contiguous one first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidValue
from . import reference
from .contracts import FLOAT_TYPES as FLOAT_TYPES
from .contracts import TENSORS, Contract, Takes, type_name
from .grid import Grid

_Library: Any = torch.library.Library  # torch leaves it untyped
library = _Library("lograd", "DEF")

COUNTS = 3
"""Zeros, NaN and saturated elements of a result; those of this file count the zeros of x besides."""


_direct: dict[str, Callable[..., Any]] = {}
"""Kernels for the CPU by the name of their operator."""
contracts: dict[str, Contract] = {}
"""What each operator takes, by its name."""


def call(name: str, x: Tensor, *arguments: Any) -> Any:
    """The result of the operator `lograd::name`.

    PyTorch's dispatcher takes up to 10 microseconds to find a kernel in Python.  So where it would find nothing else on
    its way (plain tensors; no tracing, transform, mode or profiler), the native kernel is called at once.
    """
    if not torch.compiler.is_compiling():
        kernel = _direct.get(name)
        if kernel is not None and not watched() and _are_plain(x, arguments):
            return kernel(x, *arguments)
    return getattr(torch.ops.lograd, name).default(x, *arguments)


def register(
    signature: str,
    plain: Callable[..., Any],
    compiled: Callable[..., Any] | None,
    fake: Any,
    check: Callable[..., None] | None = None,
    takes: Mapping[str, Takes] | None = None,
) -> None:
    """An operator: plain PyTorch for every device, another kernel for the CPU unless None, and a fake for tracers.

    The one for the CPU is called at once by `call`; it may be the plain one.  An operator records no gradient: results
    are those of detached tensors.

    PyTorch calls them behind a `Contract`.  `takes` adds rules to it for the operator's own arguments, and
    `check(*arguments)` what concerns several of them; the fake, which has shapes without numbers, does without that.
    """
    name = signature.partition("(")[0]
    library.define(signature)
    schema = getattr(torch.ops.lograd, name).default._schema
    contract = contracts[name] = Contract(name, schema, takes or {}, check)
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    library.impl(name, contract.guarded(plain), "CompositeExplicitAutograd")
    if compiled is not None:
        library.impl(name, contract.guarded(compiled), "CPU")
        _direct[name] = compiled
    torch.library.register_fake(f"lograd::{name}", contract.guarded(fake, alone=True), lib=library)


# PyTorch has no public way to ask.  Where a later version lacks one of these, the dispatcher always does the work.
_C: Any = torch._C
try:
    _dispatch_keys = _C._dispatch_keys
    _modes, _function_modes = _C._len_torch_dispatch_stack, _C._is_torch_function_mode_enabled
    _profiler, _tracer = _C._autograd._profiler_enabled, _C._get_tracing_state
    transforming = _C._are_functorch_transforms_active
except AttributeError:
    _dispatch_keys, transforming = None, lambda: False

with torch.inference_mode(False):
    _PLAIN_KEYS = _dispatch_keys(torch.empty(0, device="cpu")) if _dispatch_keys is not None else None


def watched() -> bool:
    """Whether a mode, a tracer, a transform or the profiler wants to see each operator."""
    if _dispatch_keys is None or _modes() or _function_modes() or _profiler():
        return True
    return _tracer() is not None or transforming()


_PLAIN_CLASSES = (Tensor, torch.nn.Parameter)


def _are_plain(x: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether all tensors lie on the CPU and are what they seem; x tells for sure, a glance will do for the others."""
    for argument in arguments:
        if isinstance(argument, Tensor) and (type(argument) not in _PLAIN_CLASSES or not argument.is_cpu):
            return False
    return type(x) in _PLAIN_CLASSES and bool(_dispatch_keys(x) == _PLAIN_KEYS)


def dense(x: Tensor) -> Tensor:
    """x itself where its elements fill a block of memory, in whatever order; else a contiguous copy."""
    if x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(x):
        return x
    return x.contiguous()


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor in memory order."""
    return x.as_strided((x.numel(),), (1,))


def kept_finite(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 that can be rounded to a type without a finite number becoming infinite."""
    if dtype == torch.float32:
        return y
    largest = torch.finfo(dtype).max
    return torch.where(y.isinf(), y, y.clamp(-largest, largest))


def in_type(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 rounded to a type, finite where it was; 16 bits have one NaN for all, float32 keeps those of y.

    PyTorch's own conversion writes NaN as it happens to compute them, which depends on the place in a tensor.
    """
    if dtype == torch.float32:
        return y
    narrow = kept_finite(y, dtype).to(dtype)
    return narrow.masked_fill(narrow.isnan(), math.nan)


def _define(name: str, arguments: str, plain: Callable[..., reference.Result]) -> None:
    """Register `lograd::name(Tensor x, arguments, bool counted) -> (y, counts)` and `name_out(..., out) -> counts`.

    `plain(x, *arguments)` maps a flat float32 tensor.  The native kernel of the same name takes (type, x, y, elements,
    *arguments, threads, counts) with addresses in place of tensors.  `counts` is empty unless `counted`.
    """

    def run_plain(x: Tensor, out: Tensor, *rest: Any) -> Tensor:
        *values, counted = rest
        before = (flat(x) == 0).sum() if counted else None  # x may be out
        result, clipped = plain(flat(x).float(), *values)
        flat(out).copy_(in_type(result, out.dtype))
        if before is None:
            return _counts(x, False)
        zeros, nan = (result == 0).sum(), result.isnan().sum()
        return torch.stack([zeros, nan, torch.as_tensor(clipped, device=x.device), before])

    kernel, address = native.kernel(name), native.address
    tensors = [
        (place, argument, TENSORS[argument].dtypes[0], TENSORS[argument].elements or 0)
        for place, (kind, argument) in enumerate(pair.split() for pair in arguments.split(", "))
        if kind == "Tensor"
    ]

    def run_native(x: Tensor, out: Tensor, *rest: Any) -> Tensor:
        *values, counted = rest
        counts = _counts(x, True) if counted else _NO_COUNTS
        for place, argument, dtype, elements in tensors:
            values[place] = address(argument, values[place], dtype, elements)
        n = x.numel()
        kernel(
            FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), address("out", out, x.dtype, n), n, *values,
            torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS + 1) if counted else 0,
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

    plain_forms, native_forms = forms(run_plain), forms(run_native) if kernel is not None else (None, None)
    register(
        f"{name}(Tensor x, {arguments}, bool counted) -> (Tensor, Tensor)", plain_forms[0], native_forms[0],
        lambda x, *rest: (torch.empty_like(dense(x)), _counts(x, rest[-1])),
    )  # fmt: skip
    register(
        f"{name}_out(Tensor x, {arguments}, bool counted, Tensor(a!) out) -> Tensor", plain_forms[1], native_forms[1],
        lambda x, *rest: _counts(x, rest[-2]), _check_out,
    )  # fmt: skip


def _check_out(x: Tensor, *rest: Any) -> None:
    """Random numbers belong to positions in memory, so x is dense and `out` lies as x does."""
    out = rest[-1]
    if out.dtype != x.dtype or out.shape != x.shape or out.stride() != x.stride() or dense(x) is not x:
        raise InvalidValue(
            f"out must have the type, shape and strides of x, which has no gaps; got {_described(out)} for x of "
            f"{_described(x)}."
        )
    refuse_overlap(x, out)


def check_result(x: Tensor, out: Tensor, dtype: torch.dtype) -> None:
    """Refuses what cannot take a result of x in this type."""
    if out.dtype != dtype or out.shape != x.shape:
        raise InvalidValue(f"out must be {type_name(dtype)} of shape {tuple(x.shape)}; got {_described(out)}.")
    refuse_overlap(x, out)


def refuse_overlap(x: Tensor, out: Tensor) -> None:
    if out is not x and out.device.type != "meta" and native.overlap(x, out):
        raise InvalidValue(
            "out and x share some memory but are not the same tensor; write into x itself, or elsewhere."
        )


def _described(x: Tensor) -> str:
    return f"{type_name(x.dtype)} of shape {tuple(x.shape)} and strides {tuple(x.stride())}"


_NO_COUNTS = torch.empty(0, dtype=torch.int64, device="cpu")


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
