"""Formats with their codes, as the kernels see them: codings of elements and of blocks that share a scale.

An operator is given a format as text, so that its signature stays short and a compiled graph holds no Python object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue
from ..formats import BlockFormat, FloatFormat, Format, IntFormat, parse_format
from .grid import Grid, constant, grid_of

_LIMIT = "quantize_blocks takes formats whose scale"


def text_of(format: BlockFormat | Format) -> str:
    """str(format), in steps that torch.compile can follow."""
    format = constant(format)
    if isinstance(format, BlockFormat):
        return "/".join((str(format.element), str(format.size), str(format.scale)))
    return str(format)


def check_element_format(what: str, format: object) -> None:
    """Refuses a format that gives no single element a code."""
    if not isinstance(format, FloatFormat | IntFormat):
        raise InvalidType(f"{what} takes a FloatFormat or an IntFormat; got {format!r}.")


def check_block_format(format: object) -> None:
    """Refuses a format that is none of blocks."""
    if not isinstance(format, BlockFormat):
        raise InvalidType(f"quantize_blocks takes a BlockFormat, such as CATALOGUE['mxfp4']; got {format!r}.")


@dataclass(frozen=True)
class Coding:
    """A format's grid and its codes, as the kernels see them."""

    grid: Grid
    largest: int
    """Code of the largest value."""
    largest_negative: int
    """Code of the most negative value's magnitude."""
    negative_base: int
    negative_step: int
    """A negative number of magnitude code c > 0 has the code base + step c: a sign bit, or two's complement."""
    negative_zero: int
    """Code of -0; that of 0 where the format has none."""
    nan: int
    """Code of NaN; that of 0 where the format has none."""
    values: tuple[float, ...]
    """The value of each of the 256 bytes; NaN where it is no code."""

    @classmethod
    def of(cls, format: FloatFormat | IntFormat, grid: Grid) -> Coding:
        """The coding of a format with this grid."""
        codes = 2**format.bits
        integer = isinstance(format, IntFormat)
        largest = format.encode(format.max)
        return cls(
            grid=grid,
            largest=largest,
            largest_negative=int(grid.largest_negative) if integer else largest,
            negative_base=codes if integer else codes // 2,
            negative_step=-1 if integer else 1,
            negative_zero=_code_or_0(format, -0.0),
            nan=_code_or_0(format, math.nan),
            values=tuple(_value_or_nan(format, code) for code in range(256)),
        )

    def table(self, device: torch.device) -> Tensor:
        """`values` as a float32 tensor."""
        return torch.tensor(self.values, dtype=torch.float32, device=device)

    def codes_of(self, value: Tensor) -> Tensor:
        """The codes, as uint8, of float32 values that the format has, and of NaN."""
        m = value.abs().nan_to_num(0.0)
        if self.grid.integer:
            code = m.int()
        else:
            low, mantissa = self.grid.smallest_exponent, self.grid.mantissa
            exponent = (torch.frexp(m).exponent - 1).where(m > 0, low).clamp(min=low)
            code = ((exponent - low) << mantissa) + torch.ldexp(m, mantissa - exponent).int()
        below = torch.where(code == 0, self.negative_zero, self.negative_base + self.negative_step * code)
        code = torch.where(value.signbit(), below, code)
        return torch.where(value.isnan(), self.nan, code).to(torch.uint8)

    def compiled(self) -> Any:
        """The same for the native kernels."""
        *numbers, values = (getattr(self, name) for name in self.__dataclass_fields__ if name != "grid")
        return native.kernel("coding")(*self.grid, *numbers, list(values))


def _code_or_0(format: FloatFormat | IntFormat, value: float) -> int:
    try:
        return format.encode(value)
    except InvalidValue:
        return 0


def _value_or_nan(format: FloatFormat | IntFormat, code: int) -> float:
    """One NaN, without a sign, for all codes that stand for NaN or for nothing."""
    value = format.decode(code) if code < 2**format.bits else math.nan
    return math.nan if math.isnan(value) else value


