"""Quantized tensors as codes: one byte for each element, or two codes of 4 bits to a byte; and their exact inverse.

A byte holds what `format.encode` gives: sign, exponent and mantissa bits of a float, two's complement of an integer, in
its lowest `format.bits` bits.  The upper bits are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue
from ..formats import BlockFormat, FloatFormat, Format, IntFormat, parse_format
from ..formats.values import check_rounding
from .arguments import Counted, Rounding, Scalar, Seed, check_floats, key_of, scalar
from .coded import CodedTensor, Encoded, Layout
from .contracts import COUNTS, FLOAT_TYPES, check_tensor
from .elementwise import Grid, constant, grid_of, round_to_grid
from .layouts import dense, empty_for, flat, is_dense, narrowed, rows_and_columns
from .registry import call, operators, register, run, when_native


def quantize_codes(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Rounding = "nearest",
    seed: Seed = 0,
    offset: Seed = 0,
    *,
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
        counted: also give the numbers of zeros, NaN and saturated elements.

    >>> from lograd.formats import parse_format
    >>> quantize_codes(torch.tensor([1.0, -1.0, 6.5]), parse_format("e2m1"))
    tensor([ 2, 10,  7], dtype=torch.uint8)
    """
    codes, counts = call("quantize_codes", *_arguments(x, format, scale, rounding, seed, offset))
    return Counted(codes, counts) if counted else codes


def quantize_codes_into(
    out: Tensor, x: Tensor, format: Format, scale: Scalar, rounding: Rounding, key: Tensor
) -> Tensor:
    """Write the codes of Q(scale x) into a tensor that is there already, and return their counts.

    This is `quantize_codes` for weights, whose codes stay where they are; without a trace of it for compilers.
    """
    arguments = _arguments(x, format, scale, rounding, key, 0)
    if out.is_cpu and out.stride() == x.stride() and "cpu" in operators["quantize_codes"].kernels and is_dense(x):
        return _write_codes(out, *arguments)
    codes, counts = call("quantize_codes", *arguments)
    out.copy_(codes)
    return counts  # type: ignore[no-any-return]


def _arguments(x: Tensor, format: Format, scale: Scalar, rounding: str, seed: Seed, offset: Seed) -> tuple[Any, ...]:
    check_rounding(rounding, ("nearest", "stochastic"))
    check_floats(x)
    check_element_format("quantize_codes", format)
    factor, key = scalar("scale", scale, x, math.ulp(0.0)), key_of(seed, offset, x)
    return x, factor, text_of(format), rounding == "stochastic", key


