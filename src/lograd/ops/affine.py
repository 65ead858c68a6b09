"""The affine quantizer: integers with a scale, a zero and a low end, over one range for the tensor or one for each row.

With z = x, or z = x fold_c for channel c where scales that a product sums over are folded into it, and B the last code,

    code = clamp(round(s (z - low)) + zero, 0, B)        z_q = (code - zero) / s + low        x_q = z_q / fold_c

Quantizers differ in their range and in what they do with zero:

- `pack_integers`, for integer products: low = 0 and `zero` a code, so codes are levels, whole numbers times a step; one
  range for the tensor or for each channel, found or given.
- `quantize_per_tensor` and `quantize_per_sample`, PTQ and PSQ of [chen2020]: zero is a code, or the low end of the row.
- `quantize_interval` of [kim2024]: an interval inside the range, zero in its middle.  `quantize_block_householder` is
  in `householder`.

Rounding is to nearest, ties to the even multiple of a step, or stochastic: up with probability y - floor(y), so that
E[x_q] = x inside the range, to 2^-22 of it, and to 2^-48 of a step near zero where zero is a code.

- Arithmetic on elements is float32, on ranges float64 with one rounding at the end, inside the operators, where no
  compiler reorders it.  Random numbers have 48 bits.
- Random numbers belong to positions: element i draws U(seed, offset + i).  `pack_integers` counts in the memory order
  of x, the others in contiguous order.
- Ranges are those of the finite elements, 0 and 0 if there is none.  What lies outside saturates, and is counted.
- Finite stays finite: ranges end at 3.4e38, steps are never below 2.9e-39, as scales end at float32's largest number,
  and results end at the largest finite number of x's type.

@inproceedings{kim2024,
  title     = {Toward {INT4} Fixed-Point Training via Exploring Quantization Error for Gradients},
  author    = {Kim, Dohyung and Lee, Junghyup and Jeon, Jeimin and Moon, Jaehyeon and Ham, Bumsub},
  booktitle = {European Conference on Computer Vision},
  year      = {2024}
}
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..formats.values import check_rounding
from .arguments import Counted, Rounding, Seed, check_floats, key_of, tensor_words
from .coded import CodedTensor, Encoded, Folded, Layout, Transform
from .contracts import COUNTS, FLOAT_TYPES, Takes, type_name
from .layouts import dense, empty_for, flat, in_layout_of, in_type, narrowed
from .random import rounded_up_or_down
from .registry import Kernel, call, register, run, when_native

Per = Literal["tensor", "channel"]

NAN_CODE = 255
"""The code of NaN, where fewer codes are numbers."""
WIDENING = 1e-8
"""By this share of itself a range of PTQ and PSQ is widened at either end."""
# A little below float32's largest number, so that every code decodes to a finite one.
_WIDEST = 3.4e38
_LARGEST = torch.finfo(torch.float32).max
_SHARES = 4096
"""Places of the grid on which the share of a row's range below zero lies, but for the remainder of a division."""

Results = tuple[Tensor, Tensor, Tensor, Tensor]
RowResults = tuple[Tensor, Tensor, Tensor, Tensor]


class Levelling(NamedTuple):
    """How elements become levels: the last arguments of the operator `integer_codes`; see `pack_integers`."""

    bits: int
    per_channel: bool
    symmetric: bool
    stochastic: bool
    key: Tensor
    power_of_two: bool = False


class Ranged(NamedTuple):
    """A tensor rounded to levels, or its codes, with what was counted and the range that was found."""

    result: Any
    """A tensor, or a `CodedTensor`."""
    counts: Tensor
    """int64: exact zeros and NaN of the result, elements that saturated, and exact zeros of x."""
    range: Tensor
    """float32 (2,), or (2, channels): the smallest and the largest finite element, 0 and 0 if there is none."""


class Clipped(NamedTuple):
    """A tensor quantized inside [-c, c], or its codes, and what the update of gamma needs."""

    result: Any
    """A tensor, or a `CodedTensor`."""
    largest: Tensor
    """max |x|."""
    share: Tensor
    """The fraction of elements with |x| > c; float64."""
    counts: Tensor
    """int64: exact zeros, NaN, and elements with |x| > c."""


def pack_integers(
    x: Tensor,
    bits: int,
    *,
    per: Per = "tensor",
    symmetric: bool = False,
    rounding: Rounding = "nearest",
    seed: Seed = 0,
    offset: Seed = 0,
    fold: Tensor | None = None,
    fold_dim: int = 1,
    range: Tensor | tuple[float, float] | None = None,
    power_of_two: bool = False,
    counted: bool = False,
) -> Any:
    """Return x as levels: a `CodedTensor`, which integer products take, and whose decode() is `quantize_integers`.

    The range is widened to include 0, which is a level, so zeros stay zeros.  Codes are

    - asymmetric: 0 to B = 2^bits - 1, and `zero` is 0 where low >= 0, as behind a ReLU.  Else it is the whole number
      next to -low B / (high - low) that gives the finer steps while both ends of the range keep a code.
    - symmetric: 0 to 2^bits - 2, zero = 2^(bits - 1) - 1, and the largest magnitude of the range at either end.

    They have the shape of x.  Those of images (four dimensions) lie channels-last, whatever the layout of x was; all
    others are contiguous.  NaN or infinity leaves no number of its row (of the tensor) unharmed: the scale becomes NaN,
    and so does all that it decodes.  A range of nothing but 0 has an infinite scale, a step of 0.  Where scales are
    powers of two, ranges beyond 1.7e38 may saturate, so that every code decodes to a finite number.

    Args:
        x: float32, bfloat16 or float16; any shape and layout.
        bits: 2 to 8.
        per: one range for the "tensor", or one for each "channel", the first dimension.
        symmetric: as many levels below zero as above.
        rounding: "nearest", or "stochastic", which is unbiased inside the range.
        seed, offset: the random numbers; see the module.
        fold: float32 factors, one for each channel, by which x is multiplied before it is rounded; decoding divides by
            them.
        fold_dim: the dimension of these channels.
        range: low and high, which are then not looked for: x is read once.  A float32 tensor of two elements, for
            per="channel" of shape (2, channels), or two numbers.  What lies outside saturates.
        power_of_two: take the next power of two below the scale that the range gives, so that a step is a power of two
            up to twice as long, and nothing inside the range saturates.
        counted: give a `Ranged`: the coded tensor, its counts, and the range of x (times fold) as it was found.

    >>> coded = pack_integers(torch.tensor([0.0, 0.5, 1.5]), bits=2)
    >>> coded.codes.tolist(), float(coded.scale), float(coded.zero)
    ([0, 1, 3], 2.0, 0.0)
    """
    check_floats(x)
    check_rounding(rounding, ("nearest", "stochastic"))
    if per not in ("tensor", "channel"):
        raise InvalidValue(sentence("per", per, "'tensor' or 'channel'"))
    stochastic, key = rounding == "stochastic", key_of(seed, offset, x)
    how = Levelling(bits, per == "channel", bool(symmetric), stochastic, key, bool(power_of_two))
    codes, parameters, found, counts = call("integer_codes", x, _limits(range, x), fold, fold_dim, *how)
    coded = coded_levels(x, codes, parameters, bits, symmetric, fold, fold_dim)
    return Ranged(coded, counts, found if how.per_channel else found[:, 0]) if counted else coded


