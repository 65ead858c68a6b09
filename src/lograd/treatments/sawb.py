"""Levels whose range follows from two moments: statistics-aware weight binning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from .. import ops
from ..errors import InvalidValue, sentence
from .packed import PackedLevels
from .tensors import finite_part, steady_square_sum, steady_sum
from .treatment import Setting, Treatment

if TYPE_CHECKING:
    from torch import Tensor

COEFFICIENTS = {2: (3.212, 2.178), 4: (12.1, 12.2), 5: (17.74, 18.64)}
"""a and b of c = a sqrt(E x^2) - b E|x|, by bits.  Those for 4 bits are of the code of [chmiel2023]."""


@final
@dataclass(frozen=True)
class Sawb(PackedLevels, Treatment):
    """SAWB [choi2019]: 2^bits - 1 levels over [-c, c], c = a sqrt(E x^2) - b E|x|, to nearest.

    The coefficients make c nearly the range of least squared error for the usual bell-shaped laws; they are published
    for 2, 4 and 5 bits.  Where c is not positive, or lies beyond the largest magnitude, that magnitude is the range.

    @inproceedings{choi2019,
      title     = {Accurate and Efficient 2-bit Quantized Neural Networks},
      author    = {Choi, Jungwook and Venkataramani, Swagath and Srinivasan, Vijayalakshmi and Gopalakrishnan, Kailash
                   and Wang, Zhuo and Chuang, Pierce},
      booktitle = {Machine Learning and Systems},
      year      = {2019}
    }
    """

    bits: int = 4
    kind: ClassVar[str] = "sawb"

    def __post_init__(self) -> None:
        if self.bits not in COEFFICIENTS or isinstance(self.bits, bool):
            raise InvalidValue(sentence("bits", self.bits, "2, 4 or 5, for which the coefficients of SAWB are known"))

    def _packed(self, g: Tensor, setting: Setting) -> ops.RangedCodes:
        clip = self.clip(g)
        found: ops.RangedCodes = ops.pack_integers(
            g, self.bits, symmetric=True, range=(-clip, clip), fold=setting.fold, fold_dim=setting.fold_dim,
            counted=True,
        )  # fmt: skip
        return found

    def clip(self, x: Tensor) -> float:
        """Return the end of the range for a tensor; 0 where it has no finite element but zeros."""
        values = finite_part(x)
        if not values.numel():
            return 0.0
        a, b = COEFFICIENTS[self.bits]
        root = math.sqrt(float(steady_square_sum(values)) / values.numel())
        clip = a * root - b * float(steady_sum(values.abs())) / values.numel()
        largest = float(values.abs().max())
        return clip if 0 < clip < largest else largest

    def __str__(self) -> str:
        return f"int{self.bits} levels, SAWB"
