"""The histogram of log2 |x| in one pass over a tensor, or over a sample of its lines.

It is what the empirical law of a gradient is made of, and cheap enough to take at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue, sentence
from ..laws import Empirical
from .arguments import check_floats
from .reference.statistics import BINS as BINS
from .reference.statistics import LOWEST as LOWEST
from .reference.statistics import SLOTS as SLOTS
from .registry import call


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

    @property
    def log_mean(self) -> float:
        """The mean of ln|x| over the nonzero elements that were counted.

        **Error.** An element stands for the centre of its bin, so it moves by at most ln(33/32) < 0.0308, and hence so
        do the mean and the standard deviation.  That is the worst case, reached by data on bin edges; a smooth density
        cancels the error to second order, 2e-4.
        """
        return float(self.law().log_mean)

    @property
    def log_std(self) -> float:
        """The standard deviation of ln|x| over the nonzero elements, with the error bound of `log_mean`."""
        return float(self.law().log_std)

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