def coded_levels(
    x: Tensor, codes: Tensor, parameters: Tensor, bits: int, symmetric: bool, fold: Tensor | None, fold_dim: int
) -> CodedTensor:
    """Return the coded tensor of levels with scale and zero of each row, or of all."""
    scale, zero = parameters.unbind()
    format = f"int{bits}:symmetric" if symmetric else f"uint{bits}"
    transform = () if fold is None else (Folded(fold, fold_dim),)
    return CodedTensor(codes, scale, format, Layout.of(dense(x)), zero, transform=transform)


def quantize_integers(x: Tensor, bits: int, *, counted: bool = False, **options: Any) -> Any:
    """Return x rounded to levels, in its own type and layout: the bits of `pack_integers(...).decode()`.

    Arguments as there; with `counted` the result is a `Ranged`.
    """
    coded, counts, found = pack_integers(x, bits, counted=True, **options)
    result = coded.decode()
    return Ranged(result, counts, found) if counted else result


def _limits(range: Tensor | tuple[float, float] | None, x: Tensor) -> Tensor | None:
    if range is None:
        return None
    if isinstance(range, Tensor):
        if not range.is_floating_point():
            raise InvalidType(f"range must be a float tensor, low and high; got {tensor_words(range)}.")
        return range.to(device=x.device, dtype=torch.float32)
    try:
        low, high = (float(end) for end in range)
    except (TypeError, ValueError):
        raise InvalidType(sentence("range", range, "two numbers, low and high, or a float tensor")) from None
    if not low <= high:
        raise InvalidValue(sentence("range", range, "low and high, in this order"))
    return torch.tensor([low, high], dtype=torch.float32, device=x.device)


