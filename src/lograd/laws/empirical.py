"""The empirical law of a gradient: a histogram of its magnitudes, cheap to take and exact to merge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import native
from ..errors import InvalidType, InvalidValue, plural, sentence
from .law import (
    Law,
    Order,
    Values,
    check_interval,
    finite,
    magnitudes,
    power_mean,
    probabilities,
    real,
    to_numpy,
    values,
)

BINS_PER_OCTAVE = native.BINS_PER_OCTAVE
"""Bin i covers 2^e (1 + [j, j + 1) / 16) with e, j = divmod(i, 16): the exponent and the leading 4 mantissa bits."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Empirical(Law):
    """A histogram of magnitudes, binned by exponent and the four leading mantissa bits, uniform inside a bin.

    Counts are whole numbers, so `a + b` is exact, associative and commutative: steps, layers and ranks can be added in
    any order.

    Let w = 1/16 be the relative width of a bin.  Compared with the counted data, the cdf is exact at bin edges (as
    P(x < edge)) and off by at most the share of one bin elsewhere; M_k at an edge is off by a factor of at most
    (1 + w)^|k|.  `error_bound` computes the bound for any order and t.  These are worst cases, reached by data on
    single points; for a smooth density the error is of order w^2.

    Args:
        counts: occupied bins from the lowest to the highest; a leading axis stacks layers.
        first: the index of the first bin.

    >>> law = Empirical.fit([0.0, -1.0, 1.5, 4.0])
    >>> int(law.count), int(law.zeros)
    (3, 1)
    """

    counts: Any
    first: int
    parameters: ClassVar[tuple[str, ...]] = ("counts", "first")

    def __post_init__(self) -> None:
        if np.asarray(self.counts).dtype.kind not in "iu":
            raise InvalidValue(sentence("counts of an Empirical law", self.counts, "whole numbers"))
        counts = np.asarray(self.counts, dtype=np.int64)
        if counts is self.counts and counts.flags.writeable:
            counts = counts.copy()  # a law is a value: nobody else may write to it
        if counts.ndim not in (1, 2) or counts.size == 0 or counts.min() < 0 or counts.max(axis=-1).min() == 0:
            raise InvalidValue("counts of an Empirical law must be non-negative, with at least one count per layer.")
        occupied = np.flatnonzero(counts if counts.ndim == 1 else counts.any(axis=0))
        counts = counts[..., occupied[0] : occupied[-1] + 1]
        counts.flags.writeable = False
        self._set(counts=counts, first=int(self.first) + int(occupied[0]), count=counts.sum(axis=-1)[()])

    # -- taking, merging, stacking --

    @classmethod
    def fit(cls, x: Any) -> Empirical:
        table = _native_table(x)
        if table is not None and not table[0][-2:].any() and table[0][:-3].any():
            counts, lowest = table
            return cls(counts[:-3], lowest * BINS_PER_OCTAVE, zeros=int(counts[-3]))
        nonzero, zeros = magnitudes(x, "fitting Empirical")  # the definition in NumPy, which also raises errors
        bins = bin_of(nonzero)
        return cls(np.bincount(bins - bins.min()), int(bins.min()), zeros=zeros)

    def __add__(self, other: Empirical) -> Empirical:
        if not isinstance(other, Empirical) or self.shape != other.shape:
            raise InvalidType(
                sentence("what is merged with an Empirical law", other, "an Empirical law of as many layers")
            )
        counts, first = _align([self, other])
        return Empirical(counts.sum(axis=0), first, zeros=self.zeros + other.zeros)

    @classmethod
    def merge(cls, laws: Iterable[Empirical]) -> Empirical:
        """Return the law of all data that several laws have counted."""
        return reduce(add, laws)

    @classmethod
    def stack(cls, laws: Sequence[Empirical]) -> Empirical:
        counts, first = _align(laws)
        return cls(counts, first, zeros=np.array([law.zeros for law in laws]))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, Empirical) and np.array_equal(self.zeros, other.zeros)

    def __hash__(self) -> int:
        return hash((super().__hash__(), np.asarray(self.zeros).tobytes()))

    # -- the law --

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.counts)[:-1])

    @cached_property
    def edges(self) -> Values:
        """The edges of all bins, one more than there are bins."""
        return bin_edge(self.first + np.arange(np.shape(self.counts)[-1] + 1))

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        """The number of counted elements in each layer, with a last axis of length one."""
        return np.asarray(np.sum(self.counts, axis=-1, keepdims=True))

    @cached_property
    def shares(self) -> Values:
        """The probability of each bin."""
        return np.asarray(self.counts / self.totals)

    @property
    def maximum(self) -> Values:
        """The upper edge of the highest occupied bin."""
        occupied = self.counts > 0
        last = occupied.shape[-1] - np.argmax(occupied[..., ::-1], axis=-1)
        return values(self.edges[last])

    @property
    def log_mean(self) -> Values:
        return values((self.shares * self._log_centres()).sum(axis=-1))

    @property
    def log_std(self) -> Values:
        centred = self._log_centres() - np.expand_dims(self.log_mean, -1)
        return values(np.sqrt((self.shares * centred**2).sum(axis=-1)))

    def cdf(self, t: ArrayLike) -> Values:
        return self.interval_moment(0, 0.0, t)

    def quantile(self, p: ArrayLike) -> Values:
        p = np.maximum(probabilities(p), 5e-324)  # the quantile of 0 is the lower edge of the first occupied bin
        cumulative = self._tables[0]
        bins = cumulative.shape[-1] - 1
        if len(self.shape) == 1 and self.shape[0] > 1:
            p = np.broadcast_to(p, np.broadcast_shapes(p.shape, self.shape))
            columns = [np.searchsorted(row, p[..., layer]) for layer, row in enumerate(cumulative)]
            found = np.stack(columns, axis=-1) - 1
        else:  # one layer, stacked or not, serves every p
            found = np.searchsorted(cumulative.ravel(), p) - 1
        index = np.clip(found, 0, bins - 1)
        share = self._share(index)
        inside = np.clip((p - self._pick(cumulative, index)) / np.where(share > 0, share, 1.0), 0.0, 1.0)
        edges = self.edges
        return values(edges[index] + inside * (edges[index + 1] - edges[index]))

    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        low, high = check_interval(order, low, high)
        value = self._primitive(order, high)
        if order < 0 or np.any(low > 0):  # for other orders the antiderivative is 0 at 0
            value = value - self._primitive(order, low)
        return finite(self, order, np.maximum(value, 0.0))

    def error_bound(self, order: Order, t: ArrayLike) -> Values:
        """Return a bound on the distance of `partial_moment(order, t)` from that of the counted data."""
        edges = self.edges
        u, v = edges[:-1], edges[1:]
        means = _bin_moment(order, u, v, v)
        mass = self.shares * np.maximum(np.abs(means - u**order), np.abs(v**order - means))
        below = np.concatenate([np.zeros((*self.shape, 1)), np.cumsum(mass, axis=-1)], axis=-1)
        t = real("t", t)
        index = self._index(t)
        inside = (t >= edges[index]) & (t < edges[index + 1])
        # In the bin that contains t, anything from none to all of the elements may lie below t.
        ours = _bin_moment(order, edges[index], edges[index + 1], t)
        most = np.maximum(edges[index] ** order, np.clip(t, edges[index], edges[index + 1]) ** order)
        cut = self._share(index) * np.maximum(ours, most - ours)
        whole = self._pick(below, index + (t >= edges[index + 1]))
        return values(whole + np.where(inside, cut, 0.0))

    def _primitive(self, order: Order, t: Values) -> Values:
        """Return an antiderivative of x^order dF at t.

        It is summed from the end where x^order is small, so that a small interval there is no difference of large sums.
        """
        table = self._tables[order]
        u, v = self.edges[:-1], self.edges[1:]
        index = self._index(t)
        share = self._share(index)
        if order < 0:
            return np.asarray(self._pick(table, index + 1) - share * _bin_moment(order, u[index], v[index], t, True))
        return np.asarray(self._pick(table, index) + share * _bin_moment(order, u[index], v[index], t))

    @cached_property
    def _tables(self) -> _Tables:
        return _Tables(self)

    def _index(self, t: Values) -> NDArray[np.int64]:
        """Return the bin of each t, counted from `first` and clipped to the occupied ones."""
        last = np.shape(self.counts)[-1] - 1
        smallest, largest = bin_edge(self.first), bin_edge(self.first + last)
        return np.clip(bin_of(np.clip(t, smallest, largest)) - self.first, 0, last)

    def _pick(self, table: NDArray[Any], index: NDArray[np.int64]) -> Values:
        """Return table[..., index], layer by layer for a stack."""
        return np.asarray(table[np.arange(self.shape[0]), index] if self.shape else table[index])

    def _share(self, index: NDArray[np.int64]) -> Values:
        return np.asarray(self._pick(self.counts, index) / self.totals[..., 0])

    def _log_centres(self) -> Values:
        edges = self.edges
        return np.log((edges[1:] + edges[:-1]) / 2)

    def __str__(self) -> str:
        low, high = np.log2(self.edges[[0, -1]])
        return f"Empirical({plural(int(np.sum(self.count)), 'element')}, 2^{low:.1f} to 2^{high:.1f})"

    __repr__ = __str__


