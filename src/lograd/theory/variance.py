"""Bounds on the variance of StatQuant's integer gradient quantizers, for stochastic rounding of an N x D matrix.

Each row is a sample.  With B = 2^bits - 1 bins over a range r, one element's variance is at most (r / B)^2 / 4.  All
functions return the variance summed over the matrix.

@inproceedings{chen2020,
  title     = {A Statistical Framework for Low-bitwidth Training of Deep Neural Networks},
  author    = {Chen, Jianfei and Gai, Yu and Yao, Zhewei and Mahoney, Michael W. and Gonzalez, Joseph E.},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020}
}
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..formats.values import check_width
from ..laws.law import Values, parameter, values


def per_tensor_variance_bound(range_: ArrayLike, rows: ArrayLike, columns: ArrayLike, bits: int) -> Values:
    """Return the bound of PTQ, which has one range R for the tensor: N D R^2 / (4 B^2)."""
    r, n, d = (
        parameter(name, value, low=0.0) for name, value in (("range", range_), ("rows", rows), ("columns", columns))
    )
    return values(n * d * r**2 / (4 * _bins(bits) ** 2))


def per_sample_variance_bound(row_ranges: ArrayLike, columns: ArrayLike, bits: int) -> Values:
    """Return the bound of PSQ, which has a range r_i for each row (last axis): D / (4 B^2) sum_i r_i^2."""
    ranges = np.asarray(parameter("row ranges", row_ranges, low=0.0, inclusive=True))
    d = parameter("columns", columns, low=0.0)
    return values(d / (4 * _bins(bits) ** 2) * (ranges**2).sum(axis=-1))


def block_householder_variance_bound(
    largest: ArrayLike, others: ArrayLike, size: ArrayLike, columns: ArrayLike, bits: int
) -> Values:
    """Return the bound of BHQ for a group of n = `size` rows, one with range `largest`, the others at most `others`.

        D / (4 B^2) (largest^(2/3) n^(-1/3) + others^(2/3) n^(2/3))^3

    The form is reconstructed: it agrees with the paper's scales, and simulations respect it.  A Householder reflection
    spreads the large row evenly, so its range counts 1/sqrt n.  The bound holds for rows that are scaled so as to
    minimise it.  A group of one row is PSQ.
    """
    first = parameter("largest", largest, low=0.0, inclusive=True)
    rest = parameter("others", others, low=0.0, inclusive=True)
    n, d = parameter("size", size, low=0.0), parameter("columns", columns, low=0.0)
    spread = np.asarray(first) ** (2 / 3) * n ** (-1 / 3) + np.asarray(rest) ** (2 / 3) * n ** (2 / 3)
    return values(d / (4 * _bins(bits) ** 2) * spread**3)


def _bins(bits: int) -> int:
    check_width("bits", bits, 2, 16)
    return int(2**bits - 1)