def quantize_per_tensor(
    x: Tensor, bits: int, rounding: Rounding = "stochastic", seed: Seed = 0, offset: Seed = 0, *, counted: bool = False
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
        counted: give a `Counted`: exact zeros, NaN and saturated elements.
    """
    return quantize_values("quantize_per_tensor", x, bits, rounding, seed, offset, counted)


def pack_per_tensor(
    x: Tensor, bits: int, rounding: Rounding = "stochastic", seed: Seed = 0, offset: Seed = 0, *, counted: bool = False
) -> Any:
    """A `CodedTensor` whose decode() is `quantize_per_tensor`, bit for bit.

    Arguments as there; with `counted` the result is an `Encoded`.  NaN has the code 255; with 8 bits all codes are
    numbers, and `low` becomes NaN instead, so that the tensor decodes to NaN.
    """
    arguments = quantizer_arguments(x, bits, rounding, True, seed, offset)
    codes, parameters, counts = call("quantize_per_tensor", x, *arguments)
    return with_counts(coded_rows(x, codes, parameters, f"uint{bits}"), counts, counted, parameters[2])


def quantize_per_sample(
    x: Tensor, bits: int, rounding: Rounding = "stochastic", seed: Seed = 0, offset: Seed = 0, *, counted: bool = False
) -> Any:
    """PSQ of [chen2020]: each row (first dimension) has its own range, widened as in `quantize_per_tensor`.

    A row whose elements are all the same stays as it is.

    Summed over a matrix of D columns the variance is at most D / (4 B^2) sum_i r_i^2, r_i the ranges:
    `lograd.theory.per_sample_variance_bound`.  Arguments as in `quantize_per_tensor`; x has at least two dimensions.
    """
    return quantize_values("quantize_per_sample", x, bits, rounding, seed, offset, counted)


def pack_per_sample(
    x: Tensor, bits: int, rounding: Rounding = "stochastic", seed: Seed = 0, offset: Seed = 0, *, counted: bool = False
) -> Any:
    """A `CodedTensor` whose decode() is `quantize_per_sample`, row by row as in `pack_per_tensor`."""
    arguments = quantizer_arguments(x, bits, rounding, True, seed, offset)
    codes, parameters, counts = call("quantize_per_sample", x, *arguments)
    return with_counts(coded_rows(x, codes, parameters, f"uint{bits}"), counts, counted)


def quantize_interval(
    x: Tensor,
    bits: int,
    gamma: float | Tensor = 1.0,
    rounding: Rounding = "stochastic",
    seed: Seed = 0,
    offset: Seed = 0,
) -> Clipped:
    """[kim2024]: 2^bits - 1 levels over [-c, c], c = gamma max |x|; unbiased inside, clipped outside.

    The step is 2c / (2^bits - 2), so zero is a level.  The paper moves gamma until the share of clipped elements is
    alpha / (2^bits - 1); it and max |x| are results.

    Args:
        gamma: positive, at most 1; a number or a tensor of one element.

    The others are those of `quantize_per_tensor`.
    """
    arguments = _gamma(gamma, x), *quantizer_arguments(x, bits, rounding, False, seed, offset)
    result, _, statistics, counts = call("quantize_interval", x, *arguments)
    return Clipped(result, statistics[0].float(), statistics[1], counts)


def pack_interval(
    x: Tensor,
    bits: int,
    gamma: float | Tensor = 1.0,
    rounding: Rounding = "stochastic",
    seed: Seed = 0,
    offset: Seed = 0,
) -> Clipped:
    """A `CodedTensor` whose decode() is the result of `quantize_interval`, with the other results of it."""
    arguments = _gamma(gamma, x), *quantizer_arguments(x, bits, rounding, True, seed, offset)
    codes, parameters, statistics, counts = call("quantize_interval", x, *arguments)
    coded, counts = with_counts(coded_rows(x, codes, parameters, f"int{bits}:symmetric"), counts, True, parameters[2])
    return Clipped(coded, statistics[0].float(), statistics[1], counts)


def quantize_values(name: str, x: Tensor, bits: int, rounding: str, seed: Seed, offset: Seed, counted: bool) -> Any:
    """Return the values of a quantizer of rows; with `counted` a `Counted`."""
    result, *_, counts = call(name, x, *quantizer_arguments(x, bits, rounding, False, seed, offset))
    return Counted(result, counts) if counted else result


def quantizer_arguments(x: Tensor, bits: int, rounding: str, packed: bool, seed: Seed, offset: Seed) -> tuple[Any, ...]:
    """Return the arguments that the operators of all quantizers of rows have behind x."""
    check_floats(x)
    check_rounding(rounding, ("nearest", "stochastic"))
    return bits, rounding == "stochastic", packed, key_of(seed, offset, x)


def coded_rows(
    x: Tensor, codes: Tensor, parameters: Tensor, format: str, transform: tuple[Transform, ...] = ()
) -> CodedTensor:
    """Return the coded tensor of codes with scale, low and zero of each row."""
    layout = Layout(tuple(x.shape), tuple(codes.stride()), x.dtype)
    scale, low, zero = parameters.unbind()
    return CodedTensor(codes, scale, format, layout, zero, low, transform=transform)


def with_counts(coded: CodedTensor, counts: Tensor, counted: bool, zero: Tensor | None = None) -> Any:
    """Return the coded tensor, or an `Encoded` with counts.

    The kernels count no zeros among codes: those are the elements with the code `zero`, or what decodes to 0.
    """
    if not counted:
        return coded
    same = coded.codes == zero.to(torch.uint8) if zero is not None else coded.decode(torch.float32) == 0
    return Encoded(coded, torch.stack([torch.count_nonzero(same), counts[1], counts[2]]))


def _gamma(gamma: float | Tensor, x: Tensor) -> Tensor:
    check_floats(x)
    if isinstance(gamma, Tensor):
        return gamma
    if isinstance(gamma, bool) or not isinstance(gamma, numbers.Real):
        raise InvalidType(sentence("gamma", gamma, "a number, positive and at most 1"))
    if not 0 < gamma <= 1:
        raise InvalidValue(sentence("gamma", gamma, "positive and at most 1"))
    return torch.full((), gamma, dtype=torch.float64, device=x.device)


# --------------------------------------------------------------------------------------------------------------- checks


def check_batch(x: Tensor, *rest: object) -> None:
    """Refuse a tensor without rows."""
    if x.dim() < 2:
        raise InvalidValue(
            f"x must have at least 2 dimensions, samples first; got {tuple(x.shape)}; x[None] is one sample."
        )


def check_parameters(codes: Tensor, parameters: Tensor, *rest: object) -> None:
    """Refuses parameters that are not three for the tensor, or three for each row."""
    rows = parameters.shape[-1] if parameters.dim() else 0
    if parameters.dim() != 2 or parameters.shape[0] != 3 or rows not in (1, codes.shape[0] if codes.dim() else 1):
        raise InvalidValue(
            "scale, low and zero must have one element, or one for each row of the codes; got "
            f"{tuple(parameters.shape[1:])} for codes of shape {tuple(codes.shape)}."
        )


def _check_integers(
    x: Tensor, limits: Tensor | None, fold: Tensor | None, fold_dim: int, bits: int, per_channel: bool, *rest: object
) -> None:
    """Refuses lists that do not fit the tensor."""
    if per_channel and not x.dim():
        raise InvalidValue("per='channel' needs a tensor with channels, its first dimension; got one without any.")
    rows = _row_count(x, per_channel)
    if limits is not None and limits.numel() != 2 * rows:
        expected = "a pair, low and high" if rows == 1 else f"of shape (2, {rows}), low and high of each channel"
        raise InvalidValue(f"range must be {expected}; got shape {tuple(limits.shape)}.")
    if fold is None:
        return
    if not 0 <= fold_dim < x.dim():
        raise InvalidValue(f"fold_dim must be a dimension of x, which has {x.dim()}; got {fold_dim}.")
    if tuple(fold.shape) != (x.shape[fold_dim],):
        wanted = f"one factor for each of {x.shape[fold_dim]} channels (dimension {fold_dim} of x)"
        raise InvalidValue(f"fold must be {wanted}; got shape {tuple(fold.shape)}.")


def _check_levels(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> None:
    """Refuse scales that are not those of a tensor or of its rows."""
    rows = codes.shape[0] if codes.dim() else 1
    for what, values in (("scale", scale), ("zero", zero)):
        if values.numel() not in (1, rows):
            raise InvalidValue(f"{what} must have one element, or one for each of {rows} rows; got {values.numel()}.")


# --------------------------------------------------------------------------------------------- ranges, scales and zeros


def row_ranges(x: Tensor) -> Tensor:
    """Return (3, rows) float32: the smallest and the largest finite element of each row, 1 where it holds a NaN."""
    x = x.float()
    if x.shape[1] == 0:
        return x.new_zeros(3, x.shape[0])
    finite = x.isfinite()
    some = finite.any(1)
    low = torch.where(some, torch.where(finite, x, torch.inf).amin(1), 0.0)
    high = torch.where(some, torch.where(finite, x, -torch.inf).amax(1), 0.0)
    return torch.stack([low + 0.0, high + 0.0, x.isnan().any(1).float()])  # -0.0 becomes 0.0


def level_parameters(
    low: Tensor, high: Tensor, bits: int, symmetric: bool, power_of_two: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """float32 scale, zero and the values of the first and the last code, for ranges that are widened to include 0.

    Every code counts: of the two whole numbers beside -low B / (high - low), `zero` is the one that gives the larger
    scale under which both ends of the range have a code.  A scale that shall be a power of two is the next one below.
    A range that is not finite has a scale of NaN.
    """
    low, high = low.double().clamp(max=0.0), high.double().clamp(min=0.0)
    last = float(largest_code(bits, symmetric))
    bins = torch.full_like(low, last)
    if symmetric:
        zero = bins / 2
        wide = _quotient(zero, torch.maximum(-low, high))
    else:
        below = (-low * bins / (high - low)).floor().clamp(1.0, last - 1.0)
        above = torch.minimum(below + 1, bins - 1)
        first, second = (torch.minimum(_quotient(each, -low), _quotient(bins - each, high)) for each in (below, above))
        zero = torch.where(second > first, above, below)
        wide = torch.maximum(first, second)
        # One-sided ranges: zero is the first or the last code.
        zero = torch.where(low < 0, zero, 0.0)
        wide = torch.where(low < 0, wide, _quotient(bins, high))
        zero = torch.where((low < 0) & (high <= 0), bins, zero)
        wide = torch.where((low < 0) & (high <= 0), _quotient(bins, -low), wide)
    scale = wide.clamp(max=_LARGEST)
    least = torch.maximum(zero, bins - zero) / torch.full_like(scale, _WIDEST)
    if power_of_two:
        scale, least = _power_below(scale), 2 * _power_below(least)
    scale = torch.maximum(scale, least)
    proper = low.isfinite() & high.isfinite()
    scale = torch.where(proper, scale, torch.nan).float()
    zero = torch.where(proper, zero, bins / 2 if symmetric else 0.0)
    smallest, largest = -zero / scale.double(), (bins - zero) / scale.double()
    smallest = torch.where(proper, torch.minimum(low, smallest), -_LARGEST)
    largest = torch.where(proper, torch.maximum(high, largest), _LARGEST)
    return scale, zero.float(), smallest.float(), largest.float()


def _power_below(x: Tensor) -> Tensor:
    """The largest power of two that is at most x, which is positive and finite."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 1)


def _quotient(steps: Tensor, width: Tensor) -> Tensor:
    """steps / width; the largest float64 where the width is 0, so that the other side of a range decides."""
    return torch.where(width > 0, steps / width, torch.finfo(torch.float64).max)


def largest_code(bits: int, symmetric: bool) -> int:
    """The last code: one less where there are as many levels below zero as above."""
    return int(2**bits - (2 if symmetric else 1))


def sample_parameters(ranges: Tensor, bins: int) -> Tensor:
    """Each row's range, widened, covers all codes; as `sample_parameters` in csrc/kernels/rows."""
    low, high = _widened(ranges[0].double(), ranges[1].double())
    scale = _scale(torch.full_like(low, bins), (high - low).clamp(max=_WIDEST))
    return torch.stack([scale, low.float(), torch.zeros_like(ranges[0]), ranges[0], ranges[1]])


def tensor_parameters(ranges: Tensor, bins: int) -> Tensor:
    """One range, widened to include zero and moved until zero is a code; as `quantize_tensor` in csrc/kernels/rows."""
    smallest, largest = ranges[0].double(), ranges[1].double()
    low, high = _widened(smallest.clamp(max=0), largest.clamp(min=0))
    zero = (-low * (torch.full_like(low, bins) / (high - low))).floor().clamp(max=bins - 1)
    zero = torch.where(high > low, zero, 0.0)
    # The paper's B / (mx' - mn), with the moved upper end mx', is zero / -mn.  Without a whole step below zero
    # (zero = 0) the upper end decides instead.
    above = torch.where(smallest < 0, 1.0, 0.0).double()
    scale = torch.where(zero > 0, _scale(zero, -low), _scale(bins - above, high))
    zero = torch.where(zero > 0, zero, above)
    scale = torch.maximum(scale, ((bins - zero) / _WIDEST).float())  # else the upper end would decode to infinity
    return torch.stack([scale, torch.zeros_like(ranges[0]), zero.float(), ranges[0], ranges[1]])


def _widened(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """A float64 range and a little more, so that float32 rounding does not push its ends outside."""
    more = WIDENING * (high - low)
    return low - more, high + more


def _scale(steps: Tensor, width: Tensor) -> Tensor:
    """float32 steps / width, finite; 1 where the width is 0, as all elements then are the same, and remain so.

    Both are float64 tensors: PyTorch divides a number by a tensor through the reciprocal, which rounds twice.
    """
    return torch.where(width > 0, (steps / width).clamp(max=_LARGEST), 1.0).float()


def interval_parameters(largest: Tensor, gamma: Tensor, levels: int) -> Tensor:
    """`levels` steps on either side of zero, up to c = gamma max |x|; as `quantize_interval` in csrc/kernels/rows."""
    clip = (gamma.reshape(1) * largest.double()).float()
    scale = _scale(torch.full_like(clip, levels, dtype=torch.float64), clip.double())
    return torch.stack([scale, torch.zeros_like(scale), torch.full_like(scale, levels), -clip, clip])


# ---------------------------------------------------------------------------------------------------------- definitions


def affine_codes(
    z: Tensor, scale: Tensor, low: Tensor | float, zero: Tensor, last: int, stochastic: bool, key: Tensor
) -> Tensor:
    """Return clamp(round(s (z - low)) + zero, 0, last) of float32 elements; NaN takes the first code."""
    steps = (z - low) * scale
    steps = torch.where(steps > -zero, steps, -zero)
    steps = torch.where(steps < last - zero, steps, last - zero)
    size = steps.abs()
    whole = rounded_up_or_down(size, key) if stochastic else size.round()
    return torch.copysign(whole, steps) + zero


def affine_values(codes: Tensor, scale: Tensor, low: Tensor | float, zero: Tensor) -> Tensor:
    """Return (code - zero) / s + low in float32."""
    return (codes.float() - zero) / scale + low


def integer_codes(x: Tensor, limits: Tensor | None, fold: Tensor | None, fold_dim: int, *levelling: Any) -> Results:
    """Return codes, scale and zero (2, rows), the range found (2, rows) and counts; see `pack_integers`."""
    how = Levelling(*levelling)
    x = dense(x)
    z = _in_memory_order(x, x if fold is None else x.float() * _along(x, fold, fold_dim))
    rows, last = _row_count(x, how.per_channel), largest_code(how.bits, how.symmetric)
    size = x.numel() // max(rows, 1)
    per_row = z.as_strided(x.shape, x.stride()).reshape(rows, size)
    found, finite = row_ranges(per_row)[:2], per_row.isfinite().all(1)
    low, high = found if limits is None else limits.reshape(2, rows)
    scale, zero, smallest, largest = level_parameters(low, high, how.bits, how.symmetric, how.power_of_two)

    scales, zeros = (_in_memory_order(x, _along(x, each, 0)) if rows > 1 else each for each in (scale, zero))
    level = affine_codes(z, scales, 0.0, zeros, last, how.stochastic, how.key)
    codes = _empty_codes(x).copy_(level.to(torch.uint8).as_strided(x.shape, x.stride()))

    # A row without a range has no levels but zero: its step is 0, so that it is no part of any product.
    empty = (low >= 0) & (high <= 0)
    visible = torch.where(finite, torch.where(empty, torch.inf, scale), torch.nan)
    known = ~visible.isnan()
    outside = (per_row < smallest[:, None]) | (per_row > largest[:, None])
    same = codes.reshape(rows, size) == zero[:, None]
    counts = torch.stack([(same & known[:, None]).sum(), (~known).sum() * size, outside.sum(), (x == 0).sum()])
    return codes, torch.stack([visible, zero]), found, counts


def quantize_rows(
    kind: str, x: Tensor, last: int, stochastic: bool, packed: bool, key: Tensor, gamma: Tensor | None = None,
    out: Tensor | None = None
) -> RowResults:  # fmt: skip
    """Return the values of a matrix, or its codes if `packed`; what was found; parameters (5, rows) and counts.

    Args:
        kind: "samples", with a range for each row; "tensor", for one row, zero among its codes; or "interval", for one
            row, between -gamma and gamma times its largest magnitude.
        x: a contiguous matrix.
        last: the last code.
        out: room for the values, which the native kernel writes into x itself; this one needs none.

    Found are the ranges, or for an interval float64 the largest magnitude and the share of elements beyond it.
    Parameters are scale, low, zero and the bounds of the finite elements, or of the interval.  Counted are zeros (of
    values only), NaN and elements outside the bounds.
    """
    found = row_ranges(x)
    if gamma is not None:
        parameters = interval_parameters(_largest(x), gamma, last // 2)
    else:
        parameters = (sample_parameters if kind == "samples" else tensor_parameters)(found, last)
    wide = x.float()
    scale, low, zero, smallest, largest = (row[:, None] for row in parameters)
    codes = affine_codes(wide, scale, low, zero, last, stochastic, key)
    nan, outside = wide.isnan(), ((wide < smallest) | (wide > largest)).sum()
    if packed:
        zeros = torch.zeros_like(nan)
        result = torch.where(nan, float(NAN_CODE) if last < NAN_CODE else 0.0, codes).to(torch.uint8)
    else:
        value = torch.where(nan, wide, affine_values(codes, scale, low, zero))
        zeros, result = value == 0, in_type(value, x.dtype)
    counts = torch.stack([zeros.sum(), nan.sum(), outside])
    if gamma is not None:
        found = torch.stack([_largest(x)[0].double(), outside.double() / max(x.numel(), 1)])
    return result, found, parameters, counts


def _largest(x: Tensor) -> Tensor:
    """Return the largest finite magnitude of each row."""
    low, high, _ = row_ranges(x)
    return torch.maximum(-low, high) + 0.0


def largest_and_scale(x: Tensor, top: float) -> Tensor:
    """Return the largest finite magnitude m and top / m, finite, and 1 if m is 0."""
    largest = _largest(flat(dense(x)).reshape(1, -1))
    # Below the smallest normal numbers the quotient overflows.
    tops = torch.full_like(largest, top)
    scale = torch.where(largest > 0, tops / largest, 1.0).clamp(max=_LARGEST)
    # A subnormal scale has few digits; rounded down, it would make top / scale infinite.
    scale = torch.where(tops / scale <= _LARGEST, scale, torch.nextafter(scale, torch.ones_like(scale)))
    return torch.cat([largest, scale])


def column_largest(x: Tensor, rows: Tensor | None) -> Tensor:
    """Return the largest magnitude of each column (dimension 1) as float32, NaN where an element is NaN.

    Args:
        rows: factors of the rows (first dimension), by which elements are multiplied before; None for none.
    """
    z = x.float() if rows is None else x.float() * _along(x, rows, 0)
    if not x.numel():
        return z.new_zeros(x.shape[1])
    return z.abs().amax([dim for dim in range(x.dim()) if dim != 1])


def row_limits(x: Tensor, bits: int) -> Tensor:
    """Return low and high of each row of a matrix, widened so that the same code stands for zero in all rows.

    A zero point z leaves z steps below zero and B - z above, B = 2^bits - 1, so row i needs a step of
    max(-low_i / z, high_i / (B - z)).  The z that is taken has the least sum of squares of these steps, each in units
    of its row's range: so a row counts as much as any other, whatever its size.  With k_i = -low_i B / (high_i - low_i)
    the lower end decides the step where k_i > z, so that the sum is

        sum over k_i > z of (k_i / z)^2 + sum over k_i <= z of ((B - k_i) / (B - z))^2

    times a constant.  The k_i are rounded to a grid, fine and with the z on it: then sums are exact in any order.
    """
    last = 2**bits - 1
    fine = _SHARES // last
    if not x.numel():
        return x.new_zeros(2, x.shape[0], dtype=torch.float32)
    finite = torch.where(x.isfinite(), x, 0).double()
    below, above = -finite.amin(1).clamp(max=0), finite.amax(1).clamp(min=0)
    if bool((below > 0).any()) and bool((above > 0).any()):
        wide = below + above > 0
        share = below[wide] / (below[wide] + above[wide])
        places = fine * last
        count = torch.bincount((share * places + 0.5).floor().long(), minlength=places + 1)
        place = torch.arange(places + 1, device=x.device)
        lower, upper = count * place * place, count * (places - place) * (places - place)
        low, high = lower.sum() - lower.cumsum(0), upper.cumsum(0)
        inner = slice(fine, places, fine)
        z = place[inner]
        zero = 1 + int((low[inner].double() / (z * z) + high[inner].double() / ((places - z) * (places - z))).argmin())
    else:
        zero = last if bool((below > 0).any()) else 0
    step = torch.maximum(below / max(zero, 1), above / max(last - zero, 1))
    # A hair more, so that the largest number does not count as saturated; and ends that float32 has, in rows of zeros
    # as well: without them a row would get a zero point of its own.
    step = (step * (1 + 2.0**-22)).clamp(torch.finfo(torch.float32).tiny, _LARGEST / last)
    return torch.stack([-zero * step, (last - zero) * step]).float()


def dequantize_matrix(codes: Tensor, parameters: Tensor, last: int, dtype: torch.dtype) -> Tensor:
    """Return the values of a contiguous matrix of codes; `parameters` (3, rows) are scale, low and zero."""
    scale, low, zero = (row[:, None] for row in parameters)
    value = affine_values(codes, scale, low, zero)
    return in_type(torch.where(codes == NAN_CODE, torch.nan, value) if last < NAN_CODE else value, dtype)


def dequantize_levels(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (code - zero) / scale, with one of each for the tensor, or one for each row (first dimension)."""
    along = [-1] + [1] * (codes.dim() - 1) if codes.dim() else []
    value = affine_values(codes, scale.reshape(along), 0.0, zero.reshape(along))
    return empty_for(codes, dtype).copy_(narrowed(value, dtype))


def as_matrix(x: Tensor, rows: int) -> Tensor:
    """Return a tensor as so many contiguous rows."""
    return x.contiguous().view(rows, x.numel() // rows if rows else 0)


def _row_count(x: Tensor, per_channel: bool) -> int:
    """The number of ranges."""
    return x.shape[0] if per_channel else 1


def _empty_codes(x: Tensor) -> Tensor:
    """Codes without elements: images, which have four dimensions, lie channels-last, all else contiguously."""
    memory = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    return torch.empty(x.shape, dtype=torch.uint8, device=x.device, memory_format=memory)


def _along(x: Tensor, values: Tensor, dim: int) -> Tensor:
    """A list along one dimension of x, to be broadcast with it."""
    return values.reshape([-1 if place == dim else 1 for place in range(x.dim())])


def _in_memory_order(x: Tensor, values: Tensor) -> Tensor:
    """float32 values, broadcast to the shape of x, in the memory order of x and in one dimension."""
    laid = torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device=x.device)
    return flat(laid.copy_(values))


# --------------------------------------------------------------------------------------------------------------- native


class _Planes(NamedTuple):
    """How a tensor lies in memory: planes of channels, whose codes keep that order or have channels side by side."""

    batch: int
    channels: int
    inner: int
    transposed: bool


def _integer_codes_native(
    x: Tensor, limits: Tensor | None, fold: Tensor | None, fold_dim: int, *levelling: Any
) -> Results:
    """The kernel of the CPU; layouts that are neither rows nor images go to the reference."""
    how = Levelling(*levelling)
    x = dense(x)
    planes = _planes(x, how.per_channel)
    if planes is None and not how.stochastic:  # without random numbers the order does not matter
        x = x.contiguous()
        planes = _planes(x, how.per_channel)
    if planes is None:
        return integer_codes(x, limits, fold, fold_dim, *levelling)
    rows, factors = _row_count(x, how.per_channel), 0 if fold is None else len(fold)
    codes, counts = _empty_codes(x), x.new_empty(COUNTS + 1, dtype=torch.int64)
    parameters, found = (x.new_empty((2, rows), dtype=torch.float32) for _ in range(2))
    run(
        "integer_codes", type=FLOAT_TYPES[x.dtype], x=x, codes=codes, batch=planes.batch, channels=planes.channels,
        inner=planes.inner, transposed=planes.transposed, per_channel=how.per_channel,
        limits=None if limits is None else limits.contiguous(), fold=None if fold is None else fold.contiguous(),
        fold_channels=factors, fold_inner=x.stride(fold_dim) if factors > 1 else 1, bits=how.bits,
        symmetric=how.symmetric, power_of_two=how.power_of_two, stochastic=how.stochastic, key=how.key,
        parameters=parameters, found=found, counts=counts,
    )  # fmt: skip
    return codes, parameters, found, counts


def _planes(x: Tensor, per_channel: bool) -> _Planes | None:
    """How a dense tensor lies; None where its order is one that the kernels do not know."""
    shape = tuple(x.shape)
    rows = _row_count(x, per_channel)
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return _Planes(rows, 1, x.numel() // max(rows, 1), False)
    if x.is_contiguous():
        if x.dim() == 4:
            return _Planes(shape[0], shape[1], shape[2] * shape[3], True)
        return _Planes(rows, 1, x.numel() // max(rows, 1), False)
    if x.dim() == 2 and not per_channel and x.t().is_contiguous():
        return _Planes(1, shape[1], shape[0], True)
    return None


def quantize_rows_native(
    kind: str, x: Tensor, last: int, stochastic: bool, packed: bool, key: Tensor, gamma: Tensor | None = None,
    out: Tensor | None = None
) -> RowResults:  # fmt: skip
    """Return what `quantize_rows` returns; the values may go into x, as `out`."""
    out = torch.empty_like(x, dtype=torch.uint8 if packed else x.dtype) if out is None else out
    found = x.new_empty(2, dtype=torch.float64) if gamma is not None else x.new_empty((3, len(x)), dtype=torch.float32)
    parameters, counts = x.new_empty((5, len(x)), dtype=torch.float32), x.new_zeros(COUNTS, dtype=torch.int64)
    width = (last,) if gamma is None else (gamma, last // 2)
    run(f"quantize_{kind}", *_matrix(x), out, found, parameters, *width, stochastic, packed, key, counts)
    return out, found, parameters, counts


def row_ranges_native(x: Tensor) -> Tensor:
    """Return what `row_ranges` returns."""
    out = x.new_empty((3, len(x)), dtype=torch.float32)
    run("row_ranges", *_matrix(x), out)
    return out


def _largest_and_scale_native(x: Tensor, top: float) -> Tensor:
    x, out = dense(x), x.new_empty(2, dtype=torch.float32)
    run("largest_and_scale", FLOAT_TYPES[x.dtype], x, 1, x.numel(), top, out)
    return out


def _row_limits_native(x: Tensor, bits: int) -> Tensor:
    if x.dtype != torch.float32 or not x.numel():
        return row_limits(x, bits)
    x, out = x.contiguous(), x.new_empty((2, x.shape[0]))
    run("row_limits", x, *x.shape, bits, out)
    return out


def _column_largest_native(x: Tensor, rows: Tensor | None) -> Tensor:
    """The kernel of the CPU; other types than float32 and other layouts than rows and images go to the reference."""
    last = x.dim() == 2 or x.is_contiguous(memory_format=torch.channels_last) if x.dim() in (2, 4) else False
    if x.dtype != torch.float32 or not x.numel() or (rows is not None and x.dim() != 2):
        return column_largest(x, rows)
    if not (x.is_contiguous() or (last and x.dim() == 4)):
        x = x.contiguous()
    count, channels = x.numel(), x.shape[1]
    batch, inner = (count // channels, 1) if last else (x.shape[0], count // channels // x.shape[0])
    out = x.new_empty(channels)
    run("column_largest", x, batch, channels, inner, None if rows is None else rows.contiguous(), out)
    return out


def _check_rows(x: Tensor, bits: int) -> None:
    """Refuse a tensor that is no matrix, and widths that levels do not have."""
    if x.dim() != 2:
        raise InvalidValue(f"row_limits takes a matrix; got {x.dim()} dimensions.")


def _check_columns(x: Tensor, rows: Tensor | None) -> None:
    if x.dim() < 2:
        raise InvalidValue(f"column_largest takes a tensor with columns, of 2 dimensions or more; got {x.dim()}.")
    if rows is not None and tuple(rows.shape) != tuple(x.shape[:1]):
        raise InvalidValue(f"rows must have {x.shape[0]} elements, one for each row; got shape {tuple(rows.shape)}.")


def dequantize_matrix_native(codes: Tensor, parameters: Tensor, last: int, dtype: torch.dtype) -> Tensor:
    """Return what `dequantize_matrix` returns."""
    out = torch.empty_like(codes, dtype=dtype)
    run("dequantize_rows", FLOAT_TYPES[dtype], codes, *codes.shape, out, parameters, last)
    return out


def _matrix(x: Tensor) -> tuple[Any, ...]:
    return FLOAT_TYPES[x.dtype], x, *x.shape


def _dequantize_levels_native(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Take codes as they lie, which are rows of memory where each row has its scale."""
    rows, codes, size = max(scale.numel(), zero.numel()), dense(codes), codes.numel()
    if rows > 1 and size and codes.stride(0) != size // rows:  # rows do not follow each other in memory
        values = _dequantize_levels_native(codes.contiguous(), scale, zero, dtype)
        return torch.empty_like(codes, dtype=dtype).copy_(values)
    if bool((scale == 0).any()):  # 0 / 0 is a NaN of another sign
        return dequantize_levels(codes, scale, zero, dtype)
    scale = torch.where(scale.isnan(), torch.nan, scale).reshape(-1)  # one NaN for all
    parameters = torch.stack([each.expand(rows) for each in (scale, torch.zeros_like(scale), zero.reshape(-1))])
    values = dequantize_matrix_native(flat(codes).view(rows, size // max(rows, 1)), parameters, NAN_CODE, dtype)
    return values.as_strided(codes.shape, codes.stride())


# ----------------------------------------------------------------------------------------- gradients of a learned range


BLOCK, LANES = 1024, 16
LARGEST_LEVEL = 255


def _alike_in_memory(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors without gaps, and x in memory as g is."""
    g = dense(g)
    return g, x if x.stride() == g.stride() else torch.empty_like(g).copy_(x)


def _folded_sum(x: Tensor) -> Tensor:
    """Return the sum over the last dimension: the upper half, which may be shorter, is added to the lower until one
    element is left."""
    while (left := x.shape[-1]) > 1:
        half = (left + 1) // 2
        x = x[..., :half] + F.pad(x[..., half:], (0, 2 * half - left))
    return x[..., 0]


def _block_sum(x: Tensor) -> Tensor:
    """Return the sum of a vector in float64, one element, in an order that no thread changes.

    Blocks of 1024 elements in memory order, in each of these 16 sums of the elements i with equal i % 16, and then
    halves that are added to each other.
    """
    x = F.pad(x.double(), (0, -x.numel() % BLOCK if x.numel() else BLOCK)).reshape(-1, BLOCK // LANES, LANES)
    lanes = torch.zeros_like(x[:, 0])
    for row in x.unbind(1):
        lanes += row
    return _folded_sum(_folded_sum(lanes)).reshape(1)


def range_gradients(g: Tensor, x: Tensor, factor: float, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, which is g inside the range and 0 outside, and that of the step of the levels.

    Levels are low, ..., high, and the step is s = 1 / factor.  With y = x / s and rounding as the identity, the rounded
    x has the derivative round(y) - y by s inside the range, and the last level outside; this times g, summed.
    """
    g, x = _alike_in_memory(g, x)
    steps = x.float() * factor
    inside = (steps >= low) & (steps <= high)
    wide = g.float()
    slopes = (steps.clamp(low, high).round_() - steps.where(inside, 0)).mul_(wide)
    return torch.empty_like(g).copy_(in_type(wide * inside, g.dtype)), _block_sum(flat(slopes))


def _range_gradients_native(g: Tensor, x: Tensor, factor: float, low: int, high: int) -> tuple[Tensor, Tensor]:
    g, x = _alike_in_memory(g, x)
    d_x, total = torch.empty_like(g), g.new_empty(1, dtype=torch.float64)
    run("range_gradients", FLOAT_TYPES[g.dtype], g, x, d_x, g.numel(), factor, low, high, total)
    return d_x, total


def _check_gradients(g: Tensor, x: Tensor, factor: float, low: int, high: int) -> None:
    if g.shape != x.shape or g.dtype != x.dtype:
        raise InvalidValue(
            f"g must be like x, {type_name(x.dtype)} of shape {tuple(x.shape)}; got {type_name(g.dtype)} of shape "
            f"{tuple(g.shape)}."
        )
    if not -LARGEST_LEVEL <= low <= 0 < high <= LARGEST_LEVEL:
        raise InvalidValue(f"levels must lie within -255 and 255, 0 between them; got {low} to {high}.")


# --------------------------------------------------------------------------------------------------------- registration


def _integer_fake(
    x: Tensor, limits: Tensor | None, fold: Tensor | None, fold_dim: int, bits: int, per_channel: bool, *rest: object
) -> Results:
    rows = _row_count(x, per_channel)
    parameters, found = (x.new_empty((2, rows), dtype=torch.float32) for _ in range(2))
    return _empty_codes(x), parameters, found, x.new_empty(COUNTS + 1, dtype=torch.int64)


def _rows_kernel(kind: str, quantize: Callable[..., RowResults]) -> Kernel:
    """Return the kernel of an operator over the rows of a matrix."""

    def kernel(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *gamma, bits, stochastic, packed, key = rest
        last = 2**bits - (2 if gamma else 1)
        matrix = as_matrix(x, x.shape[0] if kind == "samples" else 1)
        given = (each.double() for each in gamma)
        result, found, parameters, counts = quantize(kind, matrix, last, stochastic, packed, key, *given)
        result = in_layout_of(x, result.view(x.shape))
        if gamma:
            return result, parameters[:3], found, counts
        return result, decoding_parameters(parameters, found, last, packed), counts

    return kernel


def decoding_parameters(parameters: Tensor, ranges: Tensor, last: int, packed: bool) -> Tensor:
    """Return scale, low and zero.  Where all 256 codes are numbers, a row with a NaN decodes to NaN as a whole."""
    result = parameters[:3]
    if packed and last == NAN_CODE:
        result[1] = torch.where(ranges[2] > 0, torch.nan, result[1])
    return result


def _dequantize_kernel(dequantize: Callable[..., Tensor]) -> Kernel:
    def kernel(codes: Tensor, parameters: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
        values = dequantize(as_matrix(codes, parameters.shape[1]), parameters.contiguous(), bins, dtype)
        return in_layout_of(codes, values.view(codes.shape))

    return kernel


def fake_rows(x: Tensor, rows: Any, packed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return a result, the parameters of rows and counts without elements."""
    counts = x.new_empty(COUNTS, dtype=torch.int64)
    return empty_for(x, torch.uint8 if packed else x.dtype), x.new_empty((3, rows), dtype=torch.float32), counts


def _fake_interval(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    result, parameters, counts = fake_rows(x, 1, rest[-2])
    return result, parameters, x.new_empty(2, dtype=torch.float64), counts


_FLOAT = Takes((torch.float32,))
QUANTIZER = "int bits, bool stochastic, bool packed, Tensor key"
register(
    "integer_codes(Tensor x, Tensor? limits, Tensor? fold, int fold_dim, int bits, bool per_channel, bool symmetric,"
    " bool stochastic, Tensor key, bool power_of_two=False) -> (Tensor, Tensor, Tensor, Tensor)",
    integer_codes,
    when_native(_integer_codes_native),
    _integer_fake,
    _check_integers,
    {"limits": _FLOAT, "fold": _FLOAT},
)
register(
    f"quantize_per_tensor(Tensor x, {QUANTIZER}) -> (Tensor, Tensor, Tensor)",
    _rows_kernel("tensor", quantize_rows),
    when_native(_rows_kernel("tensor", quantize_rows_native)),
    lambda x, *rest: fake_rows(x, 1, rest[-2]),
)
register(
    f"quantize_per_sample(Tensor x, {QUANTIZER}) -> (Tensor, Tensor, Tensor)",
    _rows_kernel("samples", quantize_rows),
    when_native(_rows_kernel("samples", quantize_rows_native)),
    lambda x, *rest: fake_rows(x, x.shape[0], rest[-2]),
    check_batch,
)
register(
    f"quantize_interval(Tensor x, Tensor gamma, {QUANTIZER}) -> (Tensor, Tensor, Tensor, Tensor)",
    _rows_kernel("interval", quantize_rows),
    when_native(_rows_kernel("interval", quantize_rows_native)),
    _fake_interval,
)
register(
    "largest_and_scale(Tensor x, float top) -> Tensor",
    largest_and_scale,
    when_native(_largest_and_scale_native),
    lambda x, top: x.new_empty(2, dtype=torch.float32),
)
register(
    "column_largest(Tensor x, Tensor? rows) -> Tensor",
    column_largest,
    when_native(_column_largest_native),
    lambda x, rows: x.new_empty(x.shape[1], dtype=torch.float32),
    _check_columns,
    {"rows": _FLOAT},
)
register(
    "row_limits(Tensor x, int bits) -> Tensor",
    row_limits,
    when_native(_row_limits_native),
    lambda x, bits: x.new_empty((2, x.shape[0]), dtype=torch.float32),
    _check_rows,
)
register(
    "dequantize_rows(Tensor codes, Tensor parameters, int bins, ScalarType dtype) -> Tensor",
    _dequantize_kernel(dequantize_matrix),
    when_native(_dequantize_kernel(dequantize_matrix_native)),
    lambda codes, *rest: empty_for(codes, rest[-1]),
    check_parameters,
)
register(
    "dequantize_levels(Tensor codes, Tensor scale, Tensor zero, ScalarType dtype) -> Tensor",
    dequantize_levels,
    when_native(_dequantize_levels_native),
    lambda codes, scale, zero, dtype: empty_for(codes, dtype),
    _check_levels,
    {"scale": _FLOAT, "zero": _FLOAT},
)
register(
    "range_gradients(Tensor g, Tensor x, float factor, int low, int high) -> (Tensor, Tensor)",
    range_gradients,
    when_native(_range_gradients_native),
    lambda g, x, factor, low, high: (torch.empty_like(dense(g)), g.new_empty(1, dtype=torch.float64)),
    _check_gradients,
)
