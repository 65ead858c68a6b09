"""Dithered backprop: stochastic rounding to multiples of a step that follows the gradient's spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast, final

import torch

from .. import ops
from ..laws.law import Values
from ..ops.layouts import dense
from .quantize import stepped
from .statistics import Statistics
from .tensors import counted, finite_part, steady_square_sum, steady_sum
from .treatment import Numbers, Outcomes, Setting, Treatment, checked_number

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Dithered(Treatment):
    """Non-subtractive dither of [wiedemann2020]: g rounded stochastically to multiples of `factor` times std(g).

    Below one step that is Eq. 5 of [chmiel2021] with the step as threshold; there are no multiples beyond which it
    saturates, and so no codes of a fixed width.  A gradient whose elements are all the same stays as it is.
    Reconstructed: that the step is a multiple of the standard deviation is from memory of the paper.

    @inproceedings{wiedemann2020,
      title     = {Dithered Backprop: A Sparse and Quantized Backpropagation Algorithm for More Efficient Deep Neural
                   Network Training},
      author    = {Wiedemann, Simon and Mehari, Temesgen and Kepp, Kevin and Samek, Wojciech},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops},
      year      = {2020}
    }
    """

    factor: float = 1.0
    kind: ClassVar[str] = "dithered"

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", checked_number("factor", self.factor, 0.0, 1e6))

    @property
    def makes_zeros(self) -> bool:
        return True

    @property
    def unbiased(self) -> bool:
        return True

    def numbers(self, statistics: Statistics) -> Numbers:
        return {"step": self.factor * math.sqrt(statistics.moment(2))}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        values, n = finite_part(g), max(g.numel(), 1)
        mean = steady_sum(values) / n
        step = self.factor * (steady_square_sum(values) / n - mean**2).clamp(min=0).sqrt()
        if step <= 2.0**-20 * mean.abs():  # all the same, to the rounding of their squares
            return counted(dense(g).clone())
        numbers = torch.finfo(torch.float32)
        step = step.clamp(numbers.smallest_normal, numbers.max).float()
        return cast(ops.Counted, ops.dither(g, step, setting.key, counted=True))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        return stepped(x, numbers["step"], math.inf, "stochastic")

    def __str__(self) -> str:
        return f"dithered {self.factor:g} std"
