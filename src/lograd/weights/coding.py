"""How weights become codes and numbers again: V(code) times the spacing of its row.

A row is an output channel, the first dimension.  The spacing of an integer format has at most 12
significant bits and that of a float format is a power of two, so that decoding is exact in float32 and dividing a
decoded weight by its spacing gives the code's own value again: what no update touches is never rounded again.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..formats import FloatFormat, Format, IntFormat, parse_format
from ..ops import dequantize_codes, dither
from ..ops.codes import quantize_codes_into
from ..ops.elementwise import grid_of
from ..ops.layouts import flat, is_dense

Rounding = Literal["nearest", "stochastic"]
WeightFormat = FloatFormat | IntFormat
"""Signed, of at most 8 bits and with a spacing for each row; or bfloat16, which needs none."""

BFLOAT16 = parse_format("bfloat16")
SIGNIFICANT = 12
"""Bits of the spacing of integers."""
HEADROOM = 1 + 1 / 16
"""How much wider than its largest weight a row of integers becomes when it must grow, so that it need not grow again
in each step: a new spacing rounds all of the row anew."""
SMALLEST = 2.0**-100
"""The least spacing: below it, float32 products with a code's value would not be exact."""
BLOCK = 2**17
"""Elements that are rounded to bfloat16 at a time: the temporary copies stay in the cache."""


def check_weight_format(format: Format | str) -> WeightFormat:
    """Return a format as a value, or refuse one that weights cannot have."""
    found = parse_format(format) if isinstance(format, str) else format
    expected = "int2 to int8, a float format of at most 8 bits such as 'e4m3fn', or 'bfloat16'"
    if not isinstance(found, FloatFormat | IntFormat):
        raise InvalidType(sentence("format", found, expected))
    if found == BFLOAT16:
        return found
    if found.bits > 8:
        raise InvalidValue(sentence("format", str(found), expected))
    if isinstance(found, IntFormat) and not found.signed:
        raise InvalidValue(f"format must have a sign, as weights have; got {found}.")
    grid_of(found)  # refuses formats that no operator rounds to
    return found


def fresh_spacing(values: Tensor, like: Tensor, format: WeightFormat) -> Tensor:
    """Return the narrowest spacings that hold all values, in the shape of `like`.

    A row that is not finite has NaN.  Decoded values give the numbers again that they were decoded from.
    """
    return _spacing(_largest(values, like), 1.0, format)


def next_spacing(values: Tensor, spacing: Tensor, format: WeightFormat) -> tuple[Tensor, Tensor]:
    """Return the spacings for new values, which are the old ones while they fit, and how many rows changed.

    A row grows as soon as a weight leaves its range, so that no weight is clipped.  It shrinks when the weights use
    less than half of an integer range, or a quarter of a float range.  With NaN or infinity it is lost: it decodes to
    NaN.  The counts are of rows that grew, that shrank, and that are lost.
    """
    largest = _largest(values, spacing)
    reach = spacing * float(format.max)
    part = 2.0 if isinstance(format, IntFormat) else 4.0
    lost = ~largest.isfinite()
    blank = (largest == 0) & ~spacing.isnan()  # a row of zeros fits everywhere
    grown = (largest > reach) & ~lost
    shrunk = ~((largest >= reach / part) | blank | grown | lost)  # also true where the old spacing is NaN
    renewed = _spacing(largest, HEADROOM, format)
    changes = torch.stack([grown.sum(), shrunk.sum(), lost.sum()])
    return torch.where(grown | shrunk | lost, renewed, spacing), changes


def _spacing(largest: Tensor, headroom: float, format: WeightFormat) -> Tensor:
    if isinstance(format, IntFormat):
        fraction, exponent = torch.frexp(largest.double() * headroom / format.max)
        spacing = torch.ldexp((fraction * 2**SIGNIFICANT).ceil(), exponent - SIGNIFICANT)
    else:
        fraction, exponent = torch.frexp(largest.double() / format.max)
        spacing = torch.ldexp(torch.ones_like(fraction), exponent - (fraction == 0.5).to(exponent.dtype))
    spacing = torch.where(largest == 0, 1.0, spacing.clamp(min=SMALLEST))
    return torch.where(largest.isfinite(), spacing, torch.nan).float()


def encode_weights_(
    values: Tensor, spacing: Tensor, codes: Tensor, format: WeightFormat, rounding: Rounding, key: Tensor
) -> None:
    """Write the codes of values, which are overwritten."""
    if format != BFLOAT16:
        quantize_codes_into(codes, values.div_(spacing), format, 1.0, rounding, key)
        return
    alike = codes.stride() == values.stride() and is_dense(codes)
    own = codes if alike else torch.empty_like(values, dtype=codes.dtype)
    _encode_bfloat16_(flat(values), flat(own), rounding, key)
    if own is not codes:  # a view with gaps
        codes.copy_(own)


def decode_weights(codes: Tensor, spacing: Tensor, format: WeightFormat, dtype: torch.dtype) -> Tensor:
    """Return the numbers that codes stand for."""
    if format == BFLOAT16:
        return codes.to(dtype, copy=True)
    if str(format) == "int8":
        values = codes.view(torch.int8).to(torch.float32)
    else:
        values = dequantize_codes(codes, format)
    return values.mul_(spacing).to(dtype)


def _largest(values: Tensor, like: Tensor) -> Tensor:
    """Return the largest magnitude of each row; NaN if the row holds one."""
    if not values.numel():
        return torch.zeros_like(like)
    dims = tuple(place for place, size in enumerate(like.shape) if size == 1)
    if not dims:
        return values.abs()
    return torch.maximum(values.amax(dims, keepdim=True), -values.amin(dims, keepdim=True))


def _encode_bfloat16_(values: Tensor, codes: Tensor, rounding: Rounding, key: Tensor) -> None:
    """Write float32 values, in one dimension, as bfloat16: to nearest, or up by chance of the 16 bits that are lost."""
    if rounding == "nearest":
        codes.copy_(values)
        return
    lower = torch.empty(min(BLOCK, len(values)), dtype=torch.int32, device=values.device)
    chance = torch.empty_like(lower, dtype=torch.float32)
    seed, offset = key.tolist()
    for first in range(0, len(values), BLOCK):
        part = values[first : first + BLOCK]
        low, up = lower[: len(part)], chance[: len(part)]
        absent = None if all_finite(part) else part.isnan()
        bits = part.view(torch.int32)
        up.copy_(torch.bitwise_and(bits, 0xFFFF, out=low))
        low.copy_(dither(up, 65536.0, seed, offset + first))
        bits.bitwise_and_(-65536).add_(low)
        codes[first : first + BLOCK] = part if absent is None else part.masked_fill_(absent, torch.nan)


def all_finite(values: Tensor) -> bool:
    """Return True only if no value is NaN or infinite; a sum is far faster than a test of each."""
    return bool(values.sum().isfinite())
