"""Stochastic pruning of whole rows: norms, the threshold for a budget, and the rows that are kept.

A row of a neural gradient is what one token, sample or output pixel contributes.  With n its norm and a threshold a,
a row with n >= a stays, another becomes row * a / n with probability n / a, else zero: Eq. 5 of [chmiel2021] on the
norms.  So `ops.stochastic_prune` draws the rows, and its randomness is that of any other element.

The threshold is solved for the norms at hand.  It depends on the gradient and not on what is drawn, so the expected
row is the row itself; nothing is a step old, and there is nothing to warm up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidValue, sentence
from .elementwise import stochastic_prune

_SMALL, _LARGE = 1e-16, 1e16
"""Norms whose squares are safe in float32 lie between these."""
_UNIT = 2.0**100
"""Brings other rows there without rounding."""


class KeptRows(NamedTuple):
    """Rows that are kept, in order, and the factor of each."""

    places: Tensor
    factors: Tensor
    """float32; 1 for a row at or beyond the threshold, and for one that is not finite."""


def row_norms(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each row of a matrix, in float64; zero for rows of zeros alone.

    Squares neither overflow nor vanish, whatever the size of the elements; rows with NaN have the norm NaN.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-30, 4e-30]]))
    tensor([5.0000e+00, 0.0000e+00, 5.0000e-30], dtype=torch.float64)
    """
    if not x.numel():
        return x.new_zeros(x.shape[0], dtype=torch.float64)
    norms: Tensor = torch.linalg.vector_norm(
        x, dim=1, dtype=None if x.dtype == torch.float64 else torch.float32
    ).double()
    unsafe = ((norms < _SMALL) | (norms > _LARGE)).nonzero()[:, 0]
    if unsafe.numel():
        small = norms[unsafe] < 1
        scale = torch.where(small, _UNIT, 1 / _UNIT).to(x.dtype if x.dtype == torch.float64 else torch.float32)
        rows = x.index_select(0, unsafe).to(scale.dtype) * scale[:, None]
        norms[unsafe] = torch.linalg.vector_norm(rows, dim=1).double() / scale.double()
    return norms


def nonzero_rows(x: Tensor) -> Tensor:
    """Return the indices of the rows, along the first dimension, that are not all zero; NaN is not zero.

    >>> nonzero_rows(torch.tensor([[0.0, 0.0], [0.0, 1e-45], [float("nan"), 0.0]]))
    tensor([1, 2])
    """
    if x.dim() < 2 or not x.numel():
        return (x.flatten() != 0).nonzero()[:, 0]
    return (x.abs().amax(tuple(range(1, x.dim()))) != 0).nonzero()[:, 0]


def row_threshold(
    norms: Tensor, *, sparsity: float | None = None, noise: float | None = None, counts: Tensor | None = None,
    total: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the threshold of the norms at which pruning drops a share of rows, or adds a share of energy.

    With k norms below the threshold a, S_1 their sum and S_2 the sum of their squares, k - S_1 / a rows are expected to
    go and a S_1 - S_2 is the energy that is added: both rise with a, and between two norms both are solved in closed
    form.  Norms that are zero, or not finite, have no part in it.

    >>> norms = torch.tensor([1.0, 1.0, 1.0, 1.0, 10.0])
    >>> row_threshold(norms, sparsity=0.4), row_threshold(norms, noise=0.04)
    (tensor(2., dtype=torch.float64), tensor(2.0400, dtype=torch.float64))

    Args:
        norms: norms of rows, or other weights that are not negative.
        sparsity: the share of all rows that are expected to be zero, those that are zero already included.
        noise: the added energy over the energy of all rows.
        counts: the number of rows for which each stands, where they are a sample themselves; one without.
        total: the number of all rows, where `norms` leaves those of zeros out.
    """
    total = norms.numel() if total is None else total
    usable = (norms > 0) & norms.isfinite()
    found, order = norms.double()[usable].sort()
    if not found.numel():
        return torch.zeros((), dtype=torch.float64, device=norms.device)
    unit = found[-1]  # squares of large norms would overflow
    found = found / unit
    weights = torch.ones_like(found) if counts is None else counts.double()[usable][order]
    count, first, second = weights.cumsum(0), (weights * found).cumsum(0), (weights * found * found).cumsum(0)
    if noise is not None:
        target = noise * second[-1]
        reached = found[1:] * first[:-1] - second[:-1]
        place = torch.searchsorted(reached, target.reshape(1))[0]
        return unit * (target + second[place]) / first[place] if noise > 0 else torch.zeros_like(unit)
    target = torch.as_tensor(sparsity, dtype=torch.float64, device=norms.device) * total - (total - count[-1])
    if target <= 0:
        return torch.zeros_like(unit)
    reached = count[:-1] - first[:-1] / found[1:]
    # The right one of equals: where rounding makes them equal, the left one may have no rows to spare.
    place = torch.searchsorted(reached, target.reshape(1), right=True)[0]
    if count[place] <= target:  # counts are estimates, and add up to fewer rows than shall go
        return torch.zeros_like(unit)
    return unit * first[place] / (count[place] - target)


def expected_rows(norms: Tensor, threshold: Tensor | float) -> float:
    """Return how many rows are expected to be kept; those that are not finite always are."""
    finite = norms.isfinite()
    probability = torch.where(norms > 0, (norms / threshold).clamp(max=1.0), 0.0)  # 0 / 0 at threshold zero is NaN
    return float(torch.where(finite, probability, 1.0).sum())


def keep_rows(norms: Tensor, threshold: Tensor, key: Tensor) -> KeptRows:
    """Return the rows that stochastic pruning keeps.

    Args:
        norms: norms of rows, or other weights that are not negative.
        threshold: of these; rows of zeros go at any threshold.
        key: the int64 pair (seed, offset) of the random numbers; row i owns number offset + i.
    """
    ratio = norms.double() / threshold if bool(threshold > 0) else torch.where(norms > 0, torch.inf, norms.double())
    drawn = stochastic_prune(ratio.clamp(max=2.0).float(), 1.0, key)
    index = (drawn != 0).nonzero()[:, 0]
    kept = ratio.index_select(0, index)
    return KeptRows(index, torch.where(kept < 1, 1 / kept, 1.0).float())


def check_noise(noise: float) -> float:
    """Return a share of added energy as a float; refuse numbers below 0, and 1 or more."""
    if not 0 <= noise < 1:
        raise InvalidValue(sentence("noise", noise, "at least 0 and below 1, such as 0.02"))
    return float(noise)


def check_share(what: str, share: float) -> float:
    """Return a share of rows as a float; refuse numbers that are not above 0 and at most 1."""
    if not 0 < share <= 1:
        raise InvalidValue(sentence(what, share, "above 0 and at most 1"))
    return float(share)
