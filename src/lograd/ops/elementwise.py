"""Prune, dither and quantize: the operators that treat every element by itself."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import Tensor

from ..formats import Format
from ..formats.values import check_rounding
from .arguments import Counted, Scalar, check_floats, check_out, in_type_of, key_of, scalar
from .grid import arguments_of
from .registry import call


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

    Probabilities are honoured to 2^-48, and to float32's own 2^-24 relative.  A pruned element is +0.0.  For 16-bit x
    the threshold is first rounded to that type, as it becomes a value of the result.
    """
    a = in_type_of(x, _scalar("threshold", threshold, x, 0.0))
    return _run("stochastic_prune", x, (a, key_of(seed, offset, x)), out, counted)


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
    """x rounded stochastically to multiples of `step`: the non-subtractive dither of dithered backprop.

    Unbiased, to the rounding of a multiple to the type of x.
    """
    return _run("dither", x, (_scalar("step", step, x, math.ulp(0.0)), key_of(seed, offset, x)), out, counted)


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
    format's range, to 2^-48 of a step and to the rounding of a value divided by the scale to the type of x.
    """
    check_rounding(rounding, ("nearest", "stochastic"))
    arguments = (
        _scalar("scale", scale, x, math.ulp(0.0)),
        *arguments_of(format),
        rounding == "stochastic",
        key_of(seed, offset, x),
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


def _run(name: str, x: Tensor, arguments: tuple[Any, ...], out: Tensor | None, counted: bool) -> Any:
    if out is None:
        result, counts = call(name, x, *arguments, counted)
    else:
        check_out(out, x, x.dtype)
        result, counts = out, call(f"{name}_out", x, *arguments, counted, out)
    return Counted(result, counts) if counted else result


def _scalar(what: str, value: Scalar, x: Tensor, low: float) -> Tensor:
    check_floats(x)
    return scalar(what, value, x, low)
