"""Prune, dither and quantize: the operators that treat every element by itself, and LUQ, a sentence of them."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from torch import Tensor

from ..formats import FloatFormat, Format
from ..formats.values import check_rounding, check_width
from .arguments import Counted, Scalar, check_floats, check_out, in_type_of, key_of, scalar
from .codes import pack_codes
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


# Built here and not in luq, which torch.compile traces.
_POWERS_OF_TWO = {bits: FloatFormat(exponent=bits - 1, mantissa=0) for bits in range(2, 9)}


class Logarithmic(NamedTuple):
    """A tensor rounded to powers of two times its largest magnitude, which is a result too."""

    result: Tensor
    largest: Tensor
    """max |x| of the finite elements."""
    counts: Tensor
    """As in `Counted`."""


def luq(
    x: Tensor,
    bits: int = 4,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    rounding: Literal["nearest", "stochastic"] = "stochastic",
    out: Tensor | None = None,
) -> Logarithmic:
    """LUQ of [chmiel2023]: unbiased rounding to 2^(bits - 1) - 1 powers of two below max |x|, zero, and no clipping.

    With a = max |x| / 2^(2^(bits - 1) - 2), the smallest magnitude: below a, Eq. 5 of [chmiel2021]; between 2^k a and
    2^(k + 1) a, up with probability |x| / (2^k a) - 1.  That is `quantize` to the float format without mantissa, the
    largest magnitude scaled to its largest value, stochastically; `rounding="nearest"` is the biased variant.

    The paper's Eq. 11 leaves 5 magnitudes for 4 bits and its code uses 8, of max x rather than max |x|; 7 is what three
    exponent bits hold beside zero.  Infinities saturate; positions are those of `quantize`, in memory order.

    @inproceedings{chmiel2023,
      title     = {Accurate Neural Training with 4-bit Matrix Multiplications at Standard Formats},
      author    = {Chmiel, Brian and Banner, Ron and Hoffer, Elad and Ben-Yaacov, Hilla and Soudry, Daniel},
      booktitle = {International Conference on Learning Representations},
      year      = {2023}
    }
    """
    format = _powers_of_two(bits, x)
    largest, scale = call("largest_and_scale", x, format.max).unbind()
    result, counts = quantize(x, format, scale, rounding, seed, offset, out=out, counted=True)
    return Logarithmic(result, largest, counts)


def pack_luq(
    x: Tensor,
    bits: int = 4,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    rounding: Literal["nearest", "stochastic"] = "stochastic",
    counted: bool = False,
) -> Any:
    """A `CodedTensor` whose decode() is the result of `luq`; with `counted` an `Encoded`."""
    format = _powers_of_two(bits, x)
    scale = call("largest_and_scale", x, format.max)[1]
    return pack_codes(x, format, scale, rounding, seed, offset, counted=counted)


def _powers_of_two(bits: int, x: Tensor) -> FloatFormat:
    check_width("bits", bits, 2, 8)
    check_floats(x)
    return _POWERS_OF_TWO[bits]


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
