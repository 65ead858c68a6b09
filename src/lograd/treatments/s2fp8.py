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
from ..ops.coded import CodedTensor, Encoded, Layout, Table
from ..ops.layouts import dense
from .quantize import rounding_outcomes
from .statistics import Statistics
from .tensors import counted, finite_part, steady_sum
from .treatment import Coded, Numbers, Outcomes, Setting

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = FloatFormat(5, 2, specials="ieee")
_INFINITY, _NAN = FORMAT.encode(math.inf), FORMAT.encode(math.nan)
TOP = 15.0
"""The place of the largest logarithm; the mean goes to 0."""


@final
@dataclass(frozen=True)
class S2fp8(Coded):
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
        found = self._places(g)
        if found is None:
            return counted(dense(g).clone())
        place, table = found
        result = torch.where(g.isnan(), g, table[place].copysign(g))
        return counted(torch.empty_like(dense(g)).copy_(result), g.isinf().sum())

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        """Return codes of 1-5-2 with a table of the values that they stand for, once the map is undone."""
        found = self._places(g)
        if found is None:  # nothing but zeros, infinities and NaN, which stay what they are
            place, table = torch.where(g.isinf(), _INFINITY, 0), torch.zeros(_INFINITY, dtype=g.dtype, device=g.device)
        else:
            place, table = found
        code = torch.where(g.isnan(), _NAN, place + torch.where(g.signbit(), 128, 0))
        codes = torch.empty_like(dense(g), dtype=torch.uint8).copy_(code)
        half = table.new_full((128,), math.nan)
        half[:_INFINITY], half[_INFINITY] = table, math.inf
        scale = torch.ones((), dtype=torch.float32, device=g.device)
        coded = CodedTensor(
            codes, scale, str(FORMAT), Layout(tuple(g.shape), tuple(codes.stride()), g.dtype),
            transform=(Table(torch.cat([half, -half])),),
        )  # fmt: skip
        zeros = ((coded.decode() == 0).sum(), g.isnan().sum())
        saturated = torch.zeros_like(zeros[0]) if found is None else g.isinf().sum()
        return Encoded(coded, torch.stack([*zeros, saturated]))

    def _places(self, g: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the code of each magnitude, and the value of each code; None where no element is finite and not zero.

        The map is monotone, so each value of the format has an interval of magnitudes: two short tables.
        """
        size = finite_part(g).abs()
        present = int((size > 0).sum())
        if not present:
            return None
        mean = float(steady_sum(torch.where(size > 0, size.log2(), 0.0))) / present
        largest = math.log2(float(size.max()))
        alpha = TOP / (largest - mean) if largest > mean else 1.0
        (cells,) = FORMAT.cells("nearest")[:1]
        with np.errstate(divide="ignore", over="ignore"):
            edges, points = (np.exp2(np.log2(part) / alpha + mean) for part in (cells.edges[1:-1], cells.points))
        limit = float(torch.finfo(g.dtype).max)
        table = torch.from_numpy(np.minimum(points, limit)).to(g.device, g.dtype)
        magnitudes, ends = g.float().abs().contiguous(), torch.from_numpy(edges).to(g.device, torch.float32)
        return torch.bucketize(magnitudes, ends, right=True), table

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        alpha, beta = numbers["alpha"], numbers["beta"]
        values, probabilities = rounding_outcomes(np.exp2(beta + alpha * np.log2(x)), FORMAT, 1.0, "nearest")
        with np.errstate(divide="ignore"):
            return Outcomes(np.exp2((np.log2(values) - beta) / alpha), probabilities)

    def __str__(self) -> str:
        return "S2FP8"
