"""Statistics, by which a treatment knows the gradient of a layer, and the prediction of the error that it makes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np

from ..errors import InvalidType, InvalidValue, sentence
from ..files import check_number, check_object
from ..laws import Empirical
from ..laws.empirical import BINS_PER_OCTAVE, bin_of
from ..laws.law import Values

POINTS_PER_BIN = 16
"""Midpoints by which a bin is integrated: 1/256 of an octave apart or less, finer than the steps of 8 bits."""


SMALLEST_FACTOR = 40
"""Octaves below the largest factor of a channel; smaller factors count as this one, for all of it is rounded away."""


@final
@dataclass(frozen=True)
class Statistics:
    """The statistics of the gradient of one layer.

    Args:
        law: histogram of its nonzero magnitudes; its `zeros` counts the exact zeros.
        masked: the share of exact zeros in the gradient at the output of the BatchNorm that the layer feeds, 0 where
            there is none.  BatchNorm's backward refills these positions with tiny values.
        allotted: the sparsity of this layer for treatments of which several layers share one target.
        range: the smallest and the largest element; None where only magnitudes are known.
    """

    law: Empirical
    masked: float = 0.0
    allotted: Mapping[Hashable, float] = field(default_factory=dict)
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.law, Empirical) or self.law.shape:
            raise InvalidType(sentence("law of Statistics", self.law, "an Empirical law of one layer"))
        if not 0 <= self.masked <= 1:
            raise InvalidValue(sentence("masked", self.masked, "a share between 0 and 1"))

    @property
    def zero_share(self) -> float:
        """The share of exact zeros."""
        return float(self.law.zero_share)

    @property
    def elements(self) -> int:
        """The number of elements, zeros included."""
        return int(self.law.count + self.law.zeros)

    def moment(self, order: Literal[1, 2]) -> float:
        """Return E[|g|^order] of all elements, zeros included."""
        return (1 - self.zero_share) * float(self.law.moment(order))

    def quantile(self, share: float) -> float:
        """Return the magnitude that a share of all elements, zeros included, does not exceed; 0 if these are zeros."""
        inside = (share - self.zero_share) / (1 - self.zero_share)
        return float(self.law.quantile(min(inside, 1.0))) if inside > 0 else 0.0

    def points(self) -> tuple[Values, Values]:
        """Return magnitudes that stand for the nonzero elements, and how many elements each stands for."""
        low, high = self.law.edges[:-1], self.law.edges[1:]
        counts = np.asarray(self.law.counts)
        low, high, counts = (column[counts > 0][:, None] for column in (low, high, counts))
        inside = (np.arange(POINTS_PER_BIN) + 0.5) / POINTS_PER_BIN
        x = low + (high - low) * inside
        return x.ravel(), np.broadcast_to(counts / POINTS_PER_BIN, x.shape).ravel()

    def after(self, values: Values, weights: Values) -> Statistics | None:
        """Return the statistics of the elements after a treatment; None where nothing but zeros is left.

        Args:
            values: magnitudes after the treatment.
            weights: how many elements each stands for.
        """
        occupied = values > 0
        bins = bin_of(values[occupied])
        if bins.size == 0:
            return None
        counts = np.rint(np.bincount(bins - bins.min(), weights[occupied])).astype(np.int64)
        if not counts.any():
            return None
        zeros = max(self.elements - int(counts.sum()), 0)
        return Statistics(Empirical(counts, int(bins.min()), zeros=zeros), allotted=self.allotted)

    def times(self, factors: Values) -> Statistics:
        """Return the statistics of a tensor whose channels were multiplied by factors, if all have this law.

        The law is then a mixture: F(t) = E_c[F(t / f_c)].  Where all factors are zero, the tensor stays as it is.

        Args:
            factors: one for each channel, not negative.
        """
        largest = factors.max(initial=0.0)
        if largest <= 0:
            return self
        # As many bins as an octave of the histogram has are fine enough, however many channels there are.
        octaves = np.log2(np.maximum(factors / largest, 2.0**-SMALLEST_FACTOR))
        steps, counts = np.unique(np.rint(octaves * BINS_PER_OCTAVE), return_counts=True)
        x, weights = self.points()
        by, share = largest * 2.0 ** (steps / BINS_PER_OCTAVE), counts / factors.size
        return self.after((by[:, None] * x).ravel(), (share[:, None] * weights).ravel()) or self

    def distance(self, other: Statistics) -> float:
        """Return the Kolmogorov-Smirnov distance, zeros included; 0 (equal) to 1."""
        edges = np.union1d(self.law.edges, other.law.edges)
        return float(np.abs(self._cdf(edges) - other._cdf(edges)).max(initial=abs(self.zero_share - other.zero_share)))

    def _cdf(self, t: Values) -> Values:
        return self.zero_share + (1 - self.zero_share) * self.law.cdf(t)

    def scaled(self, factor: float) -> Statistics:
        """Return the statistics of factor * g, to the nearest bin: exact for powers of two, as loss scales are."""
        shift = round(float(np.log2(factor)) * BINS_PER_OCTAVE)
        law = self.law
        if shift % BINS_PER_OCTAVE:
            # Bins of one octave are evenly wide, not evenly spaced in the logarithm: count the moved points anew.
            x, weights = self.points()
            moved = self.after(x * factor, weights)
            return self if moved is None else replace(self, law=moved.law, range=self._scaled_range(factor))
        law = Empirical(law.counts, law.first + shift, zeros=law.zeros)
        return replace(self, law=law, range=self._scaled_range(factor))

    def _scaled_range(self, factor: float) -> tuple[float, float] | None:
        return None if self.range is None else (factor * self.range[0], factor * self.range[1])


@final
@dataclass(frozen=True)
class Prediction:
    """The effect of a sentence of treatments on a gradient, by theory."""

    sparsity: float
    """Exact zeros afterwards, those that were there included."""
    cosine: float
    """The cosine between the gradient and its treated copy."""
    relative_error: float
    """The mean of |y - x| / x over the nonzero elements (Eq. 3 of [chmiel2021])."""

    def to_json(self) -> dict[str, float]:
        """Return plain values, of which `from_json` makes this prediction again."""
        return {"sparsity": self.sparsity, "cosine": self.cosine, "relative_error": self.relative_error}

    @classmethod
    def from_json(cls, data: Any) -> Prediction:
        """Return the prediction that `to_json` was given; the exact inverse."""
        check_object("a prediction", data, ("sparsity", "cosine", "relative_error"))
        return cls(
            sparsity=check_number("the sparsity of a prediction", data["sparsity"], 0, 1),
            cosine=check_number("the cosine of a prediction", data["cosine"], 0, 1),
            relative_error=check_number("the relative error of a prediction", data["relative_error"], 0),
        )
