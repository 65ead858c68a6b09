"""Counts and order statistics of a tensor in plain PyTorch: the histogram of log2 |x|, and the k-th magnitude."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import native
from ...errors import InvalidValue, sentence
from ..layouts import dense, flat
from ..registry import register

LOWEST, BINS = native.histogram_layout("float32")
SLOTS = BINS + len(native.EXTRA_SLOTS)
LINE_BYTES = 128

_FRACTION_BITS = 23
_SHIFT = 19  # what remains of a float32 is its exponent and the leading four mantissa bits
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio's fraction in 64 bits, as an int64


def lines_of(x: Tensor, stride: int) -> Tensor:
    """The elements of the sampled lines: one line of every `stride`."""
    size = LINE_BYTES // x.element_size()
    groups = -(-x.numel() // (size * stride))
    group = torch.arange(groups, device=x.device)
    place = (((group * _GOLDEN) >> 32 & 0xFFFFFFFF) * stride) >> 32
    index = ((group * stride + place) * size)[:, None] + torch.arange(size, device=x.device)
    return x[index[index < x.numel()]]


def _check_stride(x: Tensor, stride: int) -> None:
    if not 1 <= stride <= 10**9:
        raise InvalidValue(sentence("stride of lograd::log_histogram", stride, "from 1 to 1000000000"))


def log_histogram(x: Tensor, stride: int) -> Tensor:
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


def check_place(x: Tensor, k: int) -> None:
    """Refuses a place that x does not have."""
    if not 1 <= k <= x.numel():
        raise InvalidValue(sentence("k", k, f"from 1 to {x.numel()}, the number of elements"))


def kth_magnitude(x: Tensor, k: int) -> Tensor:
    """The k-th largest |x|."""
    value = flat(dense(x)).float().abs().kthvalue(x.numel() + 1 - k).values
    return torch.where(value.isnan(), torch.nan, value)  # one NaN for all


register(
    "log_histogram(Tensor x, int stride) -> Tensor",
    log_histogram,
    None,
    lambda x, stride: x.new_empty(SLOTS, dtype=torch.int64),
    _check_stride,
)
register(
    "kth_magnitude(Tensor x, SymInt k) -> Tensor",
    kth_magnitude,
    None,
    lambda x, k: x.new_empty((), dtype=torch.float32),
    check_place,
)
