"""The clipped interval of the INT4 paper, which follows the share of elements that it cuts off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from .. import ops
from ..formats.values import check_rounding, check_width
from ..laws.law import Values
from ..ops.arguments import Rounding
from ..ops.coded import Encoded
from .quantize import stepped
from .statistics import Statistics
from .tensors import finite_part, is_finite
from .treatment import Coded, Numbers, Outcomes, Setting, checked_number

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 0.001


@final
@dataclass(frozen=True)
class Interval(Coded):
    """[kim2024]: 2^bits - 1 levels over [-c, c], c = gamma max |g|, unbiased inside and clipped outside.

    The paper bounds the error of the large gradients, the share `alpha` of the largest magnitudes.  The bound is least
    where a share alpha / (2^bits - 1) of all elements is clipped.  So gamma starts as the first of 1, 1 - beta,
    1 - 2 beta, ... that clips more than that, in the first gradient, and afterwards moves by `beta` towards it with
    each gradient that is finite and not zero, within [0.001, 1].

    The paper makes no optimizer step on the first batch and averages the share in that search; here it is a step like
    any other, and the share is that of the one gradient.
    """

    bits: int = 4
    alpha: float = 1e-3
    beta: float = 1e-3
    rounding: Rounding = "stochastic"
    kind: ClassVar[str] = "interval"

    def __post_init__(self) -> None:
        check_width("bits", self.bits, 2, 8)
        object.__setattr__(self, "alpha", checked_number("alpha", self.alpha, 0.0, 1.0))
        object.__setattr__(self, "beta", checked_number("beta", self.beta, 0.0, 0.5))
        check_rounding(self.rounding, ("stochastic", "nearest"))

    @property
    def memory_size(self) -> int:
        """One number, gamma, which is 0 before the first gradient."""
        return 1

    @property
    def element_bits(self) -> float:
        return self.bits

    @property
    def clipped_share(self) -> float:
        """The share of elements to clip, alpha / (2^bits - 1), at which the bound on the error is least."""
        return self.alpha / float(2**self.bits - 1)

    def numbers(self, statistics: Statistics) -> Numbers:
        largest = float(statistics.law.maximum)
        gamma = self._on_the_grid(statistics.quantile(1 - self.clipped_share) / largest)
        return {"gamma": gamma, "largest": largest}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        gamma = float(setting.memory[0]) or self._search(g)
        clipped = ops.quantize_interval(g, self.bits, gamma or 1.0, self.rounding, setting.key)
        self._remember(gamma, g, clipped, setting)
        return ops.Counted(clipped.result, clipped.counts)

    @property
    def level_bits(self) -> int:
        return self.bits

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        gamma = float(setting.memory[0]) or self._search(g)
        clipped = ops.pack_interval(g, self.bits, gamma or 1.0, self.rounding, setting.key)
        self._remember(gamma, g, clipped, setting)
        return Encoded(clipped.result, clipped.counts)

    def _remember(self, gamma: float, g: Tensor, clipped: ops.Clipped, setting: Setting) -> None:
        """Move gamma towards the share that is to be clipped."""
        if gamma and clipped.largest > 0 and is_finite(g):
            excess = float(clipped.share) - self.clipped_share
            setting.memory[0] = min(max(gamma + self.beta * float((excess > 0) - (excess < 0)), SMALLEST), 1.0)

    def _search(self, g: Tensor) -> float:
        """Return the first gamma that clips more than its share; 0 for a gradient without finite nonzero elements."""
        size = finite_part(g).abs()
        more = math.floor(self.clipped_share * size.numel()) + 1
        largest = float(size.max()) if size.numel() else 0.0
        if not largest:
            return 0.0
        # |g| > gamma max for `more` elements: gamma lies below the magnitude of that rank.
        return self._on_the_grid(float(ops.kth_magnitude(size, min(more, size.numel()))) / largest)

    def _on_the_grid(self, ratio: float) -> float:
        """Return the largest of 1, 1 - beta, ... that lies below a ratio of magnitudes, and 0.001 at least."""
        steps = max(math.floor((1 - ratio) / self.beta) + 1, 0)
        while steps and 1 - (steps - 1) * self.beta < ratio:
            steps -= 1
        return max(1 - steps * self.beta, SMALLEST)

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        largest = numbers["gamma"] * numbers["largest"]
        return stepped(x, largest / (2 ** (self.bits - 1) - 1), largest, self.rounding)

    def memory_words(self, memory: list[float]) -> Numbers:
        return {"gamma": memory[0]} if memory[0] else {}

    def __str__(self) -> str:
        return f"int{self.bits} interval" + (", nearest" if self.rounding == "nearest" else "")
