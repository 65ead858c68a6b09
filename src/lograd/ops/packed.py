"""Quantized tensors as codes: one byte for each element, or two codes of 4 bits to a byte; and their exact inverse.

A byte holds what `format.encode` gives: sign, exponent and mantissa bits of a float, two's complement of an integer, in
its lowest `format.bits` bits.  The upper bits are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue
from ..formats import FloatFormat, Format, IntFormat, parse_format
from ..formats.values import check_rounding
from . import reference
from .arguments import Counted, Scalar, check_codes, check_floats, check_out, key_of, scalar, type_name
from .grid import Grid, grid_of
from .library import COUNTS, FLOAT_TYPES, call, check_result, dense, flat, register
from .registration import empty_for, narrowed, rows_and_columns, text_of

Rounding = Literal["nearest", "stochastic"]


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
    """What each of the 256 bytes stands for; NaN where it is no code."""

    @classmethod
    def of(cls, format: FloatFormat | IntFormat, grid: Grid) -> Coding:
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
    format = parse_format(text)
    _check_format("quantize_codes", format)
    assert isinstance(format, FloatFormat | IntFormat)
    return Coding.of(format, grid_of(format))


@lru_cache(maxsize=256)
def _compiled(text: str) -> Any:
    return coding_of(text).compiled()


# ----------------------------------------------------------------------------------------------------- public functions


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
    _check_format("quantize_codes", format)
    factor, key = scalar("scale", scale, x, math.ulp(0.0)), key_of(seed, offset, x)
    arguments = (x, factor, text_of(format), rounding == "stochastic", key)
    if out is None:
        codes, counts = call("quantize_codes", *arguments)
    else:
        check_out(out, x, torch.uint8)
        codes, counts = out, call("quantize_codes_out", *arguments, out)
    return Counted(codes, counts) if counted else codes


def dequantize_codes(codes: Tensor, format: Format, scale: Scalar = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """format.decode(code) / scale for each byte, as float32, bfloat16 or float16; a byte that is no code gives NaN."""
    check_codes("codes", codes)
    check_dtype(dtype)
    _check_format("dequantize_codes", format)
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
    _check_packable(codes)
    result: Tensor = call("pack_nibbles", codes)
    return result


def unpack_nibbles(packed: Tensor, length: int | None = None) -> Tensor:
    """The inverse of `pack_nibbles`; `length` of the last dimension of the codes, twice the bytes if not given."""
    check_codes("packed", packed)
    length = (2 * packed.shape[-1] if packed.dim() else 0) if length is None else length
    _check_length(packed, length)
    result: Tensor = call("unpack_nibbles", packed, length)
    return result


def _check_packable(codes: Tensor) -> None:
    if not codes.dim():
        raise InvalidValue("codes must have at least one dimension to be packed along; got a tensor without any.")


def _check_length(packed: Tensor, length: int) -> None:
    if not packed.dim():
        raise InvalidValue("packed must have at least one dimension to be unpacked along; got a tensor without any.")
    n = packed.shape[-1]
    if (length + 1) // 2 != n:
        raise InvalidValue(f"{n} bytes hold {2 * n} or {max(2 * n - 1, 0)} codes of 4 bits; got length={length}.")


def check_dtype(dtype: torch.dtype) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in FLOAT_TYPES:
        name = type_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise InvalidType(f"dtype must be float32, bfloat16 or float16; got {name}.")


def _check_format(what: str, format: object) -> None:
    if not isinstance(format, FloatFormat | IntFormat):
        raise InvalidType(f"{what} takes a FloatFormat or an IntFormat; got {format!r}.")


# ---------------------------------------------------------------------------------- plain PyTorch, native, registration


def quantize_plain(x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> tuple[Tensor, Tensor]:
    coding = coding_of(format)
    x = dense(x)
    y = flat(x).float() * scale.float()
    value, clipped = reference.quantize(y, y.new_ones(()), coding.grid, stochastic, key)
    out = torch.empty_like(x, dtype=torch.uint8)
    flat(out).copy_(coding.codes_of(value))
    return out, torch.stack([(value == 0).sum(), value.isnan().sum(), torch.as_tensor(clipped, device=x.device)])


def quantize_into(out: Tensor, x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> Tensor:
    """Codes of a dense x into a tensor of its layout; gives the counts."""
    counts = x.new_zeros(COUNTS, dtype=torch.int64)
    address, n = native.address, x.numel()
    native.kernel("quantize_codes")(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), address("out", out, torch.uint8, n), n,
        address("scale", scale, torch.float32, 1), _compiled(format), stochastic, address("key", key, torch.int64, 2),
        torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS),
    )  # fmt: skip
    return counts


def quantize_native(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    x = dense(x)
    out = torch.empty_like(x, dtype=torch.uint8)
    return out, quantize_into(out, x, *rest)


def quantize_native_out(x: Tensor, *rest: Any) -> Tensor:
    *arguments, out = rest
    if dense(x) is x and out.stride() == x.stride():
        torch.autograd.graph.increment_version(out)  # the kernel writes behind PyTorch's back
        return quantize_into(out, x, *arguments)
    codes, counts = quantize_native(x, *arguments)
    out.copy_(codes)
    return counts


def quantize_plain_out(x: Tensor, *rest: Any) -> Tensor:
    codes, counts = quantize_plain(x, *rest[:-1])
    rest[-1].copy_(codes)
    return counts


def quantize_fake(x: Tensor, scale: Tensor, format: str, stochastic: bool, key: Tensor) -> tuple[Tensor, Tensor]:
    coding_of(format)
    return empty_for(x, torch.uint8), x.new_empty(COUNTS, dtype=torch.int64)


def dequantize_plain(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    value = coding_of(format).table(codes.device)[flat(codes).long()]
    flat(out).copy_(narrowed(value / scale.float(), dtype))
    return out


def dequantize_native(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    coding = _compiled(format)
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    address, n = native.address, codes.numel()
    native.kernel("dequantize_codes")(
        address("codes", codes, torch.uint8, n), FLOAT_TYPES[dtype], address("out", out, dtype, n), n,
        address("scale", scale, torch.float32, 1), coding, torch.get_num_threads(),
    )  # fmt: skip
    return out


def pack_plain(codes: Tensor) -> Tensor:
    if bool((codes > 15).any()):
        raise _too_wide()
    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return (codes[..., 0::2] | codes[..., 1::2] << 4).clone(memory_format=torch.contiguous_format)


def pack_native(codes: Tensor) -> Tensor:
    codes = codes.contiguous()
    out = _packed_shape(codes)
    rows, columns = rows_and_columns(codes)
    if not native.kernel("pack_nibbles")(
        native.address("codes", codes, torch.uint8, rows * columns),
        native.address("packed", out, torch.uint8, rows * ((columns + 1) // 2)), rows, columns, torch.get_num_threads(),
    ):  # fmt: skip
        raise _too_wide()
    return out


def _packed_shape(codes: Tensor) -> Tensor:
    return codes.new_empty((*codes.shape[:-1], (codes.shape[-1] + 1) // 2))


def _too_wide() -> InvalidValue:
    return InvalidValue("a code is larger than 15, so two of them do not fit into a byte; pack codes of 4-bit formats.")


def unpack_plain(packed: Tensor, length: int) -> Tensor:
    return (
        torch.stack([packed & 15, packed >> 4], dim=-1)
        .flatten(-2)[..., :length]
        .clone(memory_format=torch.contiguous_format)
    )


def unpack_native(packed: Tensor, length: int) -> Tensor:
    packed = packed.contiguous()
    out = packed.new_empty((*packed.shape[:-1], length))
    rows, columns = rows_and_columns(out)
    native.kernel("unpack_nibbles")(
        native.address("packed", packed, torch.uint8, rows * ((columns + 1) // 2)),
        native.address("codes", out, torch.uint8, rows * columns), rows, columns, torch.get_num_threads(),
    )  # fmt: skip
    return out


_AVAILABLE = native.kernel("quantize_codes") is not None
_ARGUMENTS = "Tensor x, Tensor scale, str format, bool stochastic, Tensor key"
register(
    f"quantize_codes({_ARGUMENTS}) -> (Tensor, Tensor)",
    quantize_plain,
    quantize_native if _AVAILABLE else None,
    quantize_fake,
)
register(
    f"quantize_codes_out({_ARGUMENTS}, Tensor(a!) out) -> Tensor",
    quantize_plain_out,
    quantize_native_out if _AVAILABLE else None,
    lambda x, *rest: x.new_empty(COUNTS, dtype=torch.int64),
    lambda x, *rest: check_result(x, rest[-1], torch.uint8),
)
register(
    "dequantize_codes(Tensor codes, Tensor scale, str format, ScalarType dtype) -> Tensor",
    dequantize_plain,
    dequantize_native if _AVAILABLE else None,
    lambda codes, scale, format, dtype: empty_for(codes, dtype),
)
register(
    "pack_nibbles(Tensor codes) -> Tensor",
    pack_plain,
    pack_native if _AVAILABLE else None,
    _packed_shape,
    _check_packable,
)
register(
    "unpack_nibbles(Tensor packed, SymInt length) -> Tensor",
    unpack_plain,
    unpack_native if _AVAILABLE else None,
    lambda packed, length: packed.new_empty((*packed.shape[:-1], length)),
    _check_length,
)
