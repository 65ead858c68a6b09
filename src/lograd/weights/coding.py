"""How weights become codes and numbers again: V(code) times the spacing of its row.

A row is an output channel, the first dimension, or the whole tensor.  The spacing of an integer format has at most 12
significant bits and that of a float format is a power of two, so that decoding is exact in float32 and dividing a
decoded weight by its spacing gives the code's own value again: what no update touches is never rounded again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..formats import FloatFormat, Format, IntFormat, parse_format
from ..ops import dequantize_codes, dither
from ..ops.codes import quantize_codes_into
from ..ops.elementwise import grid_of
from ..ops.layouts import flat, is_dense

Rounding = Literal["nearest", "stochastic"]
Per = Literal["channel", "tensor"]

SIGNIFICANT = 12
"""Bits of the spacing of integers."""
HEADROOM = 1 + 1 / 16
"""How much wider than its largest weight a row of integers becomes when it must grow, so that it need not grow again
in each step: a new spacing rounds all of the row anew."""
SMALLEST = 2.0**-100
"""The least spacing: below it, float32 products with a code's value would not be exact."""
BLOCK = 2**17
"""Elements that are rounded to bfloat16 at a time: the temporary copies stay in the cache."""


class Spacings(NamedTuple):
    """The spacing of each row for its new weights, and flags for rows whose spacing changed."""

    spacing: Tensor
    grown: Tensor
    """A weight left the range."""
    shrunk: Tensor
    """The weights use less than half of an integer range, or a quarter of a float range."""
    lost: Tensor
    """The row holds NaN or infinity, and decodes to NaN."""


@final
@dataclass(frozen=True)
class Coding:
    """A format of at most 8 bits with a spacing for each row, or bfloat16, which needs none.

    Args:
        format: text of the format, as `parse_format` reads it.
        per: one spacing for each "channel", the first dimension, or one for the "tensor".
    """

    format: str
    per: Per = "channel"

    @property
    def is_bfloat16(self) -> bool:
        """True if weights are plain bfloat16 numbers, without a spacing."""
        return self.format == BFLOAT16

    @property
    def dtype(self) -> torch.dtype:
        """The type in which codes are stored."""
        return torch.bfloat16 if self.is_bfloat16 else torch.uint8

    @property
    def numbers(self) -> FloatFormat | IntFormat:
        """The format as a value."""
        found = parse_format(self.format)
        assert isinstance(found, FloatFormat | IntFormat)
        return found

    def rows(self, shape: Any) -> tuple[int, ...]:
        """Return the shape of the spacings of a tensor, which is broadcast with it."""
        several = self.per == "channel" and len(shape) > 0 and not self.is_bfloat16
        return tuple(size if several and place == 0 else 1 for place, size in enumerate(shape))

    def fresh(self, values: Tensor, like: Tensor) -> Tensor:
        """Return the narrowest spacings that hold all values, in the shape of `like`.

        A row that is not finite has NaN.  Decoded values give the numbers again that they were decoded from.
        """
        return self._spacing(_largest(values, like), 1.0)

    def following(self, values: Tensor, spacing: Tensor) -> Spacings:
        """Return the spacings for new values: the old ones while they fit.

        A row grows as soon as a weight leaves its range, so that no weight is clipped.
        """
        largest = _largest(values, spacing)
        reach = spacing * float(self.numbers.max)
        part = 2.0 if isinstance(self.numbers, IntFormat) else 4.0
        lost = ~largest.isfinite()
        blank = (largest == 0) & ~spacing.isnan()  # a row of zeros fits everywhere
        grown = (largest > reach) & ~lost
        shrunk = ~((largest >= reach / part) | blank | grown | lost)  # also true where the old spacing is NaN
        renewed = self._spacing(largest, HEADROOM)
        return Spacings(torch.where(grown | shrunk | lost, renewed, spacing), grown, shrunk, lost)

    def _spacing(self, largest: Tensor, headroom: float) -> Tensor:
        format = self.numbers
        if isinstance(format, IntFormat):
            fraction, exponent = torch.frexp(largest.double() * headroom / format.max)
            spacing = torch.ldexp((fraction * 2**SIGNIFICANT).ceil(), exponent - SIGNIFICANT)
        else:
            fraction, exponent = torch.frexp(largest.double() / format.max)
            spacing = torch.ldexp(torch.ones_like(fraction), exponent - (fraction == 0.5).to(exponent.dtype))
        spacing = torch.where(largest == 0, 1.0, spacing.clamp(min=SMALLEST))
        return torch.where(largest.isfinite(), spacing, torch.nan).float()

    def encode_(self, values: Tensor, spacing: Tensor, codes: Tensor, rounding: Rounding, key: Tensor) -> Tensor:
        """Write the codes of values, which are overwritten, and return how many of them were clipped."""
        if self.is_bfloat16:
            alike = codes.stride() == values.stride() and is_dense(codes)
            own = codes if alike else torch.empty_like(values, dtype=codes.dtype)
            _encode_bfloat16_(flat(values), flat(own), rounding, key)
            if own is not codes:  # a view with gaps
                codes.copy_(own)
            return torch.zeros((), dtype=torch.int64)
        values.div_(spacing)
        counts: Tensor = quantize_codes_into(codes, values, self.numbers, 1.0, rounding, key)
        return counts[2]

    def decode(self, codes: Tensor, spacing: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the numbers that codes stand for."""
        if self.is_bfloat16:
            return codes.to(dtype, copy=True)
        if self.format == "int8":
            values = codes.view(torch.int8).to(torch.float32)
        else:
            values = dequantize_codes(codes, self.numbers)
        return values.mul_(spacing).to(dtype)


BFLOAT16 = str(parse_format("bfloat16"))


def coding_of(format: Format | str, per: Per = "channel") -> Coding:
    """Return the coding of a format, or refuse one that weights cannot have."""
    found = parse_format(format) if isinstance(format, str) else format
    expected = "int2 to int8, a float format of at most 8 bits such as 'e4m3fn', or 'bfloat16'"
    if not isinstance(found, FloatFormat | IntFormat):
        raise InvalidType(sentence("format", found, expected))
    if per not in ("channel", "tensor"):
        raise InvalidValue(sentence("per", per, "'channel' or 'tensor'"))
    text = str(found)
    if text != BFLOAT16:
        if found.bits > 8:
            raise InvalidValue(sentence("format", text, expected))
        if isinstance(found, IntFormat) and not found.signed:
            raise InvalidValue(f"format must have a sign, as weights have; got {text}.")
        grid_of(found)  # refuses formats that no operator rounds to
    return Coding(text, per)


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
