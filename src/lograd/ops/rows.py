"""Integer quantizers of a gradient whose first dimension counts samples: StatQuant's three, and the clipped interval.

With rows X_i, B = `bins` and u uniform, all of them compute

    code = clamp(SR(s (x - low)) + zero, 0, B)        x_q = (code - zero) / s + low

where SR(y) rounds y stochastically to a whole number, up with probability y - floor(y), so that E[x_q] = x wherever x
lies inside the range.  `quantize_*` gives x_q in the type of x; `pack_*` gives a `CodedTensor` with the codes, one
uint8 each, and s, low and zero: pack(x).decode() equals quantize(x) bit for bit.

- Arithmetic is float32, randomness has 48 bits: E[x_q] = x to 2^-22 of the row's range (per tensor and interval, where
  zero is a code: to 2^-48 of a step near zero), and to the rounding of x_q to the type of x.
- Random numbers belong to positions in contiguous order, rest of the row last: element i draws U(seed, offset + i).
- Ranges are those of the finite elements; infinities saturate at them, and are counted.  A row without a finite element
  counts as zero.
- NaN stays NaN, and is counted.  As a code it is 255; with 8 bits per tensor or per sample all codes are numbers, and
  the `low` of a row with a NaN becomes NaN instead, so that the row decodes to NaN.  A block Householder transform
  spreads a NaN over its column of its group, as a matrix product does.
- Finite stays finite: a row's range beyond 3.4e38 saturates, and results end at the largest finite number of x's type.
- Steps are never below 2.9e-39, as scales end at the largest float32; smaller elements are rounded to them, unbiased.

@inproceedings{kim2024,
  title     = {Toward {INT4} Fixed-Point Training via Exploring Quantization Error for Gradients},
  author    = {Kim, Dohyung and Lee, Junghyup and Jeon, Jeimin and Moon, Jaehyeon and Ham, Bumsub},
  booktitle = {European Conference on Computer Vision},
  year      = {2024}
}
"""

from __future__ import annotations

import numbers
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..coded import CodedTensor, Encoded, Householder, Layout, Transform
from ..errors import InvalidType, InvalidValue, sentence
from ..formats.values import check_rounding, check_width
from .arguments import Counted, check_codes, check_floats, check_out, check_tensor, key_of, type_name
from .contracts import FLOAT_TYPES
from .reference.rows import check_groups, check_parameters, check_samples
from .registry import call

Rounding = Literal["nearest", "stochastic"]


class Clipped(NamedTuple):
    """A tensor quantized inside [-c, c], and what the update of gamma needs."""

    result: Tensor
    largest: Tensor
    """max |x|."""
    share: Tensor
    """The fraction of elements with |x| > c; float64."""
    counts: Tensor
    """int64: exact zeros, NaN, and elements with |x| > c."""


class ClippedCodes(NamedTuple):
    """As `Clipped`, with a coded tensor."""

    coded: CodedTensor
    largest: Tensor
    share: Tensor
    counts: Tensor


