"""Shifted and squeezed FP8: logarithms stretched so that their mean and their largest fit the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch

from .. import ops
from ..formats import FloatFormat
from ..laws.law import Values
from .quantize import rounded
from .statistics import Statistics
from .tensors import counted, finite_part, steady_sum
from .treatment import Numbers, Outcomes, Setting, Treatment

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = FloatFormat(5, 2, specials="ieee")
TOP = 15.0
"""Where the largest logarithm goes; the mean goes to 0."""


@final
@dataclass(frozen=True)
class S2fp8(Treatment):
    """[cambier2020]: y = sign(g) 2^beta |g|^alpha is rounded to 1-5-2, to nearest, and taken back.

    With mu the mean and m the largest of log2 |g| over the nonzero elements, alpha = 15 / (m - mu), beta = -alpha mu.
    Where all magnitudes are the same, alpha is 1.  Both statistics are those of the gradient itself.  In the paper
    weights and activations are treated as well; here the gradient alone.

    @inproceedings{cambier2020,
      title     = {Shifted and Squeezed 8-bit Floating Point Format for Low-Precision Training of Deep Neural Networks},
      author    = {Cambier, L{\\'e}opold and Bhiwandiwalla, Anahita and Gong, Ting and Nekuii, Mehran and
                   Elibol, Oguz H. and Tang, Hanlin},
      booktitle = {International Conference on Learning Representations},
      year      = {2020}
    }
    """

    kind: ClassVar[str] = "s2fp8"

    @property
    def element_bits(self) -> float:
        return FORMAT.bits

    def numbers(self, statistics: Statistics) -> Numbers:
        mean, largest = float(statistics.law.log_mean) / np.log(2), float(np.log2(statistics.law.maximum))
        alpha = TOP / (largest - mean) if largest > mean else 1.0
        return {"alpha": alpha, "beta": -alpha * mean}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        size = finite_part(g).abs()
        present = size > 0
        logs = torch.where(present, size.double().log2(), 0.0)
        mean = steady_sum(logs) / present.sum().clamp(min=1)
        largest = size.double().max().log2() if size.numel() else mean
        alpha = torch.where(largest > mean, TOP / (largest - mean), 1.0)
        squeezed = g.sign() * torch.exp2(alpha * (g.double().abs().log2() - mean))
        values = ops.quantize(squeezed.float(), FORMAT, counted=True)
        back = torch.exp2(values.result.double().abs().log2() / alpha + mean)
        limit = torch.finfo(g.dtype).max
        result = (values.result.sign() * back).clamp(-limit, limit).to(g.dtype)
        return counted(torch.where(g.isnan(), g, result), values.counts[2])

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        alpha, beta = numbers["alpha"], numbers["beta"]
        values, probabilities = rounded(np.exp2(beta + alpha * np.log2(x)), FORMAT, 1.0, "nearest")
        with np.errstate(divide="ignore"):
            return Outcomes(np.exp2((np.log2(values) - beta) / alpha), probabilities)

    def __str__(self) -> str:
        return "S2FP8"
