"""Stochastic pruning to a target sparsity: zeros that cost no bias."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, final, get_args

import numpy as np

from .. import ops, theory
from ..laws import Empirical, HalfNormal, Law, LogNormal
from ..laws.law import Values
from ..ops.arguments import in_type_of
from ..ops.registry import call
from .statistics import Statistics
from .treatment import RARE, Numbers, Outcomes, Setting, Treatment, check_choice, checked_sparsity

if TYPE_CHECKING:
    from torch import Tensor

PruningLaw = Literal["empirical", "lognormal", "normal"]
Split = Literal["uniform", "cosine"]


@final
@dataclass(frozen=True)
class Prune(Treatment):
    """Eq. 5 of [chmiel2021] with the threshold that gives `sparsity`, the zeros already there included.

    `law` says of which law the threshold is solved:

    "empirical": the histogram of the gradient itself, so that the sparsity asked for is the one that results.
    "lognormal": the paper's.  With z the share of zeros, or of positions that BatchNorm refilled if that is more, mu
        and sigma are those of the upper 1 - z of the magnitudes (the right mode), and the target is (S - z) / (1 - z).
        Where z >= S, the threshold is the z-quantile.  Reconstructed: the released code fits on the positions that were
        not masked; here on the upper mass of the histogram.
    "normal": a half-normal law with the root mean square of all elements, as ATP assumes, but solved for the sparsity.

    `allocation` says how the layers of a model that have this very treatment share it: "uniform", each the same; or
    "cosine", so that all have the same cosine and `sparsity` is the share of their work that is skipped
    (`theory.allocate`, solved anew whenever statistics are).
    """

    sparsity: float
    law: PruningLaw = "empirical"
    allocation: Split = field(default="uniform", metadata=RARE)
    kind: ClassVar[str] = "prune"
    changeable: ClassVar[frozenset[str]] = frozenset({"sparsity", "law"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", checked_sparsity(self.sparsity))
        check_choice("law of a pruning threshold", self.law, get_args(PruningLaw))
        check_choice("allocation of a pruning treatment", self.allocation, get_args(Split))

    @property
    def number_names(self) -> tuple[str, ...]:
        return ("threshold",)

    @property
    def makes_zeros(self) -> bool:
        return True

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def shared_sparsity(self) -> float | None:
        return self.sparsity if self.allocation == "cosine" else None

    def numbers(self, statistics: Statistics) -> Numbers:
        solve = {"empirical": _empirical, "lognormal": _lognormal, "normal": _normal}[self.law]
        return {"threshold": float(solve(statistics, statistics.allotted.get(self, self.sparsity)))}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        # The operator itself: what the public function checks was checked when the site was made.
        return ops.Counted(*call("stochastic_prune", g, in_type_of(g, setting.numbers["threshold"]), setting.key, True))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        return pruned(x, numbers["threshold"])

    def __str__(self) -> str:
        words = [word for word in (self.law, self.allocation) if word not in ("empirical", "uniform")]
        return f"prune {self.sparsity:g}" + (f" ({', '.join(words)})" if words else "")


def pruned(x: Values, threshold: float) -> Outcomes:
    """Return the outcomes of magnitudes under Eq. 5: kept beyond the threshold, else the threshold or zero."""
    kept = x > threshold if threshold > 0 else np.ones_like(x, dtype=bool)
    stays = np.where(kept, 1.0, x / (threshold or 1.0))
    return Outcomes(np.stack([np.where(kept, x, threshold), np.zeros_like(x)]), np.stack([stays, 1 - stays]))


def _empirical(statistics: Statistics, sparsity: float) -> float:
    """Return `theory.threshold` in closed form, as it is needed often while training.

    Inside a bin [u, u + w) with a share c of the elements, S(a) = F(a) - M_1(a) / a = S is a quadratic equation:
    (c / 2w) a^2 + (F(u) - S - c u / w) a + (c u^2 / 2w - M_1(u)) = 0.
    """
    target = float(theory.nonzero_sparsity(sparsity, statistics.zero_share))
    if target <= 0:
        return 0.0
    edges, shares = statistics.law.edges, statistics.law.shares
    F = np.concatenate([[0.0], np.cumsum(shares)])
    M = np.concatenate([[0.0], np.cumsum(shares * (edges[:-1] + edges[1:]) / 2)])
    place = int(np.searchsorted(F[1:] - M[1:] / edges[1:], target))
    if place == shares.size:  # beyond the largest element, S = 1 - E[x] / a
        return float(M[-1] / (1 - target))
    u, w, c = edges[place], edges[place + 1] - edges[place], shares[place]
    a, b, d = c / (2 * w), F[place] - target - c * u / w, c * u * u / (2 * w) - M[place]
    root = np.sqrt(max(b * b - 4 * a * d, 0.0))
    return float((root - b) / (2 * a) if b < 0 and a > 0 else -2 * d / (b + root))


def _lognormal(statistics: Statistics, sparsity: float) -> Values | float:
    zeros = statistics.zero_share
    z = min(max(zeros, statistics.masked), 1 - 1 / statistics.elements)
    below = (z - zeros) / (1 - zeros)  # the refilled positions, as a share of the nonzero elements
    if z >= sparsity:
        return statistics.law.quantile(below) if below > 0 else 0.0
    upper = _upper_mass(statistics.law, below)
    # Magnitudes in one bin have no width; the histogram itself needs none.
    law: Law = LogNormal(float(upper.log_mean), float(upper.log_std)) if upper.log_std > 0 else upper
    return theory.threshold(law, (sparsity - z) / (1 - z))


def _normal(statistics: Statistics, sparsity: float) -> Values | float:
    return theory.threshold(HalfNormal(np.sqrt(statistics.moment(2))), sparsity)


def _upper_mass(law: Empirical, below: float) -> Empirical:
    """Return the law without its smallest magnitudes, a share `below` of them."""
    counts = np.asarray(law.counts)
    dropped = np.clip(round(below * int(counts.sum())) - (np.cumsum(counts) - counts), 0, counts)
    return Empirical(counts - dropped, law.first)