class _Tables(dict[Order, Values]):
    """Cumulative moments at the bin edges for each order, computed on first use."""

    def __init__(self, law: Empirical) -> None:
        super().__init__()
        self.law = law

    def __missing__(self, order: Order) -> Values:
        counts, edges = self.law.counts, self.law.edges
        table = np.zeros((*counts.shape[:-1], counts.shape[-1] + 1))
        if order == 0:  # whole numbers, so that it ends at exactly 1
            np.cumsum(counts, axis=-1, out=table[..., 1:])
        else:
            means = power_mean(order, edges[:-1], edges[1:])
            with np.errstate(invalid="ignore"):  # 1 / subnormal is infinite; where nothing was counted, it counts 0
                moments = np.where(counts > 0, counts * means, 0.0)
            if order > 0:
                np.cumsum(moments, axis=-1, out=table[..., 1:])
            else:
                np.cumsum(-moments[..., ::-1], axis=-1, out=table[..., -2::-1])
        table /= self.law.totals
        self[order] = table
        return table


def bin_of(x: Values) -> NDArray[np.int64]:
    """Return the bin of each positive finite magnitude."""
    fraction, exponent = np.frexp(x)
    leading = np.floor((2 * fraction - 1) * BINS_PER_OCTAVE).astype(np.int64)
    bins: NDArray[np.int64] = (exponent.astype(np.int64) - 1) * BINS_PER_OCTAVE + leading
    return bins


