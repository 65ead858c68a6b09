"""What a profile keeps: per layer and observed step one histogram, from which everything else is computed when asked.

No torch here: a record is a value that outlives the tensor, the process and the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue
from ..laws import Empirical, Fit, LogNormal
from ..laws.binned import rank_binned

Sample = NDArray[np.float32]


@dataclass(frozen=True)
class Record:
    """One gradient tensor at one observed step; a module that ran several times in the step has them all in here."""

    step: int
    law: Empirical | None
    """The histogram of the finite nonzero magnitudes; None where there was none."""
    zeros: int
    nan: int = 0
    infinities: int = 0
    masked: float | None = None
    """The share of zeros in the gradient at the output of the BatchNorm behind the layer; None without one."""

    @property
    def elements(self) -> int:
        return (int(self.law.count) if self.law else 0) + self.zeros + self.nan + self.infinities

    @property
    def zero_share(self) -> float:
        return self.zeros / self.elements if self.elements else 0.0

    @property
    def mu(self) -> float:
        """The mean of ln|g|, natural log; NaN where the gradient was zero."""
        return float(self.law.log_mean) if self.law else np.nan

    @property
    def sigma(self) -> float:
        """The standard deviation of ln|g|, natural log; NaN where the gradient was zero."""
        return float(self.law.log_std) if self.law else np.nan

    @property
    def smallest(self) -> float:
        """The smallest nonzero magnitude: the lower edge of its bin, so at most 1/16 too small."""
        return float(self.law.edges[0]) if self.law else np.nan

    @property
    def largest(self) -> float:
        """The largest finite magnitude: the upper edge of its bin, so at most 1/16 too large."""
        return float(self.law.maximum) if self.law else np.nan

    @cached_property
    def fits(self) -> list[Fit]:
        """Every family of `lograd.laws`, the best first by Kolmogorov-Smirnov distance; made when first asked for."""
        return rank_binned(self.law) if self.law else []

    def ks(self, family: str) -> float:
        """The Kolmogorov-Smirnov distance to the fitted law of a family, such as "LogNormal"; NaN without one."""
        return next((fit.ks for fit in self.fits if fit.family == family and fit.law), np.nan)

    def __add__(self, other: Record) -> Record:
        """Both tensors counted together; of two steps, the earlier."""
        laws = [record.law for record in (self, other) if record.law is not None]
        known = [(record.elements, record.masked) for record in (self, other) if record.masked is not None]
        elements = sum(count for count, _ in known)
        return Record(
            min(self.step, other.step),
            Empirical.merge(laws) if laws else None,
            self.zeros + other.zeros,
            self.nan + other.nan,
            self.infinities + other.infinities,
            sum(count * share for count, share in known) / elements if elements else None,
        )


def sum_of(records: Sequence[Record]) -> Record:
    """All records counted together: the law over the observed steps."""
    if not records:
        raise InvalidValue("a total needs at least one record; got none.")
    result = records[0]
    for record in records[1:]:
        result = result + record
    return result


@dataclass(eq=False)
class LayerProfile:
    """What was observed of one layer; an observer adds to it while it runs."""

    name: str
    kind: str
    """The class of the module, such as "Conv2d"."""
    weight_shape: tuple[int, ...] | None = None
    flops_input: int | None = None
    """Operations of the product for dX in one step, two for each multiply-add; 0 where the input needs no gradient, and
    None for a module that is no product."""
    flops_weight: int | None = None
    """The same of the product for dW."""
    records: list[Record] = field(default_factory=list)
    """The neural gradient, one record for each observed step."""
    weight_records: list[Record] = field(default_factory=list)
    """The gradient of the weight at the same steps, where it has one."""
    sample: Sample = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """Values of the neural gradient at the last observed step, spread evenly over the tensor."""

    @property
    def total(self) -> Record:
        """All observed steps together."""
        cached = self.__dict__.get("_total")
        if cached is None or cached[0] != len(self.records):
            cached = self.__dict__["_total"] = (len(self.records), sum_of(self.records))
        record: Record = cached[1]
        return record

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def law(self) -> Empirical | None:
        """The law of |g| over all observed steps."""
        return self.total.law

    @property
    def lognormal(self) -> LogNormal | None:
        return next((fit.law for fit in self.total.fits if isinstance(fit.law, LogNormal)), None)

    @property
    def elements(self) -> int:
        """Elements of the gradient in one step."""
        return self.last.elements

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LayerProfile):
            return NotImplemented
        names = ("name", "kind", "weight_shape", "flops_input", "flops_weight", "records", "weight_records")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.sample, other.sample, equal_nan=True)

    __hash__ = None  # type: ignore[assignment]  # it changes while it is observed
