"""Keep the largest gradients and drop the rest: the baselines that the lognormal paper measures itself against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast, final, get_args

import numpy as np
import torch

from .. import ops
from ..laws.law import Values
from ..ops.layouts import dense
from .prune import pruned
from .statistics import Statistics
from .tensors import counted, steady_sum
from .treatment import Numbers, Outcomes, Setting, Treatment, check_choice, checked_sparsity

if TYPE_CHECKING:
    from torch import Tensor

Over = Literal["tensor", "sample", "batch"]


@final
@dataclass(frozen=True)
class TopK(Treatment):
    """Zero in place of the share `sparsity` of the smallest magnitudes; deterministic, so biased.

    Over the whole "tensor"; over each "sample", as meProp [sun2017] does (rows of a linear layer, images of a
    convolution); or over the "batch", its unified variant: one set of positions for all samples, those with the largest
    sum of magnitudes.  Elements that tie with the last one to go go with it, but the largest stay.

    In meProp the bias takes the dense gradient; here the pruned one.

    @inproceedings{sun2017,
      title     = {{meProp}: Sparsified Back Propagation for Accelerated Deep Learning with Reduced Overfitting},
      author    = {Sun, Xu and Ren, Xuancheng and Ma, Shuming and Wang, Houfeng},
      booktitle = {International Conference on Machine Learning},
      year      = {2017}
    }
    """

    sparsity: float
    over: Over = "tensor"
    kind: ClassVar[str] = "topk"
    changeable: ClassVar[frozenset[str]] = frozenset({"sparsity"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", checked_sparsity(self.sparsity))
        check_choice("over", self.over, get_args(Over))

    @property
    def makes_zeros(self) -> bool:
        return True

    def numbers(self, statistics: Statistics) -> Numbers:
        return {"threshold": statistics.quantile(self.sparsity)}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        if self.over == "tensor" or g.dim() < 2:
            return cast(ops.Counted, ops.threshold_prune(g, _threshold(g, self.sparsity), counted=True))
        size = dense(g).abs().float().flatten(1)
        if self.over == "batch":
            size = steady_sum(size.T)[None]
        dropped = _dropped(self.sparsity, size.shape[1])
        if not dropped or not g.numel():
            return counted(dense(g).clone())
        last = size.kthvalue(dropped, dim=1, keepdim=True).values
        below = (size <= last) & (size < size.amax(1, keepdim=True))
        goes = below.expand(g.shape[0], -1).reshape(g.shape) & ~g.isnan()  # NaN stays
        return counted(dense(g).clone().masked_fill_(goes, 0.0))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        if self.over != "tensor":
            return None
        return Outcomes(np.where(x > numbers["threshold"], x, 0.0)[None], np.ones((1, x.size)))

    def __str__(self) -> str:
        return f"top-k {self.sparsity:g}" + ("" if self.over == "tensor" else f" per {self.over}")


@final
@dataclass(frozen=True)
class TopKStochastic(Treatment):
    """Eq. 5 of [chmiel2021] with the top-k threshold: unbiased, and with fewer zeros than asked for.

    Among the elements below the threshold some survive.  With a lognormal law of natural sigma 1, 2 or 3 a target of
    0.9 gives 0.62, 0.77 or 0.82 zeros, which is why the paper solves for the threshold instead.
    """

    sparsity: float
    kind: ClassVar[str] = "topk-stochastic"
    changeable: ClassVar[frozenset[str]] = frozenset({"sparsity"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", checked_sparsity(self.sparsity))

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def makes_zeros(self) -> bool:
        return True

    def numbers(self, statistics: Statistics) -> Numbers:
        return {"threshold": statistics.quantile(self.sparsity)}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        threshold = _threshold(g, self.sparsity)
        return cast(ops.Counted, ops.stochastic_prune(g, threshold, setting.key, counted=True))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        return pruned(x, numbers["threshold"])

    def __str__(self) -> str:
        return f"top-k {self.sparsity:g}, then stochastic"


def _threshold(g: Tensor, sparsity: float) -> Tensor:
    """Return the largest magnitude to go; the largest float32 where NaN and infinities fill the top."""
    dropped = _dropped(sparsity, g.numel())
    if not dropped:
        return torch.zeros((), device=g.device)
    found, largest = ops.kth_magnitude(g, g.numel() + 1 - dropped), ops.kth_magnitude(g, 1)
    found = torch.where(found == largest, torch.nextafter(found, torch.zeros_like(found)), found)
    return torch.nan_to_num(found, nan=torch.finfo(torch.float32).max, posinf=torch.finfo(torch.float32).max)


def _dropped(sparsity: float, elements: int) -> int:
    """Return how many elements go; one stays, or a layer with few outputs would learn nothing."""
    return max(min(round(sparsity * elements), elements - 1), 0)
