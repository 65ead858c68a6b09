"""Activation gradient pruning by a normal law, with a threshold predicted from the batches before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast, final

import torch
from scipy.stats import norm

from .. import ops
from ..formats.values import check_width
from ..laws.law import Values
from .prune import pruned
from .statistics import Statistics
from .tensors import finite_part, is_finite, steady_sum
from .treatment import Numbers, Outcomes, Setting, Treatment, checked_sparsity

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Atp(Treatment):
    """ATP of [ye2020]: tau = Phi^-1((1 + p) / 2) sqrt(pi / 2) mean |g|, averaged over a FIFO, then Eq. 5.

    `share` is p, the share of elements below the threshold were they normal.  It is not the sparsity: of these elements
    many survive, and real gradients are not normal.  p = 0.9 gives 0.54 zeros for a normal law and 0.60, 0.79, 0.91 for
    lognormal laws of natural sigma 1, 2, 3.

    A gradient is pruned with the mean of the last `depth` thresholds, then its own joins them.  Reconstructed from
    third-party code and memory of the paper: the depth is not confirmed, and the very first gradient, which has none
    before it, is pruned with its own.  A gradient of zeros, or one that is not finite, leaves the queue alone.
    """

    share: float
    depth: int = 5
    kind: ClassVar[str] = "atp"

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", checked_sparsity(self.share))
        check_width("depth", self.depth, 1, 1000)

    @property
    def makes_zeros(self) -> bool:
        return True

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def memory_size(self) -> int:
        """The count of thresholds that were pushed, and the last `depth` of them."""
        return 1 + self.depth

    @property
    def _factor(self) -> float:
        return float(norm.ppf((1 + self.share) / 2)) * float(norm.pdf(0)) * float(torch.pi)  # sqrt(pi / 2) = pi phi(0)

    def numbers(self, statistics: Statistics) -> Numbers:
        return {"threshold": self._factor * statistics.moment(1)}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        pushed = int(setting.memory[0])
        own = self._factor * steady_sum(finite_part(g).abs()) / max(g.numel(), 1)
        before = setting.memory[1 : 1 + min(pushed, self.depth)]
        threshold = before.mean() if pushed else own
        if own > 0 and is_finite(g):
            setting.memory[1 + pushed % self.depth] = own
            setting.memory[0] += 1
        largest = torch.finfo(torch.float32).max
        return cast(
            ops.Counted, ops.stochastic_prune(g, threshold.clamp(max=largest).float(), setting.key, counted=True)
        )

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        return pruned(x, numbers["threshold"])

    def memory_words(self, memory: list[float]) -> Numbers:
        found = memory[1 : 1 + min(int(memory[0]), self.depth)]
        return {"threshold": sum(found) / len(found)} if found else {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        return torch.cat([memory[:1], memory[1:] * factor])

    def __str__(self) -> str:
        return f"ATP {self.share:g}"
