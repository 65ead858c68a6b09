"""Stochastic pruning: the sparsity of a threshold, the threshold for a sparsity, and the cosine and noise it costs.

Stochastic pruning (Eq. 5 of [chmiel2021]) with threshold a keeps |x| > a and turns a smaller x into sign(x) a with
probability |x| / a, else into 0, so that E[T(x)] = x.  For ANY law of x = |g|, with cdf F and M_k(t) = E[x^k ; x <= t]:

    S(a)      = F(a) - M_1(a) / a                                       the share of new zeros
    NSR(a)    = (a M_1(a) - M_2(a)) / M_2(inf)                          the noise that pruning adds, over the signal
    cosine(a) = (1 + NSR(a))^(-1/2)                                     between g and T(g), as E[x T] = E[x^2]

Eq. 8 of the paper is S for the lognormal law; its sqrt(2 sigma) must read sqrt(2) sigma.  Laws describe the nonzero
elements: with a share z of exact zeros before pruning, the tensor ends with z + (1 - z) S zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from ..errors import InvalidValue, sentence
from ..laws import Law
from ..laws.law import Values, real, values
from .layers import Laws, over_layers, solve_increasing


def sparsity(law: Laws, threshold: ArrayLike) -> Values:
    """Return the share of nonzero elements that stochastic pruning with this threshold turns into zeros.

    >>> from lograd.laws import LogNormal
    >>> round(float(sparsity(LogNormal(0.0, 2.0), 17.0)), 3)
    0.8
    """
    return over_layers(law, _sparsity, _thresholds(threshold))


def threshold(law: Laws, sparsity: ArrayLike) -> Values:
    """Return the threshold that gives this sparsity: the inverse of `sparsity`, by Newton's method in ln a.

    >>> from lograd.laws import LogNormal
    >>> round(float(threshold(LogNormal(0.0, 2.0), 0.9)), 1)
    47.7
    """
    return over_layers(law, _threshold, check_sparsity(sparsity))


def cosine(law: Laws, threshold: ArrayLike) -> Values:
    """Return the cosine between a gradient and its pruned copy.

    >>> from lograd.laws import LogNormal
    >>> law = LogNormal(0.0, 2.0)
    >>> round(float(cosine(law, threshold(law, 0.9))), 3)
    0.982
    """
    return 1 / np.sqrt(1 + noise_to_signal(law, threshold))


def noise_to_signal(law: Laws, threshold: ArrayLike) -> Values:
    """Return E[(T(x) - x)^2] / E[x^2] of stochastic pruning."""
    return over_layers(law, _noise_to_signal, _thresholds(threshold))


def threshold_for_cosine(law: Laws, cosine: ArrayLike) -> Values:
    """Return the threshold at which pruning leaves this cosine; 0 for a cosine of 1.

    Cosines near 1 are coarse: float64 has no number between 1 - 1e-16 and 1.  `threshold_for_noise` has no such limit.
    """
    c = real("cosine", cosine)
    if not np.all((c > 0) & (c <= 1)):
        raise InvalidValue(sentence("cosine", cosine, "above 0 and at most 1"))
    return threshold_for_noise(law, (1 - c) * (1 + c) / c**2)


def threshold_for_noise(law: Laws, noise: ArrayLike) -> Values:
    """Return the threshold at which pruning adds this noise-to-signal ratio: the inverse of `noise_to_signal`."""
    nsr = real("noise", noise)
    if not np.all((nsr >= 0) & np.isfinite(nsr)):
        raise InvalidValue(sentence("noise", noise, "finite and zero or positive"))
    return over_layers(law, _threshold_for_noise, nsr)


def atp_sparsity(law: Laws, target: ArrayLike) -> Values:
    """Return the sparsity that ATP's threshold really gives when `target` is asked for.

    ATP takes g as normal, estimates its deviation as sqrt(pi/2) E|g|, and puts the threshold at the `target` quantile
    of |g|.  That quantile is the share of candidates for pruning, not of zeros; stochastic pruning then keeps some.
    Reconstructed from third-party code: the paper [ye2020] itself was not at hand.

    @inproceedings{ye2020,
      title     = {Accelerating CNN Training by Pruning Activation Gradients},
      author    = {Ye, Xucheng and Dai, Pengcheng and Luo, Junyu and Guo, Xin and Qi, Yingjie and Yang, Jianlei and
                   Chen, Yiran},
      booktitle = {European Conference on Computer Vision},
      year      = {2020}
    }
    """

    def compute(one: Law, p: Values) -> Values:
        deviation = np.sqrt(np.pi / 2) * one.moment(1)
        return _sparsity(one, ndtri((1 + p) / 2) * deviation)

    return over_layers(law, compute, check_sparsity(target))


def topk_sparsity(law: Laws, target: ArrayLike) -> Values:
    """Return the sparsity of stochastic pruning with the `target` quantile of |g| as its threshold."""
    return over_layers(law, lambda one, p: _sparsity(one, one.quantile(p)), check_sparsity(target))


def nonzero_sparsity(sparsity: ArrayLike, zero_share: ArrayLike) -> Values:
    """Return the share of the nonzero elements to prune so that the tensor ends with `sparsity`: (S - z) / (1 - z).

    It is 0 where the existing zeros suffice.

    >>> round(float(nonzero_sparsity(0.9, zero_share=0.5)), 3)
    0.8
    """
    total, zeros = real("sparsity", sparsity), check_zero_share(zero_share)
    if not np.all((total >= 0) & (total <= 1)):
        raise InvalidValue(sentence("sparsity", sparsity, "between 0 and 1"))
    return values(np.clip((total - zeros) / (1 - zeros), 0.0, 1.0))


def check_zero_share(zero_share: ArrayLike) -> Values:
    """Return shares of zeros as an array; refuse numbers below 0, or 1 and above."""
    array = real("zero_share", zero_share)
    if not np.all((array >= 0) & (array < 1)):
        raise InvalidValue(sentence("zero_share", zero_share, "at least 0 and below 1"))
    return array


def check_sparsity(sparsity: ArrayLike) -> Values:
    """Return sparsities as an array; refuse 0, 1 and numbers outside."""
    array = real("sparsity", sparsity)
    if not np.all((array > 0) & (array < 1)):
        raise InvalidValue(sentence("sparsity", sparsity, "above 0 and below 1, such as 0.85"))
    return array


def _thresholds(threshold: ArrayLike) -> Values:
    array = real("threshold", threshold)
    if not np.all(array >= 0):
        raise InvalidValue(sentence("threshold", threshold, "zero or positive"))
    return array


def rows_kept(law: Law, noise: float, zeros: float = 0.0) -> float:
    """Return the share of rows that stochastic pruning of row norms keeps where it adds this noise-to-signal ratio.

    The identities are those of elements, on the law of the norms.

    >>> from lograd.laws import LogNormal
    >>> round(rows_kept(LogNormal(0.0, 2.0), 0.02, zeros=0.6), 3)
    0.053

    Args:
        law: that of the norms of rows that are not zero.
        noise: the added energy over the energy of the gradient.
        zeros: the share of rows that are zero.
    """
    if noise == 0:
        return 1 - zeros
    return (1 - zeros) * float(1 - sparsity(law, threshold_for_noise(law, noise)))


def _sparsity(law: Law, a: Values) -> Values:
    positive = np.where(a > 0, a, 1.0)
    return values(np.where(a > 0, np.clip(law.cdf(a) - law.partial_moment(1, a) / positive, 0.0, 1.0), 0.0))


def _threshold(law: Law, s: Values) -> Values:
    # Over ln a, S rises much like a normal cdf, so its probit is nearly a line and Newton needs few steps.
    def value_and_slope(log_a: Values) -> tuple[Values, Values]:
        a = np.exp(log_a)
        slope = law.partial_moment(1, a) / a
        probit = ndtri(np.clip(law.cdf(a) - slope, 0.0, 1.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            return probit, slope / _normal_density(probit)

    target = ndtri(s)
    tolerance = 1e-14 + 4e-16 / _normal_density(target)  # the rounding of S, seen through the probit
    start = np.log(law.quantile(s))  # below the solution, as S(a) <= F(a)
    return values(np.exp(solve_increasing(value_and_slope, target, start, tolerance)))


def _normal_density(z: Values) -> Values:
    return np.asarray(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))


def _noise_to_signal(law: Law, a: Values) -> Values:
    return values((a * law.partial_moment(1, a) - law.partial_moment(2, a)) / law.moment(2))


def _threshold_for_noise(law: Law, noise: Values) -> Values:
    total = law.moment(2)

    def value_and_slope(log_a: Values) -> tuple[Values, Values]:
        a = np.exp(log_a)
        drive = a * law.partial_moment(1, a)  # d(a M_1 - M_2) / d ln a
        rest = drive - law.partial_moment(2, a)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(np.maximum(rest, 0.0) / total), drive / rest

    exact = noise > 0
    target, start = np.log(np.where(exact, noise, 1.0)), np.log(law.quantile(0.5))
    return values(np.where(exact, np.exp(solve_increasing(value_and_slope, target, start)), 0.0))
