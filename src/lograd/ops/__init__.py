"""The elementwise operators: prune and quantize a gradient, at the speed of memory where the native module is in use.

All are pure: the result depends on the arguments alone, and randomness on (seed, offset + position in memory order).
float32, bfloat16 and float16 in, the same out; arithmetic is in float32.  NaN in, NaN out.  They record no gradient:
they are meant for gradients themselves.

Scalars may be numbers, or one-element tensors, which change from call to call without a recompilation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..formats import FloatFormat, Format
from ..formats.values import check_rounding, check_width
from .grid import arguments_of
from .library import FLOAT_TYPES, dense, library
from .rows import (
    Clipped,
    PackedClipped,
    PackedHouseholder,
    PackedRows,
    dequantize_block_householder,
    dequantize_rows,
    pack_block_householder,
    pack_interval,
    pack_per_sample,
    pack_per_tensor,
    quantize_block_householder,
    quantize_interval,
    quantize_per_sample,
    quantize_per_tensor,
)

__all__ = [
    "Counted", "dither", "dither_", "library", "quantize", "quantize_", "stochastic_prune", "stochastic_prune_",
    "threshold_prune", "threshold_prune_",
    "Clipped", "Logarithmic", "PackedClipped", "PackedHouseholder", "PackedRows", "dequantize_block_householder",
    "dequantize_rows", "luq", "pack_block_householder", "pack_interval", "pack_per_sample", "pack_per_tensor",
    "quantize_block_householder", "quantize_interval", "quantize_per_sample", "quantize_per_tensor",
]  # fmt: skip

Scalar = float | Tensor


class Counted(NamedTuple):
    """A result with what was counted in it: a tensor of exact zeros, NaN and saturated elements."""

    result: Tensor
    counts: Tensor


def stochastic_prune(
    x: Tensor,
    threshold: Scalar,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """Eq. 5 of [chmiel2021]: keep |x| > a; else sign(x) a with probability |x| / a, else 0.  E[T(x)] = x.

    Probabilities are honoured to 2^-48, and to float32's own 2^-24 relative.  A pruned element is +0.0.
    """
    return _run("stochastic_prune", x, (_scalar("threshold", threshold, x, 0.0), _key(seed, offset, x)), out, counted)


def stochastic_prune_(x: Tensor, threshold: Scalar, seed: int | Tensor = 0, offset: int | Tensor = 0) -> Tensor:
    """`stochastic_prune` in place."""
    result: Tensor = stochastic_prune(x, threshold, seed, offset, out=x)
    return result


def threshold_prune(x: Tensor, threshold: Scalar, *, out: Tensor | None = None, counted: bool = False) -> Any:
    """Keep |x| > threshold, set the rest to 0: the deterministic, biased rule of the top-k baselines."""
    return _run("threshold_prune", x, (_scalar("threshold", threshold, x, 0.0),), out, counted)


def threshold_prune_(x: Tensor, threshold: Scalar) -> Tensor:
    """`threshold_prune` in place."""
    result: Tensor = threshold_prune(x, threshold, out=x)
    return result


def dither(
    x: Tensor,
    step: Scalar,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """x rounded stochastically to multiples of `step`: the non-subtractive dither of dithered backprop, unbiased."""
    return _run("dither", x, (_scalar("step", step, x, math.ulp(0.0)), _key(seed, offset, x)), out, counted)


def dither_(x: Tensor, step: Scalar, seed: int | Tensor = 0, offset: int | Tensor = 0) -> Tensor:
    """`dither` in place."""
    result: Tensor = dither(x, step, seed, offset, out=x)
    return result


def quantize(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """Q(scale x) / scale for a float or integer format of at most 8 bits, saturating.

    Simulated: the result has the type of x.  "nearest" sends ties to the even code; "stochastic" is unbiased inside the
    format's range, to 2^-48 of a step.
    """
    check_rounding(rounding, ("nearest", "stochastic"))
    arguments = (
        _scalar("scale", scale, x, math.ulp(0.0)),
        *arguments_of(format),
        rounding == "stochastic",
        _key(seed, offset, x),
    )
    return _run("quantize", x, arguments, out, counted)


def quantize_(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
) -> Tensor:
    """`quantize` in place."""
    result: Tensor = quantize(x, format, scale, rounding, seed, offset, out=x)
    return result


# Built here and not in luq, which torch.compile traces.
_POWERS_OF_TWO = {bits: FloatFormat(exponent=bits - 1, mantissa=0) for bits in range(2, 9)}


class Logarithmic(NamedTuple):
    """A tensor rounded to powers of two times its largest magnitude, which is a result too."""

    result: Tensor
    largest: Tensor
    """max |x| of the finite elements."""


def luq(
    x: Tensor, bits: int = 4, seed: int | Tensor = 0, offset: int | Tensor = 0, *, out: Tensor | None = None
) -> Logarithmic:
    """LUQ of [chmiel2023]: unbiased rounding to 2^(bits - 1) - 1 powers of two below max |x|, zero, and no clipping.

    With a = max |x| / 2^(2^(bits - 1) - 2), the smallest magnitude: below a, Eq. 5 of [chmiel2021]; between 2^k a and
    2^(k + 1) a, up with probability |x| / (2^k a) - 1.  That is `quantize` to the float format without mantissa, the
    largest magnitude scaled to its largest value, stochastically.

    The paper's Eq. 11 leaves 5 magnitudes for 4 bits and its code uses 8, of max x rather than max |x|; 7 is what three
    exponent bits hold beside zero.  Infinities saturate; positions are those of `quantize`, in memory order.

    @inproceedings{chmiel2023,
      title     = {Accurate Neural Training with 4-bit Matrix Multiplications at Standard Formats},
      author    = {Chmiel, Brian and Banner, Ron and Hoffer, Elad and Ben-Yaacov, Hilla and Soudry, Daniel},
      booktitle = {International Conference on Learning Representations},
      year      = {2023}
    }
    """
    check_width("bits", bits, 2, 8)
    _scalar("scale", 1.0, x, 0.0)
    largest = torch.ops.lograd.largest_magnitude.default(x)
    format = _POWERS_OF_TWO[bits]
    # Below the smallest normal numbers the quotient overflows; the greatest finite scale is as unbiased.
    scale = torch.where(largest > 0, format.max / largest, 1.0).clamp(max=torch.finfo(torch.float32).max)
    return Logarithmic(quantize(x, format, scale, "stochastic", seed, offset, out=out), largest)


def _run(name: str, x: Tensor, arguments: tuple[Any, ...], out: Tensor | None, counted: bool) -> Any:
    if out is None:
        result, counts = getattr(torch.ops.lograd, name).default(x, *arguments, counted)
    else:
        if out.dtype != x.dtype or out.shape != x.shape or out.stride() != x.stride() or dense(x) is not x:
            raise InvalidValue(
                f"out= must have the type, shape and strides of x, and both must fill their memory without gaps; "
                f"x is {_describe(x)}, out is {_describe(out)}."
            )
        result, counts = out, getattr(torch.ops.lograd, f"{name}_out").default(x, *arguments, counted, out)
    return Counted(result, counts) if counted else result


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} with strides {tuple(x.stride())}"


def _scalar(what: str, value: Scalar, x: Tensor, low: float) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidType(sentence("x", f"an object of type {type(x).__name__}", "a tensor"))
    if x.dtype not in FLOAT_TYPES:
        raise InvalidType(f"x must be float32, bfloat16 or float16; got {str(x.dtype).removeprefix('torch.')}.")
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise InvalidValue(f"{what} must be a number or a float tensor of one element; got {_describe(value)}.")
        return value.to(dtype=torch.float32)
    if not (isinstance(value, float | int) and math.isfinite(value) and value >= low):
        raise InvalidValue(sentence(what, value, "finite and zero or positive" if low == 0 else "finite and positive"))
    return _number(float(value), x.device) if torch.compiler.is_compiling() else _cached_number(float(value), x.device)


def _key(seed: int | Tensor, offset: int | Tensor, x: Tensor) -> Tensor:
    if isinstance(seed, int) and isinstance(offset, int):
        return (_pair if torch.compiler.is_compiling() else _cached_pair)(seed, offset, x.device)
    parts = [torch.as_tensor(part, dtype=torch.int64, device=x.device).reshape(()) for part in (seed, offset)]
    return torch.stack(parts)


def _number(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=torch.float32, device=device)


def _pair(seed: int, offset: int, device: torch.device) -> Tensor:
    return torch.tensor([_wrap(seed), _wrap(offset)], device=device)


# A small tensor costs as much as a small kernel.  Operators only read these.
_cached_number = lru_cache(maxsize=512)(_number)
_cached_pair = lru_cache(maxsize=512)(_pair)


def _wrap(value: int) -> int:
    """A 64-bit pattern as the int64 that holds it."""
    return (value + 2**63) % 2**64 - 2**63
