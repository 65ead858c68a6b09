"""Prune, dither and quantize: the operators that treat every element by itself.

A definition maps a flat float32 tensor to one, and to the number of elements that saturated.  `OPERATORS` names them
with their arguments; a new operator is a definition, a line there and a public function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, shown
from ..formats import BlockFormat, FloatFormat, Format, IntFormat
from ..formats.values import check_rounding
from .arguments import Counted, Rounding, Scalar, Seed, check_floats, in_type_of, key_of, scalar
from .contracts import COUNTS, FLOAT_TYPES
from .layouts import dense, empty_for, flat, in_type
from .random import lower32, rounded_up_or_down, upper16
from .registry import Kernel, call, register, run, when_native

Result = tuple[Tensor, Tensor | int]


def stochastic_prune(x: Tensor, threshold: Scalar, seed: Seed = 0, offset: Seed = 0, *, counted: bool = False) -> Any:
    """Eq. 5 of [chmiel2021]: keep |x| > a; else sign(x) a with probability |x| / a, else 0.  E[T(x)] = x.

    Probabilities are honoured to 2^-48, and to float32's own 2^-24 relative.  A pruned element is +0.0.  For 16-bit x
    the threshold is first rounded to that type, as it becomes a value of the result.
    """
    a = in_type_of(x, _scalar("threshold", threshold, x, 0.0))
    return _run("stochastic_prune", x, (a, key_of(seed, offset, x)), counted)


def threshold_prune(x: Tensor, threshold: Scalar, *, counted: bool = False) -> Any:
    """Keep |x| > threshold, set the rest to 0: the deterministic, biased rule of the top-k baselines."""
    return _run("threshold_prune", x, (_scalar("threshold", threshold, x, 0.0),), counted)


def dither(x: Tensor, step: Scalar, seed: Seed = 0, offset: Seed = 0, *, counted: bool = False) -> Any:
    """x rounded stochastically to multiples of `step`: the non-subtractive dither of dithered backprop.

    Unbiased, to the rounding of a multiple to the type of x.
    """
    return _run("dither", x, (_scalar("step", step, x, math.ulp(0.0)), key_of(seed, offset, x)), counted)


def quantize(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Rounding = "nearest",
    seed: Seed = 0,
    offset: Seed = 0,
    *,
    counted: bool = False,
) -> Any:
    """Q(scale x) / scale for a float or integer format of at most 8 bits, saturating.

    Simulated: the result has the type of x.  "nearest" sends ties to the even code; "stochastic" is unbiased inside the
    format's range, to 2^-48 of a step and to the rounding of a value divided by the scale to the type of x.
    """
    check_rounding(rounding, ("nearest", "stochastic"))
    arguments = (
        _scalar("scale", scale, x, math.ulp(0.0)),
        *arguments_of(format),
        rounding == "stochastic",
        key_of(seed, offset, x),
    )
    return _run("quantize", x, arguments, counted)


def _run(name: str, x: Tensor, arguments: tuple[Any, ...], counted: bool) -> Any:
    result, counts = call(name, x, *arguments, counted)
    return Counted(result, counts) if counted else result


def _scalar(what: str, value: Scalar, x: Tensor, low: float) -> Tensor:
    check_floats(x)
    return scalar(what, value, x, low)


# ----------------------------------------------------------------------------------------------------------- grids

# An operator is given the numbers of a format, so that a compiled graph holds no Python object.


class Grid(NamedTuple):
    """Magnitudes are rounded to multiples of 2^(max(exponent, smallest_exponent) - mantissa); of 1 for an integer."""

    integer: bool
    mantissa: int
    smallest_exponent: int
    odd_exponents_up: bool
    """Without mantissa, ties go to the even code: up where the exponent is odd, or (False) where it is even."""
    largest: float
    largest_negative: float


def grid_of(format: Format) -> Grid:
    """The grid of a format of at most 8 bits that rounds gradients: signed, with zero, with subnormals."""
    return _cached_grid(_checked(format))


def _checked(format: Format) -> FloatFormat | IntFormat:
    if not isinstance(format, FloatFormat | IntFormat):
        raise InvalidType(f"quantize takes a FloatFormat or an IntFormat; got {shown(format)}.")
    return format


def _grid(format: FloatFormat | IntFormat) -> Grid:
    if format.bits > 8:
        raise InvalidValue(f"quantize takes formats of at most 8 bits; {format} has {format.bits}.")
    if isinstance(format, IntFormat):
        return Grid(True, 0, 0, False, format.max, -format.min)
    if not (format.signed and format.zero and format.subnormals):
        raise InvalidValue(f"quantize takes formats with a sign, a zero and subnormals; {format} lacks one of them.")
    if format.emin - format.mantissa < -100 or format.emax > 100:
        raise InvalidValue(f"{format} reaches beyond 2^-100 to 2^100, where float32 arithmetic is not exact.")
    return Grid(False, format.mantissa, format.emin, (1 - format.emin) % 2 == 0, format.max, format.max)


_cached_grid = lru_cache(maxsize=256)(_grid)


def arguments_of(format: Format) -> tuple[Any, ...]:
    """The grid as the operator's arguments.

    torch.compile follows the computation itself, so that a format may be made inside of what is compiled: it cannot
    look into a cache, nor hand a format that it has only traced to a function that it does not trace.
    """
    if torch.compiler.is_compiling():
        return tuple(_grid(constant(_checked(format))))
    return tuple(grid_of(format))


def constant(format: Any) -> Any:
    """The same format; in compiled code with numbers that are constants there, whatever they were before.

    A format that came from outside may have symbols in place of its numbers, and its class makes constants of them.
    """
    if not torch.compiler.is_compiling():
        return format
    if isinstance(format, BlockFormat):
        return BlockFormat(constant(format.element), format.size, constant(format.scale))
    if isinstance(format, IntFormat):
        return IntFormat(format.bits, format.symmetric, format.signed)
    if isinstance(format, FloatFormat):
        return FloatFormat(
            format.exponent, format.mantissa, format.bias, format.specials, format.signed, format.subnormals,
            format.zero,
        )  # fmt: skip
    return format


# ---------------------------------------------------------------------------------------------------------- definitions


def _stochastic_prune(x: Tensor, threshold: Tensor, key: Tensor) -> Result:
    """Eq. 5 of [chmiel2021]: sign(x) max(|x|, a) if |x| > U a, else 0.  NaN stays NaN.

    The upper 16 bits of U decide, in float32, unless |x| lies in the one interval of width a / 2^16 where they cannot;
    there all 48 bits decide, in float64.
    """
    a = threshold.float()
    step = a * 2.0**-16
    high16 = upper16(x.numel(), key)
    m = x.abs()
    low = high16.float() * step
    undecided = (m > low) & (m <= low + step)
    full = (high16 + lower32(x.numel(), key).double() * 2.0**-32) * step.double()
    keep = torch.where(undecided, m.double() > full, ~(m <= low))
    kept = torch.copysign(torch.where(m < a, a, m), x)
    return torch.where(keep, torch.where(x.isnan(), x, kept), 0.0), 0


def _threshold_prune(x: Tensor, threshold: Tensor) -> Result:
    """Keep |x| > t, and NaN."""
    return torch.where(x.abs() <= threshold.float(), 0.0, x), 0


def _dither(x: Tensor, step: Tensor, key: Tensor) -> Result:
    """x rounded stochastically to multiples of `step`: non-subtractive dither."""
    d = step.float()
    steps = x.abs() / d
    rounded = torch.where(steps < 2.0**23, rounded_up_or_down(steps, key), steps)
    return torch.copysign(rounded * d, x), 0


def round_to_grid(x: Tensor, scale: Tensor, grid: Grid, stochastic: bool, key: Tensor) -> Result:
    """Q(scale x) / scale, saturating.  NaN stays NaN."""
    s = scale.float()
    y = x * s
    m = y.abs().clamp(max=max(grid.largest, grid.largest_negative))
    exponent = torch.zeros_like(m, dtype=torch.int32)
    if not grid.integer:
        exponent = (torch.frexp(m).exponent - 1).where(m > 0, grid.smallest_exponent)
        exponent = exponent.clamp(min=grid.smallest_exponent) - grid.mantissa
    steps = torch.ldexp(m, -exponent)
    if stochastic:
        rounded = rounded_up_or_down(steps, key)
    else:
        rounded = steps.round()
        if not grid.integer and grid.mantissa == 0:
            stays = (steps == 1.5) & ((exponent & 1) == (0 if grid.odd_exponents_up else 1))
            rounded = torch.where(stays, 1.0, rounded)
    limit = torch.where(y.signbit(), grid.largest_negative, grid.largest)
    value = torch.minimum(torch.ldexp(rounded, exponent), limit.to(m.dtype))
    return torch.where(x.isnan(), x, torch.copysign(value, y) / s), (y.abs() > limit).sum()


# -------------------------------------------------------------------------------------------------------------- kernels


def _quantize(x: Tensor, scale: Tensor, *grid_stochastic_key: Any) -> Result:
    *grid, stochastic, key = grid_stochastic_key
    return round_to_grid(x, scale, Grid(*grid), stochastic, key)


OPERATORS: dict[str, tuple[str, Callable[..., Result]]] = {
    "stochastic_prune": ("Tensor threshold, Tensor key", _stochastic_prune),
    "threshold_prune": ("Tensor threshold", _threshold_prune),
    "dither": ("Tensor step, Tensor key", _dither),
    "quantize": (
        "Tensor scale, bool integer, int mantissa, int smallest_exponent, bool odd_exponents_up, float largest, "
        "float largest_negative, bool stochastic, Tensor key",
        _quantize,
    ),
}
"""Arguments beside x, and the definition.  The native kernel of the same name takes (type, x, y, elements, *arguments,
counts, threads)."""


def _room_for_counts(x: Tensor, counted: bool) -> Tensor:
    """Return room for the zeros, NaN and saturated elements of a result and the zeros of x; empty unless `counted`."""
    return x.new_zeros(COUNTS + 1, dtype=torch.int64) if counted else x.new_empty(0, dtype=torch.int64)


def _reference(definition: Callable[..., Result]) -> Kernel:
    def kernel(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        *values, counted = rest
        x = dense(x)
        result, clipped = definition(flat(x).float(), *values)
        out = torch.empty_like(x)
        flat(out).copy_(in_type(result, x.dtype))
        if not counted:
            return out, _room_for_counts(x, False)
        zeros, nan = (result == 0).sum(), result.isnan().sum()
        return out, torch.stack([zeros, nan, torch.as_tensor(clipped, device=x.device), (x == 0).sum()])

    return kernel


def _native(name: str) -> Kernel:
    def kernel(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        *values, counted = rest
        x = dense(x)
        out, counts = torch.empty_like(x), _room_for_counts(x, counted)
        run(name, FLOAT_TYPES[x.dtype], x, out, x.numel(), *values, counts if counted else None)
        return out, counts

    return kernel


for _name, (_arguments, _definition) in OPERATORS.items():
    register(
        f"{_name}(Tensor x, {_arguments}, bool counted) -> (Tensor, Tensor)",
        _reference(_definition),
        when_native(_native(_name)),
        lambda x, *rest: (empty_for(x), _room_for_counts(x, rest[-1])),
    )
