"""The quantizer of integer products: a tensor as levels, codes of one byte that count steps from a whole zero point.

    code = clamp(round(z scale), -zero, B - zero) + zero        z_q = (code - zero) / scale        x_q = z_q / fold_c

with z = x, or z = x fold_c for channel c where scales that a product sums over are folded into it.

- One range [low, high] for the tensor, or one for each output channel of a weight (rows, the first dimension).  It is
  widened to include 0, which is a level, so zeros stay zeros.
- Asymmetric: B = 2^bits - 1, and `zero` is 0 where low >= 0, as behind a ReLU.  Else it is the whole number next to
  -low B / (high - low) that gives the finer steps while both ends of the range keep a code.
- Symmetric: codes 0 to 2^bits - 2, zero = 2^(bits - 1) - 1, and the largest magnitude of the range at either end.
- round: to nearest, ties to even; or stochastic, up with probability |z scale| - floor |z scale|, so that E[x_q] = x
  inside the range, to 2^-22 of the range.
- Random numbers belong to positions in the memory order of x: the element at place i of memory draws U(seed, offset +
  i).  A tensor with gaps or overlaps is copied to a contiguous one first.
- Codes have the shape of x.  Those of images (four dimensions) lie channels-last, whatever the layout of x was; all
  others are contiguous.
- Elements outside a given range saturate, and are counted.
- NaN or infinity leaves no number of its row (of the tensor) unharmed: the scale becomes NaN, and so does all that it
  decodes.  The range that is found is that of the finite elements.
- A range of nothing but 0 has no levels besides zero: its scale is infinite, its step 0.
- Other scales end at float32's largest number, so their steps are never below 2.9e-39; ranges end at 3.4e38.  Where
  scales are powers of two, ranges beyond 1.7e38 may saturate, so that every code decodes to a finite number.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..coded import CodedTensor, Folded, Layout
from ..errors import InvalidType, InvalidValue, sentence
from ..formats.values import check_rounding, check_width
from .arguments import check_floats, check_tensor, describe, key_of
from .layouts import dense
from .reference.integers import check_integers
from .registry import call

Rounding = Literal["nearest", "stochastic"]
Per = Literal["tensor", "channel"]


class Ranged(NamedTuple):
    """A tensor rounded to levels, with what was counted and the range that was found."""

    result: Tensor
    counts: Tensor
    """int64: exact zeros and NaN of the result, elements that saturated, and exact zeros of x."""
    range: Tensor
    """float32 (2,), or (2, channels): the smallest and the largest finite element, 0 and 0 if there is none."""


class RangedCodes(NamedTuple):
    """As `Ranged`, with a coded tensor."""

    coded: CodedTensor
    counts: Tensor
    range: Tensor


def pack_integers(
    x: Tensor,
    bits: int,
    *,
    per: Per = "tensor",
    symmetric: bool = False,
    rounding: Rounding = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    fold: Tensor | None = None,
    fold_dim: int = 1,
    range: Tensor | tuple[float, float] | None = None,
    power_of_two: bool = False,
    counted: bool = False,
) -> Any:
    """Return x as levels: a `CodedTensor`, which integer products take, and whose decode() is `quantize_integers`.

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
        counted: give a `RangedCodes`: the coded tensor, its counts, and the range of x (times fold) as it was found.

    >>> coded = pack_integers(torch.tensor([0.0, 0.5, 1.5]), bits=2)
    >>> coded.codes.tolist(), float(coded.scale), float(coded.zero)
    ([0, 1, 3], 2.0, 0.0)
    """
    check_floats(x)
    arguments = _arguments(x, bits, per, symmetric, rounding, seed, offset, fold, fold_dim, range, power_of_two)
    codes, parameters, found, counts = call("integer_codes", x, *arguments)
    scale, zero = parameters.unbind()
    layout = Layout.of(dense(x))
    format = f"int{bits}:symmetric" if symmetric else f"uint{bits}"
    transform = () if fold is None else (Folded(fold, fold_dim),)
    coded = CodedTensor(codes, scale, format, layout, zero, transform=transform)
    return RangedCodes(coded, counts, found if per == "channel" else found[:, 0]) if counted else coded


def quantize_integers(
    x: Tensor,
    bits: int,
    *,
    per: Per = "tensor",
    symmetric: bool = False,
    rounding: Rounding = "nearest",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    fold: Tensor | None = None,
    fold_dim: int = 1,
    range: Tensor | tuple[float, float] | None = None,
    power_of_two: bool = False,
    counted: bool = False,
) -> Any:
    """Return x rounded to levels, in its own type and layout: the bits of `pack_integers(...).decode()`.

    Arguments as there; with `counted` the result is a `Ranged`.
    """
    packed = pack_integers(
        x, bits, per=per, symmetric=symmetric, rounding=rounding, seed=seed, offset=offset, fold=fold,
        fold_dim=fold_dim, range=range, power_of_two=power_of_two, counted=True,
    )  # fmt: skip
    result = packed.coded.decode()
    return Ranged(result, packed.counts, packed.range) if counted else result


def _arguments(
    x: Tensor,
    bits: int,
    per: str,
    symmetric: bool,
    rounding: str,
    seed: int | Tensor,
    offset: int | Tensor,
    fold: Tensor | None,
    fold_dim: int,
    range: Tensor | tuple[float, float] | None,
    power_of_two: bool,
) -> tuple[Any, ...]:
    """The arguments of the operator behind x."""
    check_width("bits", bits, 2, 8)
    check_rounding(rounding, ("nearest", "stochastic"))
    if per not in ("tensor", "channel"):
        raise InvalidValue(sentence("per", per, "'tensor' or 'channel'"))
    if fold is not None:
        check_tensor("fold", fold)
        if fold.dtype != torch.float32:
            raise InvalidType(f"fold must be float32; got {describe(fold)}.")
    limits, key = _limits(range, x), key_of(seed, offset, x)
    whole = per == "channel", bool(symmetric), rounding == "stochastic"
    arguments = (limits, fold, fold_dim, bits, *whole, key, bool(power_of_two))
    check_integers(x, *arguments)
    return arguments


def _limits(range: Tensor | tuple[float, float] | None, x: Tensor) -> Tensor | None:
    if range is None:
        return None
    if isinstance(range, Tensor):
        if not range.is_floating_point():
            raise InvalidType(f"range must be a float tensor, low and high; got {describe(range)}.")
        return range.to(device=x.device, dtype=torch.float32)
    try:
        low, high = (float(end) for end in range)
    except (TypeError, ValueError):
        raise InvalidType(sentence("range", range, "two numbers, low and high, or a float tensor")) from None
    if not low <= high:
        raise InvalidValue(sentence("range", range, "low and high, in this order"))
    return torch.tensor([low, high], dtype=torch.float32, device=x.device)
