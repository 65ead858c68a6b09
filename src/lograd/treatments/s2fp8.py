"""Shifted and squeezed FP8: logarithms stretched so that their mean and their largest fit the format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch

from .. import ops
from ..formats import FloatFormat
from ..laws.law import Values
from ..ops.library import dense
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
        """The map is monotone, so each value of the format has an interval of magnitudes: two short tables."""
        size = finite_part(g).abs()
        present = int((size > 0).sum())
        if not present:
            return counted(dense(g).clone())
        mean = float(steady_sum(torch.where(size > 0, size.log2(), 0.0))) / present
        largest = math.log2(float(size.max()))
        alpha = TOP / (largest - mean) if largest > mean else 1.0
        (cells,) = FORMAT.cells("nearest")[:1]
        with np.errstate(divide="ignore", over="ignore"):
            edges, points = (np.exp2(np.log2(part) / alpha + mean) for part in (cells.edges[1:-1], cells.points))
        limit = float(torch.finfo(g.dtype).max)
        table = torch.from_numpy(np.minimum(points, limit)).to(g.device, g.dtype)
        magnitudes, ends = g.float().abs().contiguous(), torch.from_numpy(edges).to(g.device, torch.float32)
        place = torch.bucketize(magnitudes, ends, right=True)
        result = torch.where(g.isnan(), g, table[place].copysign(g))
        return counted(torch.empty_like(dense(g)).copy_(result), g.isinf().sum())

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        alpha, beta = numbers["alpha"], numbers["beta"]
        values, probabilities = rounded(np.exp2(beta + alpha * np.log2(x)), FORMAT, 1.0, "nearest")
        with np.errstate(divide="ignore"):
            return Outcomes(np.exp2((np.log2(values) - beta) / alpha), probabilities)

    def __str__(self) -> str:
        return "S2FP8"