@lru_cache(maxsize=256)
def coding_of(text: str) -> Coding:
    """The coding of an element format that is given as text."""
    format = parse_format(text)
    check_element_format("quantize_codes", format)
    assert isinstance(format, FloatFormat | IntFormat)
    return Coding.of(format, grid_of(format))


@lru_cache(maxsize=256)
def compiled_coding_of(text: str) -> Any:
    """`coding_of` for the native kernels."""
    return coding_of(text).compiled()


# --------------------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class BlockCoding:
    """A block format as the kernels see it."""

    element: Coding
    scale: Coding
    size: int
    power_of_two: bool
    """The scale is 2^(floor(log2 max) - element_emax), as in MX; else max / element.max, rounded to nearest."""
    element_emax: int
    scale_emin: int
    scale_emax: int

    @classmethod
    def of(cls, format: BlockFormat) -> BlockCoding:
        """The coding of a block format; refuses scales that the kernels cannot compute."""
        scale = format.scale
        if scale.bits > 8 or (scale.subnormals if not scale.mantissa else not scale.subnormals):
            raise InvalidValue(
                f"{_LIMIT} has at most 8 bits and is a power of two without zero (as E8M0), or has a mantissa and "
                f"subnormals (as E4M3); the scale of {format} is {scale}."
            )
        if scale.mantissa and (scale.emin - scale.mantissa < -100 or scale.emax > 100):
            raise InvalidValue(f"{_LIMIT} stays within 2^-100 to 2^100; the scale of {format} is {scale}.")
        if not scale.mantissa and not (scale.emin >= -127 and scale.emax <= 127):
            raise InvalidValue(f"{_LIMIT} stays within 2^-127 to 2^127; the scale of {format} is {scale}.")
        grid = Grid(False, scale.mantissa, scale.emin, False, scale.max, scale.max)
        coding = cls(
            element=Coding.of(format.element, grid_of(format.element)),
            scale=Coding.of(scale, grid),
            size=format.size,
            power_of_two=scale.mantissa == 0,
            element_emax=math.frexp(format.element.max)[1] - 1,
            scale_emin=scale.emin,
            scale_emax=scale.emax,
        )
        if not math.isnan(coding.scale.values[coding.scale.nan]):
            raise InvalidValue(
                f"{_LIMIT} has a NaN, by which a block says that it held NaN or infinity; the scale of {format}, "
                f"{scale}, has none."
            )
        return coding

    def per_row(self, columns: int) -> int:
        """How many blocks a row of so many columns has."""
        return (columns + self.size - 1) // self.size

    def compiled(self) -> Any:
        """The same for the native kernels."""
        numbers = (self.size, self.power_of_two, self.element_emax, self.scale_emin, self.scale_emax)
        return native.kernel("block_coding")(self.element.compiled(), self.scale.compiled(), *numbers)


@lru_cache(maxsize=64)
def block_coding_of(text: str, unbiased: bool) -> BlockCoding:
    """The coding of a block format that serves the variant."""
    format = parse_format(text)
    check_block_format(format)
    assert isinstance(format, BlockFormat)
    if unbiased and (reason := why_biased(format)):
        raise InvalidValue(reason)
    return BlockCoding.of(format)


@lru_cache(maxsize=64)
def why_biased(format: BlockFormat) -> str:
    """The reason why the unbiased variant does not serve a format; empty if it does."""
    coding = BlockCoding.of(format)
    if not coding.power_of_two:
        return (
            f"variant='unbiased' is for scales that are powers of two, as in MX; the scale of {format} is "
            f"{format.scale}."
        )
    if format.element.max < 1.5 * 2.0**coding.element_emax:
        return (
            f"variant='unbiased' needs elements that reach 1.5 times their largest power of two; {format.element} ends "
            f"at {format.element.max:g}."
        )
    return ""


@lru_cache(maxsize=64)
def compiled_block_coding_of(text: str, unbiased: bool) -> Any:
    """`block_coding_of` for the native kernels."""
    return block_coding_of(text, unbiased).compiled()
