"""Counts and order statistics of a tensor: the histogram of log2 |x| in one pass, and the exact k-th magnitude.

The histogram is what the empirical law of a gradient is made of, and cheap enough to take at every step; the k-th
magnitude is the threshold of the top-k baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue, sentence
from ..laws import Empirical
from .arguments import check_floats
from .contracts import FLOAT_TYPES
from .layouts import dense, flat
from .registry import call, register, run, when_native

LOWEST, BINS = native.histogram_layout("float32")
SLOTS = BINS + len(native.EXTRA_SLOTS)
LINE_BYTES = 128

_FRACTION_BITS = 23
_SHIFT = 19  # what remains of a float32 is its exponent and the leading four mantissa bits
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio's fraction in 64 bits, as an int64


@final
@dataclass(frozen=True, eq=False)
class LogHistogram:
    """The counts of `log_histogram`.

    `counts` is a tensor; everything else reads it, which waits for the device that it lies on.  Histograms of steps,
    layers or ranks add up exactly: `a + b`.
    """

    table: Tensor
    """int64: the bins, then zeros, NaN, infinities."""

    @property
    def counts(self) -> Tensor:
        """Elements by bin: bin b holds 2^(b // 16 - 149) (1 + [j, j + 1) / 16) with j = b mod 16."""
        return self.table[:BINS]

    @property
    def zeros(self) -> int:
        """The number of elements that are exactly zero."""
        return int(self.table[BINS])

    @property
    def nan(self) -> int:
        """The number of NaN."""
        return int(self.table[BINS + 1])

    @property
    def infinities(self) -> int:
        """The number of infinite elements of either sign."""
        return int(self.table[BINS + 2])

    def law(self) -> Empirical:
        """The law of the nonzero elements.  Like `Empirical.fit`, it refuses NaN and infinities."""
        table = self.table.cpu().numpy()
        zeros, nan, infinities = (int(count) for count in table[BINS:])
        if nan or infinities:
            raise InvalidValue(
                f"a law needs finite elements; got {nan} NaN and {infinities} infinite of {int(table.sum())}. "
                "Find where the gradient overflowed; .nan and .infinities count them."
            )
        if not table[:BINS].any():
            raise InvalidValue(f"a law needs at least one nonzero element; all {zeros} are exactly zero.")
        return Empirical(table[:BINS], LOWEST * native.BINS_PER_OCTAVE, zeros=zeros)

    def __add__(self, other: LogHistogram) -> LogHistogram:
        if not isinstance(other, LogHistogram):
            raise InvalidType(sentence("what is added to a LogHistogram", other, "a LogHistogram"))
        return LogHistogram(self.table + other.table)


def log_histogram(x: Tensor, sample: float = 1.0) -> LogHistogram:
    """Counts of |x| by exponent and leading four mantissa bits, with zeros, NaN and infinities beside them.

    Exact for every element of float32, bfloat16 and float16, subnormals included; independent of threads.

    Args:
        x: any layout.
        sample: the share of lines (128 bytes, two of the cache) that is read.  k = round(1 / sample) lines in memory
            order form a group, and group g gives its line floor(k frac(g phi)), phi the golden ratio.  So the sample is
            deterministic and spread evenly; a plain every-k-th line would miss columns where a row's length fits k.
    """
    check_floats(x)
    if not (isinstance(sample, float | int) and 1e-9 <= sample <= 1):
        raise InvalidValue(sentence("sample", sample, "above 0 (1e-9 or more) and at most 1"))
    return LogHistogram(call("log_histogram", x, round(1 / sample)))


def kth_magnitude(x: Tensor, k: int | None = None, *, sparsity: float | None = None) -> Tensor:
    """The k-th largest |x|, exact, as a float32 tensor of one element; or the threshold that gives a sparsity.

    k = 1 is the largest.  NaN counts as larger than everything, as in `torch.kthvalue`: x with n elements has
    `torch.kthvalue(x.abs().float(), n + 1 - k)`.

    With `sparsity` it is the smallest t for which `threshold_prune(x, t)` prunes at least m = round(sparsity n)
    elements: the m-th smallest magnitude, and 0 for m = 0.  Elements that tie with it are pruned too.

    >>> x = torch.tensor([3.0, -1.0, 0.5, -4.0])
    >>> kth_magnitude(x, 2).item(), kth_magnitude(x, sparsity=0.5).item()
    (3.0, 1.0)
    """
    check_floats(x)
    n = x.numel()
    if (k is None) == (sparsity is None):
        raise InvalidValue("kth_magnitude takes either k or sparsity; got " + ("neither." if k is None else "both."))
    if n == 0:
        raise InvalidValue("kth_magnitude needs at least one element; got an empty tensor.")
    if sparsity is not None:
        if not (isinstance(sparsity, float | int) and 0 <= sparsity <= 1):
            raise InvalidValue(sentence("sparsity", sparsity, "from 0 to 1"))
        k = n + 1 - round(sparsity * n)
        if k > n:
            return x.new_zeros((), dtype=torch.float32)
    elif isinstance(k, bool) or not isinstance(k, int | torch.SymInt):
        raise InvalidType(sentence("k", k, "a whole number"))
    result: Tensor = call("kth_magnitude", x, k)
    return result


# -------------------------------------------------------------------------------------------------------------- kernels


def lines_of(x: Tensor, stride: int) -> Tensor:
    """The elements of the sampled lines: one line of every `stride`."""
    size = LINE_BYTES // x.element_size()
    groups = -(-x.numel() // (size * stride))
    group = torch.arange(groups, device=x.device)
    place = (((group * _GOLDEN) >> 32 & 0xFFFFFFFF) * stride) >> 32
    index = ((group * stride + place) * size)[:, None] + torch.arange(size, device=x.device)
    return x[index[index < x.numel()]]


def _histogram_reference(x: Tensor, stride: int) -> Tensor:
    """Elements by exponent and leading four mantissa bits, then zeros, NaN and infinities, of one line in `stride`."""
    x = flat(dense(x))
    x = x if stride == 1 else lines_of(x, stride)
    m = (x.float().view(torch.int32) & 0x7FFFFFFF).long()
    infinity = 0xFF << _FRACTION_BITS
    normal = (m >> _SHIFT) + (_FRACTION_BITS - 1) * native.BINS_PER_OCTAVE
    # A subnormal is the whole number m times 2^-149.
    fraction, exponent = torch.frexp(m.double())
    subnormal = (exponent - 1) * native.BINS_PER_OCTAVE + ((2 * fraction - 1) * native.BINS_PER_OCTAVE).long()
    slot = torch.where(m < 1 << _FRACTION_BITS, subnormal, normal)
    for extra, where in enumerate((m == 0, m > infinity, m == infinity)):
        slot = slot.masked_fill(where, BINS + extra)
    return torch.bincount(slot, minlength=SLOTS)


def _magnitude_reference(x: Tensor, k: int) -> Tensor:
    """The k-th largest |x|."""
    value = flat(dense(x)).float().abs().kthvalue(x.numel() + 1 - k).values
    return torch.where(value.isnan(), torch.nan, value)  # one NaN for all


def _histogram_native(x: Tensor, stride: int) -> Tensor:
    x = dense(x)
    table = x.new_zeros(SLOTS, dtype=torch.int64)
    run("log_histogram", FLOAT_TYPES[x.dtype], x, x.numel(), stride, table)
    return table


def _magnitude_native(x: Tensor, k: int) -> Tensor:
    x = dense(x)
    out = x.new_empty((), dtype=torch.float32)
    run("kth_magnitude", FLOAT_TYPES[x.dtype], x, x.numel(), k, out)
    return out


# --------------------------------------------------------------------------------------------------------- registration


def _check_stride(x: Tensor, stride: int) -> None:
    if not 1 <= stride <= 10**9:
        raise InvalidValue(sentence("stride of lograd::log_histogram", stride, "from 1 to 1000000000"))


def _check_place(x: Tensor, k: int) -> None:
    """Refuses a place that x does not have."""
    if not 1 <= k <= x.numel():
        raise InvalidValue(sentence("k", k, f"from 1 to {x.numel()}, the number of elements"))


register(
    "log_histogram(Tensor x, int stride) -> Tensor",
    _histogram_reference,
    when_native(_histogram_native),
    lambda x, stride: x.new_empty(SLOTS, dtype=torch.int64),
    _check_stride,
)
register(
    "kth_magnitude(Tensor x, SymInt k) -> Tensor",
    _magnitude_reference,
    when_native(_magnitude_native),
    lambda x, k: x.new_empty((), dtype=torch.float32),
    _check_place,
)
