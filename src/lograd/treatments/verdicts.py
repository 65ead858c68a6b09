"""Verdicts on noise, good, fair or risky: one scale for formats, sparsities and plans.

An unbiased treatment adds noise of 1 / cosine^2 - 1 times the gradient's own energy, so a cosine and a noise-to-signal
ratio say the same.  The two limits are choices, not theorems: up to 4 % the noise is small beside the gradient, and
from 100 % on there is more noise than gradient.
"""

from __future__ import annotations

from typing import Literal

Verdict = Literal["good", "fair", "risky"]
GOOD_COSINE = 0.98
FAIR_COSINE = 0.5**0.5
VERDICTS_IN_WORDS = (
    f"good from a cosine of {GOOD_COSINE:g} on, where noise has at most 4 % of the gradient's energy; risky below "
    f"{FAIR_COSINE:.2f}, where there is more noise than gradient; fair between"
)

LARGE_RELATIVE_ERROR = (
    "A relative error above 1 does not contradict a good or fair cosine: it counts every element alike, and pruning or "
    "stochastic rounding makes zero or many times more of the smallest; the cosine counts energy, of which they have "
    "hardly any."
)


def noise_of(cosine: float) -> float:
    """Return the noise-to-signal ratio of an unbiased treatment with this cosine.

    >>> round(noise_of(0.5**0.5), 12)
    1.0
    """
    return 1 / cosine**2 - 1 if cosine > 0 else float("inf")


def verdict(cosine: float) -> Verdict:
    """Return the verdict on a treated gradient by its cosine with the gradient itself.

    >>> [verdict(cosine) for cosine in (0.99, 0.9, 0.51)]
    ['good', 'fair', 'risky']
    """
    return "good" if cosine >= GOOD_COSINE else "fair" if cosine >= FAIR_COSINE else "risky"


def verdict_on_noise(noise: float) -> Verdict:
    """Return the verdict by a noise-to-signal ratio, such as the one that arrives in the weight gradients.

    >>> [verdict_on_noise(noise) for noise in (0.01, 0.5, 2.0)]
    ['good', 'fair', 'risky']
    """
    return verdict((1 + noise) ** -0.5)