def quantize_per_tensor(
    x: Tensor,
    bits: int,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """PTQ of [chen2020]: one range for the tensor, with zero as one of its codes.

    With mn = min(min x, 0) - w and mx = max(max x, 0) + w, zero = floor(-mn B / (mx - mn)) and s = zero / -mn,
    which moves the upper end outwards until zero is a code.  w is 1e-8 of the range; the paper's code takes 1e-8
    itself, which drowns gradients of that size.  (Where no whole step fits below zero, that code divides by zero.  Here
    the upper end stays, and zero is 0, or 1 if there are negative elements.)  Zeros stay zeros.

    Args:
        x: float32, bfloat16 or float16; any shape and layout, which the result keeps.
        bits: 2 to 8; B = 2^bits - 1.
        rounding: "stochastic", unbiased; or "nearest", ties to the even multiple of a step.
        seed, offset: the random numbers; see the module.
        out: where the result goes; x itself is allowed.
        counted: give a `Counted`: exact zeros, NaN and saturated elements.
    """
    return _quantize("quantize_per_tensor", x, 0, bits, rounding, seed, offset, out, counted)


def pack_per_tensor(
    x: Tensor,
    bits: int,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """A `CodedTensor` whose decode() is `quantize_per_tensor`, bit for bit.

    Arguments as there.  `out` may take the codes, one uint8 each; with `counted` the result is an `Encoded`.
    """
    arguments = (_bits(bits), _stochastic(rounding), True, _key(seed, offset, x))
    codes, parameters, counts = _run("quantize_per_tensor", x, 0, arguments, out, torch.uint8)
    return _encoded(_coded(x, codes, parameters, f"uint{bits}"), counts, counted, parameters[2])


def quantize_per_sample(
    x: Tensor,
    bits: int,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """PSQ of [chen2020]: each row (first dimension) has its own range, widened as in `quantize_per_tensor`.

    A row whose elements are all the same stays as it is.

    Summed over a matrix of D columns the variance is at most D / (4 B^2) sum_i r_i^2, r_i the ranges:
    `lograd.theory.per_sample_variance_bound`.  Arguments as in `quantize_per_tensor`; x has at least two dimensions.
    """
    return _quantize("quantize_per_sample", x, 2, bits, rounding, seed, offset, out, counted)


def pack_per_sample(
    x: Tensor,
    bits: int,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """A `CodedTensor` whose decode() is `quantize_per_sample`; `out` and `counted` as in `pack_per_tensor`."""
    arguments = (_bits(bits), _stochastic(rounding), True, _key(seed, offset, x))
    codes, parameters, counts = _run("quantize_per_sample", x, 2, arguments, out, torch.uint8)
    return _encoded(_coded(x, codes, parameters, f"uint{bits}"), counts, counted)


def quantize_block_householder(
    x: Tensor,
    bits: int,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """BHQ of [chen2020]: T^-1 PSQ(T x), where T spreads the few rows with a wide range over many with a narrow one.

    Rows are sorted by range and grouped, one large row with some small ones (`householder_groups` of
    `reference.rows`).  In a group of n rows T = H diag(s1, s2, ..., s2) with the Householder reflection

        H = I - v v^T / (1 - 1 / sqrt n),    v = 1 / sqrt n - e1,    so that H e1 = 1 / sqrt n,

    applied as a rank-1 update, never as a matrix; s1, s2 as the paper's code sets them from the two ranges.  A group of
    one row is left as it is, where that code divides by zero.  Reconstructed from the code's behaviour.

    Sums are in float64 and the transform is rounded once to float32, so a small row comes back to 2^-23 of what its
    group's largest row leaves in it.  Arguments as in `quantize_per_tensor`; x has at least two dimensions.
    """
    return _quantize("quantize_block_householder", x, 2, bits, rounding, seed, offset, out, counted)


def pack_block_householder(
    x: Tensor,
    bits: int,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
    counted: bool = False,
) -> Any:
    """A `CodedTensor` of T x whose decode() is `quantize_block_householder`; its transform is T.

    `out` and `counted` as in `pack_per_tensor`.
    """
    arguments = (_bits(bits), _stochastic(rounding), True, _key(seed, offset, x))
    codes, parameters, groups, stretch, counts = _run("quantize_block_householder", x, 2, arguments, out, torch.uint8)
    coded = _coded(x, codes, parameters, f"uint{bits}", (Householder(groups, stretch),))
    return _encoded(coded, counts, counted)


def quantize_interval(
    x: Tensor,
    bits: int,
    gamma: float | Tensor = 1.0,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
) -> Clipped:
    """[kim2024]: 2^bits - 1 levels over [-c, c], c = gamma max |x|; unbiased inside, clipped outside.

    The step is 2c / (2^bits - 2), so zero is a level.  The paper moves gamma until the share of clipped elements is
    alpha / (2^bits - 1); it and max |x| are results.

    Args:
        gamma: positive, at most 1; a number or a tensor of one element.

    The others are those of `quantize_per_tensor`.
    """
    arguments = (_gamma(gamma, x), _bits(bits), _stochastic(rounding), False, _key(seed, offset, x))
    result, _, statistics, counts = _run("quantize_interval", x, 0, arguments, out, None)
    return Clipped(result, statistics[0].float(), statistics[1], counts)


def pack_interval(
    x: Tensor,
    bits: int,
    gamma: float | Tensor = 1.0,
    rounding: Rounding = "stochastic",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    out: Tensor | None = None,
) -> ClippedCodes:
    """A `CodedTensor` whose decode() is the result of `quantize_interval`, with the other results of it.

    `out` may take the codes, one uint8 each.
    """
    arguments = (_gamma(gamma, x), _bits(bits), _stochastic(rounding), True, _key(seed, offset, x))
    codes, parameters, statistics, counts = _run("quantize_interval", x, 0, arguments, out, torch.uint8)
    coded, counts = _encoded(_coded(x, codes, parameters, f"int{bits}:symmetric"), counts, True, parameters[2])
    return ClippedCodes(coded, statistics[0].float(), statistics[1], counts)


def dequantize_rows(
    codes: Tensor,
    scale: Tensor,
    low: Tensor,
    zero: Tensor,
    bins: int,
    dtype: torch.dtype = torch.float32,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """(code - zero) / scale + low, row by row, in `dtype`; a code of 255 is NaN if `bins` is less."""
    parameters = _stacked(scale, low, zero)
    result: Tensor = _decode("dequantize_rows", codes, parameters, (), bins, dtype, out)
    return result


def dequantize_block_householder(
    codes: Tensor,
    scale: Tensor,
    low: Tensor,
    groups: Tensor,
    stretch: Tensor,
    bins: int,
    dtype: torch.dtype = torch.float32,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """T^-1 of the decoded rows, in `dtype`."""
    parameters = _stacked(scale, low, torch.zeros_like(low))
    for what, value in (("codes", codes), ("groups", groups), ("stretch", stretch)):
        check_tensor(what, value)
    check_groups(codes, parameters, groups, stretch)
    result: Tensor = _decode("dequantize_block_householder", codes, parameters, (groups, stretch), bins, dtype, out)
    return result


# --------------------------------------------------------------------------------------------------------------- checks


def _stacked(*lists: Tensor) -> Tensor:
    for values in lists:
        check_tensor("scale, low and zero", values)
        if values.dim() != 1 or values.shape != lists[0].shape:
            shapes = ", ".join(str(tuple(each.shape)) for each in lists)
            raise InvalidValue(f"scale, low and zero must be lists of one length; got shapes {shapes}.")
    return torch.stack([values.float() for values in lists])


def _coded(
    x: Tensor, codes: Tensor, parameters: Tensor, format: str, transform: tuple[Transform, ...] = ()
) -> CodedTensor:
    layout = Layout(tuple(x.shape), tuple(codes.stride()), x.dtype)
    scale, low, zero = parameters.unbind()
    return CodedTensor(codes, scale, format, layout, zero, low, transform=transform)


def _encoded(coded: CodedTensor, counts: Tensor, counted: bool, zero: Tensor | None = None) -> Any:
    """The kernels count no zeros among codes: those are the elements with the code `zero`, or what decodes to 0."""
    if not counted:
        return coded
    same = coded.codes == zero.to(torch.uint8) if zero is not None else coded.decode(torch.float32) == 0
    return Encoded(coded, torch.stack([torch.count_nonzero(same), counts[1], counts[2]]))


def _quantize(
    name: str,
    x: Tensor,
    dimensions: int,
    bits: int,
    rounding: str,
    seed: int | Tensor,
    offset: int | Tensor,
    out: Tensor | None,
    counted: bool,
) -> Any:
    arguments = (_bits(bits), _stochastic(rounding), False, _key(seed, offset, x))
    result, *_, counts = _run(name, x, dimensions, arguments, out, None)
    return Counted(result, counts) if counted else result


def _run(
    name: str, x: Tensor, dimensions: int, arguments: tuple[Any, ...], out: Tensor | None, dtype: torch.dtype | None
) -> tuple[Any, ...]:
    """The operator's results, `out` first if there is one."""
    if dimensions:
        check_samples(x)
    if out is None:
        results: tuple[Any, ...] = call(name, x, *arguments)
        return results
    check_out(out, x, dtype or x.dtype)
    return out, *call(f"{name}_out", x, *arguments, out)


def _decode(
    name: str,
    codes: Tensor,
    parameters: Tensor,
    groups: tuple[Tensor, ...],
    bins: int,
    dtype: torch.dtype,
    out: Tensor | None,
) -> Any:
    check_width("bins", bins, 1, 255)
    if dtype not in FLOAT_TYPES:
        raise InvalidType(f"dtype must be float32, bfloat16 or float16; got {type_name(dtype)}.")
    check_codes("codes", codes)
    check_parameters(codes, parameters)
    arguments: tuple[Any, ...] = (parameters.float(), *groups, bins, dtype)
    if out is None:
        return call(name, codes, *arguments)
    check_out(out, codes, dtype)
    call(f"{name}_out", codes, *arguments, out)
    return out


def _bits(bits: int) -> int:
    check_width("bits", bits, 2, 8)
    return bits


def _stochastic(rounding: str) -> bool:
    check_rounding(rounding, ("nearest", "stochastic"))
    return rounding == "stochastic"


def _gamma(gamma: float | Tensor, x: Tensor) -> Tensor:
    check_floats(x)
    if isinstance(gamma, Tensor):
        if gamma.numel() != 1 or not gamma.is_floating_point():
            raise InvalidValue(
                f"gamma must be a number or a float tensor of one element; got shape {tuple(gamma.shape)}."
            )
        return gamma
    if isinstance(gamma, bool) or not isinstance(gamma, numbers.Real):
        raise InvalidType(sentence("gamma", gamma, "a number, positive and at most 1"))
    if not 0 < gamma <= 1:
        raise InvalidValue(sentence("gamma", gamma, "positive and at most 1"))
    return torch.full((), gamma, dtype=torch.float64, device=x.device)


def _key(seed: int | Tensor, offset: int | Tensor, x: Tensor) -> Tensor:
    check_floats(x)
    return key_of(seed, offset, x)
