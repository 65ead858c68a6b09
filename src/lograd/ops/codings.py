"""Formats as the kernels see them: grids to round to, codes of elements and blocks, and levels for integer products.

An operator is given a format as text, so that its signature stays short and a compiled graph holds no Python object;
`quantize` takes the numbers of its grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue, shown
from ..formats import BlockFormat, FloatFormat, Format, IntFormat, parse_format

_LIMIT = "quantize_blocks takes formats whose scale"


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


# --------------------------------------------------------------------------------------------------------------- codes


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


# -------------------------------------------------------------------------------------------------------------- levels

# Whole numbers, moved up by `zero` so that they are bytes, times one power of two: what products of integers take.
# Integers, powers of two such as 1-3-0, e2m1 and e2m3 have them.


@dataclass(frozen=True)
class Levels:
    """The levels of a format: a code stands for (table[code] - zero) factor."""

    table: bytes
    """256 bytes; a byte that is no code has the level of zero."""
    zero: int
    factor: float
    """A power of two."""

    @property
    def identity(self) -> bool:
        """True if codes are levels already."""
        return self.table == bytes(range(256))

    def tensor(self, device: torch.device) -> Tensor:
        """The table as a uint8 tensor."""
        return torch.tensor(list(self.table), dtype=torch.uint8, device=device)


@lru_cache(maxsize=256)
def levels_of(format: str) -> Levels:
    """The levels of an element format, or of the elements of a block format, that is given as text.

    Refused, with the reason, is a format with a NaN, without zero, or with more than 256 levels between its ends.

    >>> levels_of("1-3-0").zero, levels_of("1-3-0").factor
    (64, 0.25)
    """
    if reason := reason_without_levels(format):
        raise InvalidValue(reason)
    values = _values(format)
    factor = _unit(values)
    whole = [int(value / factor) for value in values]
    zero = -min(whole)
    if zero == 0 and whole == list(range(len(whole))):  # bytes beyond the codes pass through: nothing is looked up
        return Levels(bytes(range(256)), 0, factor)
    return Levels(bytes(each + zero for each in whole) + bytes([zero]) * (256 - len(whole)), zero, factor)


@lru_cache(maxsize=256)
def reason_without_levels(format: str) -> str | None:
    """The reason why the numbers of a format are no levels, as a sentence; None if they are.

    >>> reason_without_levels("1-4-3")
    'the numbers of 1-4-3 span 491520 of its smallest steps; integer products take formats of at most 255.'
    """
    element = _element(format)
    if not isinstance(element, FloatFormat | IntFormat) or element.bits > 8:
        return f"integer products take formats of at most 8 bits; got {format}."
    values = [value for value in _values(format) if not math.isnan(value)]
    if isinstance(element, FloatFormat) and (element.specials != "none" or not element.zero):
        missing = "has no zero" if not element.zero else "has codes for NaN or infinity"
        return f"{element} {missing}, so its codes are no whole numbers; integer products take formats of numbers only."
    span = (max(values) - min(values)) / _unit(values)
    if span > 255:
        return (
            f"the numbers of {element} span {span:.0f} of its smallest steps; integer products take formats of at most "
            "255."
        )
    return None


def _element(format: str) -> object:
    parsed = parse_format(format)
    return parsed.element if isinstance(parsed, BlockFormat) else parsed


def _values(format: str) -> list[float]:
    """The number of each code; 0 for the code that a symmetric integer leaves out."""
    element = _element(format)
    assert isinstance(element, FloatFormat | IntFormat)
    values = [element.decode(code) for code in range(2**element.bits)]
    return [0.0 if math.isnan(value) and isinstance(element, IntFormat) else value for value in values]


def _unit(values: list[float]) -> float:
    """The largest power of two of which all numbers are whole multiples."""
    units = [value.as_integer_ratio() for value in values if value and math.isfinite(value)]
    down = max(denominator for _, denominator in units)
    up = min(numerator & -numerator for numerator, denominator in units) if down == 1 else 1
    return up / down
