"""Levels whose range follows from two moments: statistics-aware weight binning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from ..errors import InvalidValue, sentence
from ..ops.layouts import dense, flat
from .integers import ToLevels
from .tensors import finite_part, is_finite, steady_magnitude_sum, steady_square_sum
from .treatment import Setting

if TYPE_CHECKING:
    from torch import Tensor

COEFFICIENTS = {2: (3.212, 2.178), 4: (12.1, 12.2), 5: (17.74, 18.64)}
"""a and b of c = a sqrt(E x^2) - b E|x|, by bits.  Those for 4 bits are of the code of [chmiel2023]."""


@final
@dataclass(frozen=True)
class Sawb(ToLevels):
    """SAWB [choi2019]: 2^bits - 1 levels over [-c, c], c = a sqrt(E x^2) - b E|x|, to nearest.

    The coefficients make c nearly the range of least squared error for the usual bell-shaped laws; they are published
    for 2, 4 and 5 bits.  A tensor with nothing negative, as behind a ReLU, has 2^bits levels over [0, 2 c], as in the
    code of [chmiel2023].  (For weights that code has 17 levels, one more than 4 bits hold.)  Where the end of the range
    is not positive, or lies beyond the largest magnitude, that magnitude is the end.

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

    def _arguments(self, g: Tensor, setting: Setting) -> tuple[Any, ...]:
        return self._between(*self.range(g), g, setting)

    def range(self, x: Tensor) -> tuple[float, float]:
        """Return the ends of the range for a tensor; 0 and 0 where it has no finite element but zeros."""
        values = flat(dense(x.detach())).float() if is_finite(x) else finite_part(x)
        if not values.numel():
            return 0.0, 0.0
        a, b = COEFFICIENTS[self.bits]
        lowest, highest = (float(end) for end in values.aminmax())
        root = math.sqrt(float(steady_square_sum(values)) / values.numel())
        clip = a * root - b * float(steady_magnitude_sum(values)) / values.numel()
        end, largest = clip if lowest < 0 else 2 * clip, max(-lowest, highest)
        end = end if 0 < end < largest else largest
        return (-end if lowest < 0 else 0.0), end

    def __str__(self) -> str:
        return f"int{self.bits} levels, SAWB"
