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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue, sentence
from ..formats import BlockFormat, parse_format
from ..formats.values import check_rounding
from .arguments import Counted, Rounding, Scalar, Seed, check_floats, key_of, scalar
from .coded import CodedTensor, Encoded, Layout, ThreeQuarters
from .codes import Coding, text_of
from .contracts import COUNTS, FLOAT_TYPES, check_tensor
from .elementwise import Grid, grid_of, round_to_grid
from .layouts import empty_for, in_layout_of, narrowed, rows_and_columns
from .registry import call, register, run, when_native

Variant = Literal["standard", "unbiased"]


def quantize_blocks(
    x: Tensor,
    format: BlockFormat,
    rounding: Rounding = "nearest",
    variant: Variant = "standard",
    seed: Seed = 0,
    offset: Seed = 0,
    tensor_scale: Scalar = 1.0,
    *,
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
        counted: also give the numbers of zeros, NaN and cut-off elements.

    >>> from lograd.formats import CATALOGUE
    >>> quantize_blocks(torch.tensor([7.9, 1.2, -0.3]), CATALOGUE["mxfp4"])
    tensor([ 6.0000,  1.0000, -0.5000])
    """
    arguments = _arguments(x, format, rounding, variant, seed, offset, tensor_scale)
    result, counts = call("quantize_blocks", *arguments)
    return Counted(result, counts) if counted else result


def quantize_block_codes(
    x: Tensor,
    format: BlockFormat,
    rounding: Rounding = "nearest",
    variant: Variant = "standard",
    seed: Seed = 0,
    offset: Seed = 0,
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
    check_tensor("codes", codes)
    check_block_format(format)
    _check_variant(variant)
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
    x: Tensor, format: BlockFormat, rounding: str, variant: str, seed: Seed, offset: Seed, tensor_scale: Scalar
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


# -------------------------------------------------------------------------------------------------- a block format

_LIMIT = "quantize_blocks takes formats whose scale"


def check_block_format(format: object) -> None:
    """Refuses a format that is none of blocks."""
    if not isinstance(format, BlockFormat):
        raise InvalidType(f"quantize_blocks takes a BlockFormat, such as CATALOGUE['mxfp4']; got {format!r}.")


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

    @cached_property
    def compiled(self) -> Any:
        """The same for the native kernels, which know it by an address."""
        numbers = (self.size, self.power_of_two, self.element_emax, self.scale_emin, self.scale_emax)
        return native.kernel("block_coding")(self.element.compiled, self.scale.compiled, *numbers)


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


# --------------------------------------------------------------------------------------------------------------- checks


def _scales_shape(x: Tensor, size: int) -> tuple[int, ...]:
    """The shape of the scales of x in blocks of this size."""
    return (*x.shape[:-1], (x.shape[-1] + size - 1) // size if x.dim() else 1)


def _check_scales(codes: Tensor, scales: Tensor, size: int) -> None:
    """Refuses scales that are not one for each block of the codes."""
    blocks = _scales_shape(codes, size)
    if scales.shape != blocks:
        raise InvalidValue(
            f"codes of shape {tuple(codes.shape)} in blocks of {size} need scales of shape {blocks}; got "
            f"{tuple(scales.shape)}."
        )


# ---------------------------------------------------------------------------------------------------------- definitions


class _Rounded(NamedTuple):
    """Rows of element values, NaN where a block became NaN; blocks of scale codes; how many elements were cut off."""

    value: Tensor
    scale_codes: Tensor
    clipped: Tensor


def _round_blocks(
    x: Tensor, tensor_scale: Tensor, coding: BlockCoding, stochastic: bool, unbiased: bool, key: Tensor
) -> _Rounded:
    """Q(x / (t s)), or Q(3/4 x / (t s)), of float32 rows; NaN in a block that held NaN or infinity."""
    rows, columns = x.shape
    y = x / tensor_scale
    blocks = coding.per_row(columns)
    padded = torch.nn.functional.pad(y.abs(), (0, blocks * coding.size - columns))
    scale_codes = _scale_codes(padded.reshape(rows, blocks, coding.size).amax(-1), coding)
    s = _per_element(coding.scale.table(x.device)[scale_codes.long()], coding, columns)
    y = torch.where(s == 0, 0.0, y / s)
    if unbiased:
        y = y * 0.75
    one = x.new_ones(())
    value, clipped = round_to_grid(y.flatten(), one, coding.element.grid, stochastic, key)
    value = value.reshape(rows, columns)
    if not coding.element.negative_zero:
        value = value + 0.0  # -0.0 becomes 0.0
    return _Rounded(value, scale_codes, torch.as_tensor(clipped, device=x.device))


def _restored(
    value: Tensor, scale_codes: Tensor, tensor_scale: Tensor, coding: BlockCoding, unbiased: bool, dtype: torch.dtype
) -> Tensor:
    """t s value, or 4/3 of it, within the finite numbers of `dtype`."""
    if unbiased:
        value = value / value.new_full((), 0.75)
    s = _per_element(coding.scale.table(value.device)[scale_codes.long()], coding, value.shape[-1])
    largest = torch.finfo(dtype).max
    return (value * s * tensor_scale).clamp(-largest, largest)


def _scale_codes(largest: Tensor, coding: BlockCoding) -> Tensor:
    finite = largest.isfinite()
    m = torch.where(finite, largest, 0.0)
    if coding.power_of_two:
        exponent = torch.frexp(m).exponent - 1 - coding.element_emax
        exponent = torch.where(m > 0, exponent, coding.scale_emin).clamp(coding.scale_emin, coding.scale_emax)
        codes = exponent - coding.scale_emin
    else:
        ideal = (m / m.new_full((), coding.element.grid.largest)).flatten()
        one = m.new_ones(())
        value, _ = round_to_grid(
            ideal, one, coding.scale.grid, False, torch.zeros(2, dtype=torch.int64, device=m.device)
        )
        codes = coding.scale.codes_of(value).reshape(m.shape).int()
    return torch.where(finite, codes, coding.scale.nan).to(torch.uint8)


def _per_element(scales: Tensor, coding: BlockCoding, columns: int) -> Tensor:
    return scales.repeat_interleave(coding.size, -1)[:, :columns]


def _values_reference(
    x: Tensor, tensor_scale: Tensor, format: str, stochastic: bool, unbiased: bool, key: Tensor
) -> tuple[Tensor, Tensor]:
    coding, t = block_coding_of(format, unbiased), tensor_scale.float()
    rounded = _round_blocks(_rows(x).float(), t, coding, stochastic, unbiased, key)
    y = _restored(rounded.value, rounded.scale_codes, t, coding, unbiased, x.dtype)
    counts = torch.stack([(y == 0).sum(), y.isnan().sum(), rounded.clipped])
    return in_layout_of(x, narrowed(y, x.dtype).reshape(x.shape)), counts


def _codes_reference(
    x: Tensor, tensor_scale: Tensor, format: str, stochastic: bool, unbiased: bool, key: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of the elements, codes of the scales, and counts."""
    coding = block_coding_of(format, unbiased)
    value, scale_codes, clipped = _round_blocks(
        _rows(x).float(), tensor_scale.float(), coding, stochastic, unbiased, key
    )
    codes = torch.where(value.isnan(), 0, coding.element.codes_of(value))
    counts = torch.stack([(value == 0).sum(), value.isnan().sum(), clipped])
    return in_layout_of(x, codes.reshape(x.shape)), scale_codes.reshape(_scales_shape(x, coding.size)), counts


def _decoded_reference(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, unbiased: bool, dtype: torch.dtype
) -> Tensor:
    """The values of `quantize_block_codes`."""
    coding = block_coding_of(format, unbiased)
    value = coding.element.table(codes.device)[_rows(codes).long()]
    blocks = scales.reshape(value.shape[0], coding.per_row(value.shape[1]))
    y = _restored(value, blocks, tensor_scale.float(), coding, unbiased, dtype)
    return in_layout_of(codes, narrowed(y, dtype).reshape(codes.shape))


def _rows(x: Tensor) -> Tensor:
    return x.contiguous().reshape(rows_and_columns(x))


# --------------------------------------------------------------------------------------------------------------- native


def _quantize(
    x: Tensor, y: Tensor | None, codes: Tensor | None, scales: Tensor | None, tensor_scale: Tensor, format: str,
    stochastic: bool, unbiased: bool, key: Tensor
) -> Tensor:  # fmt: skip
    counts, coding = x.new_zeros(COUNTS, dtype=torch.int64), block_coding_of(format, unbiased).compiled
    run(
        "quantize_blocks", coding, FLOAT_TYPES[x.dtype], x.contiguous(), y, codes, scales, *rows_and_columns(x),
        tensor_scale, torch.finfo(x.dtype).max, stochastic, unbiased, key, counts,
    )  # fmt: skip
    return counts


def _values_native(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    out = x.new_empty(x.shape)
    counts = _quantize(x, out, None, None, *rest)
    return in_layout_of(x, out), counts


def _codes_native(x: Tensor, tensor_scale: Tensor, format: str, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    codes = x.new_empty(x.shape, dtype=torch.uint8)
    scales = x.new_empty(_scales_shape(x, block_coding_of(format, rest[1]).size), dtype=torch.uint8)
    counts = _quantize(x, None, codes, scales, tensor_scale, format, *rest)
    return in_layout_of(x, codes), scales, counts


def _decoded_native(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, unbiased: bool, dtype: torch.dtype
) -> Tensor:
    y = codes.new_empty(codes.shape, dtype=dtype)
    run(
        "dequantize_blocks", block_coding_of(format, unbiased).compiled, codes.contiguous(), scales.contiguous(),
        FLOAT_TYPES[dtype], y, *rows_and_columns(codes), tensor_scale, torch.finfo(dtype).max, unbiased,
    )  # fmt: skip
    return in_layout_of(codes, y)


# --------------------------------------------------------------------------------------------------------- registration


def _fake_values(x: Tensor, tensor_scale: Tensor, format: str, *rest: Any) -> tuple[Tensor, Tensor]:
    block_coding_of(format, rest[1])  # refuses a text that is no such format
    return empty_for(x), x.new_empty(COUNTS, dtype=torch.int64)


def _fake_codes(x: Tensor, tensor_scale: Tensor, format: str, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    scales = x.new_empty(_scales_shape(x, block_coding_of(format, rest[1]).size), dtype=torch.uint8)
    return empty_for(x, torch.uint8), scales, x.new_empty(COUNTS, dtype=torch.int64)


_ARGUMENTS = "Tensor x, Tensor tensor_scale, str format, bool stochastic, bool unbiased, Tensor key"
register(
    f"quantize_blocks({_ARGUMENTS}) -> (Tensor, Tensor)", _values_reference, when_native(_values_native), _fake_values
)
register(
    f"quantize_block_codes({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)", _codes_reference, when_native(_codes_native),
    _fake_codes,
)  # fmt: skip
register(
    "dequantize_block_codes(Tensor codes, Tensor scales, Tensor tensor_scale, str format, bool unbiased, "
    "ScalarType dtype) -> Tensor",
    _decoded_reference,
    when_native(_decoded_native),
    lambda codes, scales, tensor_scale, format, unbiased, dtype: empty_for(codes, dtype),
    lambda codes, scales, tensor_scale, format, unbiased, dtype: _check_scales(
        codes, scales, block_coding_of(format, unbiased).size
    ),
)