def bin_edge(index: ArrayLike) -> Values:
    """Return the lower edge of each bin.

    >>> bin_edge([0, 8, 16])
    array([1. , 1.5, 2. ])
    """
    exponent, leading = np.divmod(np.asarray(index, dtype=np.int64), BINS_PER_OCTAVE)
    with np.errstate(over="ignore"):
        edge = np.ldexp((BINS_PER_OCTAVE + leading) / BINS_PER_OCTAVE, exponent)
    return np.minimum(edge, np.finfo(np.float64).max)  # the last bin of float64 ends at its largest number


def _bin_moment(order: Order, u: Values, v: Values, t: Values, above: bool = False) -> Values:
    """Return E[x^order ; x <= t], or x > t with `above`, for x uniform on [u, v)."""
    cut = np.clip(t, u, v)
    low, high = (cut, v) if above else (u, cut)
    # Among float64 subnormals both edges of a bin can be equal; such a bin is a point.
    share = np.where(v > u, (high - low) / np.where(v > u, v - u, 1.0), (t < u) if above else (t >= u))
    with np.errstate(invalid="ignore"):
        return values(np.where(share > 0, share * power_mean(order, low, high), 0.0))


def _align(laws: Sequence[Empirical]) -> tuple[NDArray[np.int64], int]:
    """Return the counts of several laws as rows over one range of bins, and the first bin."""
    first = min(law.first for law in laws)
    last = max(law.first + np.shape(law.counts)[-1] for law in laws)
    rows = np.zeros((len(laws), *laws[0].shape, last - first), dtype=np.int64)
    for row, law in zip(rows, laws, strict=True):
        row[..., law.first - first : law.first - first + np.shape(law.counts)[-1]] = law.counts
    return rows, first


def _native_table(x: Any) -> tuple[NDArray[np.int64], int] | None:
    """Return the counts, followed by those of zeros, NaN and infinities, and the lowest exponent.

    They come from the native kernel; None where it cannot count x.
    """
    try:
        # Tensors are counted without a detour over NumPy, which has no bfloat16.
        served = hasattr(x, "detach") and native.element_type(x) in native.TYPES
        data = x.detach().cpu().contiguous() if served else np.ascontiguousarray(to_numpy(x))
        counts = native.count_magnitudes(data)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    return None if counts is None else (counts, native.histogram_layout(native.element_type(data))[0])
