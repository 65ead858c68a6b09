"""Estimates from samples of gradients, with their standard errors: variances, and a bias with the band of chance.

Squared norms of tensors add up, so every number here is computed for several tensors at once: arrays have an entry
for each tensor in their first dimension.  Nothing here knows models or plans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special, stats

from .values import SIGMAS, SUM_ROUNDING, Values, mean_of

LEAST_REPEATS = 4
"""The fewest draws from which a bias and its band can be estimated."""
ROUNDING = 1e-6
"""Relative error of a sum in float32; a smaller bias is not told from it."""


class Draws(NamedTuple):
    """Estimates from repeated draws of the differences d_r = g_q - g, an entry for each tensor."""

    noise: Values
    """W, the mean of |d|^2: variance and squared bias together."""
    noise_error: Values
    bias: Values
    """An unbiased estimate of |E d|^2; by chance it may be negative."""
    spread: Values
    """tr S, with S the covariance of d: the variance alone."""
    spread_squared: Values
    """tr S^2, which says how many independent directions the noise has: (tr S)^2 / tr S^2."""
    bent: Values
    """b^T S b, the variance along the bias b."""
    repeats: int

    @classmethod
    def of(cls, gram: Values) -> Draws:
        """Return the estimates that follow from the inner products of the draws.

        With R draws, <d_r, d_s> for r and s apart is an unbiased estimate of |b|^2, so their mean is one, too.  For S
        the draws are centred.  Their covariance C overestimates tr S^2; for normal noise

            E tr C^2 = tr S^2 R / (R - 1) + (tr S)^2 / (R - 1),

        which is solved for tr S^2.  The mean a_r of the products of draw r with all others has for normal noise

            E var a = ((R - 2) / (R - 1))^2 b^T S b + tr S^2 (R - 2) / (R - 1)^2,

        where a_r share their draws; this is solved for b^T S b.

        Args:
            gram: in [i, r, s] the product <d_r, d_s> of tensor i, at least 4 x 4.
        """
        count = gram.shape[-1]
        own = np.diagonal(gram, axis1=1, axis2=2)
        noise, noise_error = mean_of(own)
        others = (gram.sum(-1) - own) / (count - 1)
        centred = gram - gram.mean(1, keepdims=True)
        centred = centred - centred.mean(2, keepdims=True)
        spread = np.trace(centred, axis1=1, axis2=2) / (count - 1)
        spread = np.where(spread > SUM_ROUNDING * noise, spread, 0.0)
        raw = (centred**2).sum((1, 2)) / (count - 1) ** 2
        factor = (count - 1) ** 2 / ((count - 2) * (count + 1))
        squared = np.clip(factor * (raw - spread**2 / (count - 1)), 0.0, spread**2)
        along = others.var(-1, ddof=1) - squared * (count - 2) / (count - 1) ** 2
        bent = np.maximum(along * ((count - 1) / (count - 2)) ** 2, 0.0)
        return cls(noise, noise_error, others.mean(-1), spread, squared, bent, count)


class Bias(NamedTuple):
    """The squared norm of a bias with the band that chance explains, an entry for each tensor."""

    squared: Values
    error: Values
    """Its standard error."""
    band: Values
    """The largest estimate that draws without a bias would give, at 4 sigma."""


def bias_of(several: list[Draws], energies: Values) -> Bias:
    """Return the bias, the mean over batches, from the draws of each of them.

    Without a bias |mean of d|^2 is tr S / R on average.  Its law is close to that of tr S / R times a chi-square over
    its degrees of freedom, v = (tr S)^2 / tr S^2 (Welch and Satterthwaite).  tr S is estimated from v (R - 1) such
    squares, so the ratio of the two follows Fisher's F law, whose quantile gives the band.

    v is itself an estimate: tr S^2 comes from the R (R - 1) / 2 inner products of different draws, less one for their
    mean.  So for many directions the estimate of the bias over its standard error follows Student's t law, and 4 sigma
    are as many of its standard errors as leave the same tail: 12.3 for 4 draws of one batch, 4.1 for 12 of each of two.

    Args:
        energies: |g|^2 of each tensor; a bias below its rounding in float32 is inside the band, and noise below it is
            none.
    """
    batches, count = len(several), several[0].repeats
    squared = np.mean([one.bias for one in several], axis=0)
    rounding = ROUNDING**2 * energies
    spread = np.sum([one.spread for one in several], axis=0)
    spread = np.where(spread > batches * rounding, spread, 0.0)
    spread_squared = np.sum([one.spread_squared for one in several], axis=0)
    bent = np.sum([one.bent for one in several], axis=0)
    error = np.sqrt(2 * spread_squared / (count * (count - 1)) + 4 * bent / count) / batches
    known = (spread > 0) & (spread_squared > 0)
    freedom = np.where(known, spread**2 / np.where(known, spread_squared, 1.0), 1.0)
    sigmas = stats.t.isf(stats.norm.sf(SIGMAS), batches * (count * (count - 1) / 2 - 1))
    band = spread / (batches * count) * (_fisher(stats.norm.sf(sigmas), freedom, freedom * (count - 1)) - 1)
    band = np.minimum(band, np.mean([one.noise for one in several], axis=0))  # no estimate is larger than W
    return Bias(squared, error, np.maximum(band, rounding))


def _fisher(tail: float, above: Values, below: Values) -> Values:
    """Return the quantile of the F law with this upper tail, also for tails that `scipy.stats` takes for zero."""
    share = special.betaincinv(below / 2, above / 2, tail)
    result: Values = below / above * (1 - share) / share
    return result


def mean_noise(several: list[Draws]) -> tuple[Values, Values]:
    """Return W, the mean over batches, and its standard error for these batches."""
    error = np.sqrt(np.sum([one.noise_error**2 for one in several], axis=0)) / len(several)
    return np.mean([one.noise for one in several], axis=0), error
