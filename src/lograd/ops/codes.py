"""Quantized tensors as codes: one byte for each element, or two codes of 4 bits to a byte; and their exact inverse.

A byte holds what `format.encode` gives: sign, exponent and mantissa bits of a float, two's complement of an integer, in
its lowest `format.bits` bits.  The upper bits are 0.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ..coded import CodedTensor, Encoded, Layout
from ..errors import InvalidType
from ..formats import FloatFormat, Format
from ..formats.values import check_rounding
from .arguments import Counted, Scalar, check_codes, check_floats, check_out, key_of, scalar, type_name
from .codings import check_element_format, text_of
from .contracts import FLOAT_TYPES
from .reference.codes import check_length, check_packable
from .registry import call

Rounding = Literal["nearest", "stochastic"]


def quantize_codes(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Rounding = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """The codes of Q(scale x): what `quantize` computes, with the same random numbers, kept as one byte per element.

    `dequantize_codes` of them is `quantize(x)` bit for bit, but for what the format has no code for: -0 becomes 0 in
    integers and "fnuz" formats, and NaN becomes 0 where the format has no NaN.  With `counted=True` the NaN of x are
    counted, so that none is lost unseen.

    Args:
        x: float32, bfloat16 or float16, of any layout; the codes have its shape and layout.
        format: a FloatFormat with sign, zero and subnormals, or an IntFormat, of at most 8 bits.
        scale: x is multiplied by it before it is rounded.
        rounding: "nearest" (ties to the even code) or "stochastic".
        seed, offset: name the random numbers, which belong to positions in memory order.
        out: a uint8 tensor that takes the codes.
        counted: also give the numbers of zeros, NaN and saturated elements.

    >>> from lograd.formats import parse_format
    >>> quantize_codes(torch.tensor([1.0, -1.0, 6.5]), parse_format("e2m1"))
    tensor([ 2, 10,  7], dtype=torch.uint8)
    """
    check_rounding(rounding, ("nearest", "stochastic"))
    check_floats(x)
    check_element_format("quantize_codes", format)
    factor, key = scalar("scale", scale, x, math.ulp(0.0)), key_of(seed, offset, x)
    arguments = (x, factor, text_of(format), rounding == "stochastic", key)
    if out is None:
        codes, counts = call("quantize_codes", *arguments)
    else:
        check_out(out, x, torch.uint8)
        codes, counts = out, call("quantize_codes_out", *arguments, out)
    return Counted(codes, counts) if counted else codes


def pack_codes(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Rounding = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    counted: bool = False,
) -> Any:
    """A `CodedTensor` whose decode() is `quantize(x, format, scale, ...)`, bit for bit but for -0.0 in integers.

    Arguments as in `quantize_codes`; with `counted` the result is an `Encoded`.  Where x holds a NaN and the format has
    none, the scale becomes NaN, and the tensor decodes to NaN as a whole.

    >>> pack_codes(torch.tensor([1.0, -1.0, 6.5]), FloatFormat(2, 1)).decode()
    tensor([ 1., -1.,  6.])
    """
    codes, counts = quantize_codes(x, format, scale, rounding, seed, offset, counted=True)
    factor = scalar("scale", scale, x, math.ulp(0.0))
    # Either way a new tensor: a scale that is a tensor may change, and what was coded may not.
    factor = factor.clone() if _has_nan(format) else torch.where(counts[1] > 0, math.nan, factor)
    coded = CodedTensor(codes, factor, text_of(format), Layout(tuple(x.shape), tuple(codes.stride()), x.dtype))
    return Encoded(coded, counts) if counted else coded


def _has_nan(format: Format) -> bool:
    if not isinstance(format, FloatFormat):
        return False
    return format.specials in ("fn", "fnuz") or (format.specials == "ieee" and format.mantissa > 0)


def dequantize_codes(codes: Tensor, format: Format, scale: Scalar = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """format.decode(code) / scale for each byte, as float32, bfloat16 or float16; a byte that is no code gives NaN."""
    check_codes("codes", codes)
    check_dtype(dtype)
    check_element_format("dequantize_codes", format)
    factor = scalar("scale", scale, codes, math.ulp(0.0))
    result: Tensor = call("dequantize_codes", codes, factor, text_of(format), dtype)
    return result


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two codes of 4 bits to a byte, along the last dimension: code 2i in the low half of byte i, 2i + 1 in the high.

    A last dimension of n becomes (n + 1) // 2; where n is odd, the last high half is 0.

    >>> pack_nibbles(torch.tensor([1, 2, 15], dtype=torch.uint8))
    tensor([33, 15], dtype=torch.uint8)
    """
    check_codes("codes", codes)
    check_packable(codes)
    result: Tensor = call("pack_nibbles", codes)
    return result


def unpack_nibbles(packed: Tensor, length: int | None = None) -> Tensor:
    """The inverse of `pack_nibbles`; `length` of the last dimension of the codes, twice the bytes if not given."""
    check_codes("packed", packed)
    length = (2 * packed.shape[-1] if packed.dim() else 0) if length is None else length
    check_length(packed, length)
    result: Tensor = call("unpack_nibbles", packed, length)
    return result


def check_dtype(dtype: torch.dtype) -> None:
    """Refuses a type that no code is decoded to."""
    if not isinstance(dtype, torch.dtype) or dtype not in FLOAT_TYPES:
        name = type_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise InvalidType(f"dtype must be float32, bfloat16 or float16; got {name}.")
