"""Quantized tensors as codes: one byte for each element, or two codes of 4 bits to a byte; and their exact inverse.

A byte holds what `format.encode` gives: sign, exponent and mantissa bits of a float, two's complement of an integer, in
its lowest `format.bits` bits.  The upper bits are 0.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue
from ..formats import FloatFormat, Format
from ..formats.values import check_rounding
from .arguments import Counted, Scalar, check_codes, check_floats, key_of, scalar
from .coded import CodedTensor, Encoded, Layout
from .codings import check_element_format, coding_of, compiled_coding_of, levels_of, text_of
from .contracts import COUNTS, FLOAT_TYPES, type_name
from .elementwise import round_to_grid
from .layouts import dense, empty_for, flat, is_dense, narrowed, rows_and_columns
from .registry import call, operators, register, when_native

Rounding = Literal["nearest", "stochastic"]


def quantize_codes(
    x: Tensor,
    format: Format,
    scale: Scalar = 1.0,
    rounding: Rounding = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
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


def _arguments(
    x: Tensor, format: Format, scale: Scalar, rounding: str, seed: int | Tensor, offset: int | Tensor
) -> tuple[Any, ...]:
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


def check_dtype(dtype: torch.dtype) -> None:
    """Refuses a type that no code is decoded to."""
    if not isinstance(dtype, torch.dtype) or dtype not in FLOAT_TYPES:
        name = type_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise InvalidType(f"dtype must be float32, bfloat16 or float16; got {name}.")


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
    address, n = native.address, x.numel()
    native.kernel("quantize_codes")(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), address("out", out, torch.uint8, n), n,
        address("scale", scale, torch.float32, 1), compiled_coding_of(format), stochastic,
        address("key", key, torch.int64, 2), torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS),
    )  # fmt: skip
    return counts


def _values_native(codes: Tensor, scale: Tensor, format: str, dtype: torch.dtype) -> Tensor:
    coding = compiled_coding_of(format)
    codes = dense(codes)
    out = torch.empty_like(codes, dtype=dtype)
    address, n = native.address, codes.numel()
    native.kernel("dequantize_codes")(
        address("codes", codes, torch.uint8, n), FLOAT_TYPES[dtype], address("out", out, dtype, n), n,
        address("scale", scale, torch.float32, 1), coding, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _pack_native(codes: Tensor) -> Tensor:
    codes = codes.contiguous()
    out = _room_for_packed(codes)
    rows, columns = rows_and_columns(codes)
    if not native.kernel("pack_nibbles")(
        native.address("codes", codes, torch.uint8, rows * columns),
        native.address("packed", out, torch.uint8, rows * ((columns + 1) // 2)), rows, columns, torch.get_num_threads(),
    ):  # fmt: skip
        raise _too_wide()
    return out


def _unpack_native(packed: Tensor, length: int) -> Tensor:
    packed = packed.contiguous()
    out = packed.new_empty((*packed.shape[:-1], length))
    rows, columns = rows_and_columns(out)
    native.kernel("unpack_nibbles")(
        native.address("packed", packed, torch.uint8, rows * ((columns + 1) // 2)),
        native.address("codes", out, torch.uint8, rows * columns), rows, columns, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _levels_native(codes: Tensor, format: str) -> Tensor:
    codes = dense(codes)
    out, count, address = torch.empty_like(codes), codes.numel(), native.address
    table = levels_of(format).tensor(codes.device)
    native.kernel("look_up")(
        address("codes", codes, torch.uint8, count), address("out", out, torch.uint8, count), count,
        address("table", table, torch.uint8, 256), torch.get_num_threads(),
    )  # fmt: skip
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
