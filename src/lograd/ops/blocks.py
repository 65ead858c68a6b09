"""Blocks of neighbours that share one scale: MXFP4, MXFP6, MXFP8, NVFP4; nearest, stochastic, unbiased rounding.

Blocks lie along the last dimension; each row starts a new block, and its last block may be short.  Random numbers
belong to positions in row-major order, whatever the layout.  Scales and codes are results, never hidden state.

@inproceedings{tseng2025,
  title     = {Training {LLMs} with {MXFP4}},
  author    = {Tseng, Albert and Yu, Tao and Park, Youngsuk},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year      = {2025}
}
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ..coded import CodedTensor, Encoded, Layout, ThreeQuarters
from ..errors import InvalidValue, sentence
from ..formats import BlockFormat
from ..formats.values import check_rounding
from .arguments import Counted, Scalar, check_codes, check_floats, check_out, key_of, scalar
from .codes import Rounding, check_dtype
from .codings import check_block_format, text_of
from .codings import why_biased as why_biased
from .reference.blocks import check_scales
from .registry import call

Variant = Literal["standard", "unbiased"]


def quantize_blocks(
    x: Tensor,
    format: BlockFormat,
    rounding: Rounding = "nearest",
    variant: Variant = "standard",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    tensor_scale: Scalar = 1.0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """x rounded to a block format and back: t s Q(x / (t s)), with t the tensor's and s the block's scale.

    With m = max |x / t| of a block and Q saturating at element.max:

        s = 2^(floor(log2 m) - emax)     MX [ocp2023]: the largest element may exceed element.max, and is cut off there
        s = E4M3(m / 6)                  NVFP4 [nvidia2025], to nearest; t is their scale per tensor, `tensor_scale_of`

    "unbiased" is the variant of [tseng2025] for MX: (4/3) t s Q(3/4 x / (t s)).  As m / s < 2^(emax + 1), three
    quarters of it lie within the range of elements that reach 1.5 2^emax, nothing is cut off, and stochastic rounding
    is unbiased: E[result] = x, to float32's own 2^-24 relative.  "standard" is biased wherever m / s > element.max.

    A block that holds NaN or infinity becomes NaN as a whole, as in `BlockFormat.round`.  A finite x never becomes
    infinite: results end at the largest finite number of x's type.  Otherwise the result of "nearest" equals
    `BlockFormat.round` for t = 1.

    Args:
        x: float32, bfloat16 or float16; the result has its shape, type and layout.
        format: for example CATALOGUE["mxfp4"]; elements of at most 8 bits.
        rounding: "nearest" (ties to the even code) or "stochastic".
        variant: "standard" or "unbiased".
        seed, offset: name the random numbers of stochastic rounding.
        tensor_scale: t, a positive number or a float tensor of one element.
        out: where the result goes; x itself is allowed.
        counted: also give the numbers of zeros, NaN and cut-off elements.

    >>> from lograd.formats import CATALOGUE
    >>> quantize_blocks(torch.tensor([7.9, 1.2, -0.3]), CATALOGUE["mxfp4"])
    tensor([ 6.0000,  1.0000, -0.5000])
    """
    arguments = _arguments(x, format, rounding, variant, seed, offset, tensor_scale)
    if out is None:
        result, counts = call("quantize_blocks", *arguments)
    else:
        check_out(out, x, x.dtype)
        result, counts = out, call("quantize_blocks_out", *arguments, out)
    return Counted(result, counts) if counted else result


def quantize_block_codes(
    x: Tensor,
    format: BlockFormat,
    rounding: Rounding = "nearest",
    variant: Variant = "standard",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    tensor_scale: Scalar = 1.0,
    *,
    counted: bool = False,
) -> Any:
    """A `CodedTensor` whose decode() is `quantize_blocks`, bit for bit: one byte per element and per block's scale.

    Arguments as there; with `counted` the result is an `Encoded`.  A block that held NaN or infinity has the scale NaN
    and elements 0.
    """
    arguments = _arguments(x, format, rounding, variant, seed, offset, tensor_scale)
    codes, scales, counts = call("quantize_block_codes", *arguments)
    coded = CodedTensor(
        codes, arguments[1].clone(), arguments[2], Layout(tuple(x.shape), tuple(codes.stride()), x.dtype),
        block_scales=scales, transform=(ThreeQuarters(),) if variant == "unbiased" else (),
    )  # fmt: skip
    return Encoded(coded, counts) if counted else coded


def dequantize_block_codes(
    codes: Tensor,
    scales: Tensor,
    format: BlockFormat,
    variant: Variant = "standard",
    tensor_scale: Scalar = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The values of codes and block scales as `quantize_block_codes` makes them, for the same other arguments."""
    check_codes("codes", codes)
    check_codes("scales", scales)
    check_dtype(dtype)
    check_block_format(format)
    _check_variant(variant)
    check_scales(codes, scales, format.size)
    result: Tensor = call(
        "dequantize_block_codes",
        codes, scales, scalar("tensor_scale", tensor_scale, codes, math.ulp(0.0)), text_of(format),
        variant == "unbiased", dtype,
    )  # fmt: skip
    return result


def tensor_scale_of(x: Tensor, format: BlockFormat) -> Tensor:
    """t = max |x| / (scale.max element.max), over the finite x: the float32 scale per tensor of [nvidia2025].

    The largest block scale then is the largest that the format has.  1 where x is all zero; never below 2^-126.
    """
    check_floats(x)
    check_block_format(format)
    if not format.scale.mantissa:
        raise InvalidValue(
            f"a scale per tensor serves scales with a mantissa, as in NVFP4; that of {text_of(format)} is a power of "
            f"two and reaches far enough by itself."
        )
    finite = torch.where(x.isfinite(), x.abs(), 0.0).float()
    largest = finite.amax() if x.numel() else finite.sum()
    # A tensor, because a GPU multiplies by the reciprocal of a number.
    ends = torch.full((), format.scale.max * format.element.max, dtype=torch.float32, device=x.device)
    return torch.where(largest > 0, (largest / ends).clamp(min=2.0**-126), 1.0)


def _arguments(
    x: Tensor,
    format: BlockFormat,
    rounding: str,
    variant: str,
    seed: int | Tensor,
    offset: int | Tensor,
    tensor_scale: Scalar,
) -> tuple[Any, ...]:
    check_floats(x)
    check_rounding(rounding, ("nearest", "stochastic"))
    check_block_format(format)
    _check_variant(variant)
    if variant == "unbiased" and rounding != "stochastic":
        raise InvalidValue("variant='unbiased' needs rounding='stochastic': rounding to nearest is never unbiased.")
    return (
        x,
        scalar("tensor_scale", tensor_scale, x, math.ulp(0.0)),
        text_of(format),
        rounding == "stochastic",
        variant == "unbiased",
        key_of(seed, offset, x),
    )


def _check_variant(variant: str) -> None:
    if variant not in ("standard", "unbiased"):
        raise InvalidValue(sentence("variant", variant, "'standard' or 'unbiased'"))