def pack_codes(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Rounding = "nearest",
    seed: Seed = 0,
    offset: Seed = 0,
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
    check_tensor("codes", codes)
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
    result: Tensor = call("pack_nibbles", codes)
    return result


def unpack_nibbles(packed: Tensor, length: int | None = None) -> Tensor:
    """The inverse of `pack_nibbles`; `length` of the last dimension of the codes, twice the bytes if not given."""
    check_tensor("packed", packed)
    length = (2 * packed.shape[-1] if packed.dim() else 0) if length is None else length
    result: Tensor = call("unpack_nibbles", packed, length)
    return result


# -------------------------------------------------------------------------------------------------- codes of a format

# An operator is given a format as text, so that its signature stays short and a compiled graph holds no Python object.


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

    @cached_property
    def compiled(self) -> Any:
        """The same for the native kernels, which know it by an address."""
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


# -------------------------------------------------------------------------------------------------------------- levels

# Whole numbers, moved up by `zero` so that they are bytes, times one power of two: what products of integers take.
# Integers, powers of two such as 1-3-0, e2m1 and e2m3 have them.


@dataclass(frozen=True)
class LevelTable:
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
def levels_of(format: str) -> LevelTable:
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
        return LevelTable(bytes(range(256)), 0, factor)
    return LevelTable(bytes(each + zero for each in whole) + bytes([zero]) * (256 - len(whole)), zero, factor)


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


# --------------------------------------------------------------------------------------------------------------- checks


def _room_for_packed(codes: Tensor) -> Tensor:
    """Room for the bytes that hold these codes in pairs."""
    return codes.new_empty((*codes.shape[:-1], (codes.shape[-1] + 1) // 2))


def _too_wide() -> InvalidValue:
    """The error where a code has more than 4 bits."""
    return InvalidValue("a code is larger than 15, so two of them do not fit into a byte; pack codes of 4-bit formats.")


def _check_packable(codes: Tensor) -> None:
    """Refuses codes without a dimension."""
    if not codes.dim():
        raise InvalidValue("codes must have at least one dimension to be packed along; got a tensor without any.")


def _check_length(packed: Tensor, length: int) -> None:
    """Refuses a length that the bytes do not hold."""
    if not packed.dim():
        raise InvalidValue("packed must have at least one dimension to be unpacked along; got a tensor without any.")
    if length < 0:
        raise InvalidValue(f"length must be a number of codes, 0 or more; got {length}.")
    n = packed.shape[-1]
    if (length + 1) // 2 != n:
        raise InvalidValue(f"{n} bytes hold {2 * n} or {max(2 * n - 1, 0)} codes of 4 bits; got length={length}.")


# ---------------------------------------------------------------------------------------------------------- definitions


def _codes_reference(x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> tuple[Tensor, Tensor]:
    x, coding = dense(x), coding_of(format)
    y = flat(x).float() * scale.float()
    value, clipped = round_to_grid(y, y.new_ones(()), coding.grid, stochastic, key)
    out = torch.empty_like(x, dtype=torch.uint8)
    flat(out).copy_(coding.codes_of(value))
    return out, torch.stack([(value == 0).sum(), value.isnan().sum(), torch.as_tensor(clipped, device=x.device)])


def _values_reference(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    """The value of each code, divided by the scale."""
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    value = coding_of(format).table(codes.device)[flat(codes).long()]
    flat(out).copy_(narrowed(value / scale.float(), dtype))
    return out


def _pack_reference(codes: Tensor) -> Tensor:
    """Two codes to a byte."""
    if bool((codes > 15).any()):
        raise _too_wide()
    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return (codes[..., 0::2] | codes[..., 1::2] << 4).clone(memory_format=torch.contiguous_format)


def _unpack_reference(packed: Tensor, length: int) -> Tensor:
    """The codes of `pack_nibbles`."""
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return pairs[..., :length].clone(memory_format=torch.contiguous_format)


def _levels_reference(codes: Tensor, format: str) -> Tensor:
    """The level of each code, plus the format's zero, as a byte."""
    codes = dense(codes)
    out = torch.empty_like(codes)
    flat(out).copy_(levels_of(format).tensor(codes.device)[flat(codes).long()])
    return out


# --------------------------------------------------------------------------------------------------------------- native


def _codes_native(x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> tuple[Tensor, Tensor]:
    x = dense(x)
    out = torch.empty_like(x, dtype=torch.uint8)
    return out, _write_codes(out, x, scale, format, stochastic, key)


def _write_codes(out: Tensor, x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> Tensor:
    """Write codes that lie as x does, and return their counts."""
    counts = x.new_zeros(COUNTS, dtype=torch.int64)
    coding = coding_of(format).compiled
    run("quantize_codes", FLOAT_TYPES[x.dtype], x, out, x.numel(), scale, coding, stochastic, key, counts)
    return counts


def _values_native(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    run("dequantize_codes", codes, FLOAT_TYPES[dtype], out, codes.numel(), scale, coding_of(format).compiled)
    return out


def _pack_native(codes: Tensor) -> Tensor:
    codes = codes.contiguous()
    out = _room_for_packed(codes)
    if not run("pack_nibbles", codes, out, *rows_and_columns(codes)):
        raise _too_wide()
    return out


def _unpack_native(packed: Tensor, length: int) -> Tensor:
    packed = packed.contiguous()
    out = packed.new_empty((*packed.shape[:-1], length))
    run("unpack_nibbles", packed, out, *rows_and_columns(out))
    return out


def _levels_native(codes: Tensor, format: str) -> Tensor:
    codes = dense(codes)
    out = torch.empty_like(codes)
    run("look_up", codes, out, codes.numel(), levels_of(format).tensor(codes.device))
    return out


# --------------------------------------------------------------------------------------------------------- registration


def _fake_codes(x: Tensor, scale: Tensor, format: str, *rest: Any) -> tuple[Tensor, Tensor]:
    coding_of(format)  # refuses a text that is no format
    return empty_for(x, torch.uint8), x.new_empty(COUNTS, dtype=torch.int64)


register(
    "quantize_codes(Tensor x, Tensor scale, str format, bool stochastic, Tensor key) -> (Tensor, Tensor)",
    _codes_reference,
    when_native(_codes_native),
    _fake_codes,
)
register(
    "dequantize_codes(Tensor codes, Tensor scale, str format, ScalarType dtype) -> Tensor",
    _values_reference,
    when_native(_values_native),
    lambda codes, scale, format, dtype: empty_for(codes, dtype),
)
register(
    "pack_nibbles(Tensor codes) -> Tensor", _pack_reference, when_native(_pack_native), _room_for_packed,
    _check_packable,
)  # fmt: skip
register(
    "unpack_nibbles(Tensor packed, SymInt length) -> Tensor",
    _unpack_reference,
    when_native(_unpack_native),
    lambda packed, length: packed.new_empty((*packed.shape[:-1], length)),
    _check_length,
)
register(
    "code_levels(Tensor codes, str format) -> Tensor",
    _levels_reference,
    when_native(_levels_native),
    lambda codes, format: empty_for(codes),
)
