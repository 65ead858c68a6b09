"""LUQ: unbiased rounding to powers of two below the largest magnitude, as values and as codes.

One draw is `quantize` to a float format without mantissa.  The mean of 2^k draws is a number of the format with k bits
of mantissa and the same exponents, and its code is the sum of the codes of the draws: within one octave codes are
linear, and all draws of an element have its sign.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidValue, sentence
from ..formats import FloatFormat
from ..formats.values import check_rounding, check_width
from .arguments import Rounding, Scalar, Seed, check_floats, key_of, scalar
from .coded import CodedTensor, Encoded, Layout
from .codes import pack_codes, quantize_codes, text_of
from .elementwise import quantize
from .registry import call

SAMPLES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of draws whose mean has a code: powers of two."""
# Built here and not in luq, which torch.compile traces: the format of one draw, and of the mean of 2^k draws.
_FORMATS = {
    (bits, samples): FloatFormat(exponent=bits - 1, mantissa=samples.bit_length() - 1)
    for bits in range(2, 9)
    for samples in SAMPLES
    if bits + samples.bit_length() - 1 <= 8
}
# The seeds of draws lie far apart: those of treatments in one sentence are neighbours.
_APART = 2**32


class Logarithmic(NamedTuple):
    """A tensor rounded to powers of two times its largest magnitude, which is a result too."""

    result: Tensor
    largest: Tensor
    """max |x| of the finite elements."""
    counts: Tensor
    """As in `Counted`."""


def check_samples(bits: int, samples: int, rounding: str) -> None:
    """Refuse widths, numbers of draws and ways of rounding that LUQ does not have."""
    check_width("bits", bits, 2, 8)
    check_rounding(rounding, ("stochastic", "nearest"))
    known = isinstance(samples, int) and not isinstance(samples, bool)
    if not known or (bits, samples) not in _FORMATS:
        most = 2 ** (8 - bits)
        expected = ("1" if most == 1 else f"a power of two up to {most}") + ", so that a mean has a code"
        raise InvalidValue(sentence(f"samples of LUQ with {bits} bits", samples, expected))
    if samples > 1 and rounding == "nearest":
        raise InvalidValue(f"samples={samples} is for stochastic rounding: to nearest, all draws are the same.")


def format_of_mean(bits: int, samples: int) -> FloatFormat:
    """Return the format of the mean of several draws.

    >>> str(format_of_mean(4, 1)), str(format_of_mean(4, 2))
    ('1-3-0', '1-3-1')
    """
    return _FORMATS[bits, samples]


def luq(
    x: Tensor,
    bits: int = 4,
    seed: Seed = 0,
    offset: Seed = 0,
    *,
    rounding: Rounding = "stochastic",
    samples: int = 1,
    largest: Scalar | None = None,
) -> Logarithmic:
    """LUQ of [chmiel2023]: unbiased rounding to 2^(bits - 1) - 1 powers of two below max |x|, zero, and no clipping.

    With a = max |x| / 2^(2^(bits - 1) - 2), the smallest magnitude: below a, Eq. 5 of [chmiel2021]; between 2^k a and
    2^(k + 1) a, up with probability |x| / (2^k a) - 1.  That is `quantize` to the float format without mantissa, the
    largest magnitude scaled to its largest value, stochastically; `rounding="nearest"` is the biased variant.

    The paper's Eq. 11 leaves 5 magnitudes for 4 bits and its code uses 8, of max x rather than max |x|; 7 is what three
    exponent bits hold beside zero.  Infinities saturate; positions are those of `quantize`, in memory order.

    Args:
        samples: the result is the mean of so many independent draws, whose variance is that of one divided by their
            number (SMP of the paper): a power of two, 2^(8 - bits) at most.  The first draw is that of samples=1.
        largest: a magnitude to take in place of max |x|, as that of earlier tensors.  Beyond it elements saturate,
            which is a bias, and are counted.

    @inproceedings{chmiel2023,
      title     = {Accurate Neural Training with 4-bit Matrix Multiplications at Standard Formats},
      author    = {Chmiel, Brian and Banner, Ron and Hoffer, Elad and Ben-Yaacov, Hilla and Soudry, Daniel},
      booktitle = {International Conference on Learning Representations},
      year      = {2023}
    }
    """
    check_floats(x)
    check_samples(bits, samples, rounding)
    format = _FORMATS[bits, 1]
    own, scale = call("largest_and_scale", x, format.max).unbind()
    if largest is not None:
        scale = _scale(x, format, largest)
    if samples == 1:
        result, counts = quantize(x, format, scale, rounding, seed, offset, counted=True)
        return Logarithmic(result, own, counts)
    coded, counts = _mean_codes(x, bits, samples, scale, key_of(seed, offset, x))
    result = coded.decode()
    if int(counts[1]):
        result = torch.where(x.isnan(), x.detach(), result)
    return Logarithmic(result, own, counts)


def pack_luq(
    x: Tensor,
    bits: int = 4,
    seed: Seed = 0,
    offset: Seed = 0,
    *,
    rounding: Rounding = "stochastic",
    samples: int = 1,
    largest: Scalar | None = None,
    counted: bool = False,
) -> Any:
    """Return a `CodedTensor` whose decode() is the result of `luq`; with `counted` an `Encoded`.

    Where x holds a NaN, for which the format has no code, the tensor decodes to NaN as a whole.

    >>> coded = pack_luq(torch.tensor([1.0, 0.75, -0.3]), 4, seed=1, samples=2)
    >>> coded.format, coded.codes.max() < 32
    ('1-3-1', tensor(True))
    """
    check_floats(x)
    check_samples(bits, samples, rounding)
    format = _FORMATS[bits, 1]
    scale = call("largest_and_scale", x, format.max)[1] if largest is None else _scale(x, format, largest)
    if samples == 1:
        return pack_codes(x, format, scale, rounding, seed, offset, counted=counted)
    coded, counts = _mean_codes(x, bits, samples, scale, key_of(seed, offset, x))
    if int(counts[1]):
        coded = CodedTensor(coded.codes, torch.full_like(coded.scale, math.nan), coded.format, coded.layout)
    return Encoded(coded, counts) if counted else coded


def _mean_codes(x: Tensor, bits: int, samples: int, scale: Tensor, key: Tensor) -> Encoded:
    """Return the mean of stochastic draws as the sum of their codes; a NaN has the code of zero."""
    one, mean = _FORMATS[bits, 1], _FORMATS[bits, samples]
    codes, counts = quantize_codes(x, one, scale, "stochastic", key, counted=True)
    for place in range(1, samples):
        codes += quantize_codes(x, one, scale, "stochastic", key + key.new_tensor([place * _APART, 0]))
    nonzero = torch.count_nonzero(codes & (2 ** (mean.bits - 1) - 1))
    counts = torch.stack([codes.numel() - nonzero - counts[1], counts[1], counts[2]])
    layout = Layout(tuple(x.shape), tuple(codes.stride()), x.dtype)
    return Encoded(CodedTensor(codes, scale.clone(), text_of(mean), layout), counts)


def _scale(x: Tensor, format: FloatFormat, largest: Scalar) -> Tensor:
    """Return the scale that puts a given magnitude at the top of the format."""
    top: Tensor = call("largest_and_scale", scalar("largest", largest, x, math.ulp(0.0)).reshape(1), format.max)[1]
    return top
