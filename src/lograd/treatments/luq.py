"""Logarithmic unbiased quantization: powers of two below the largest magnitude."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final, get_args

import numpy as np

from .. import ops
from ..laws.law import Values
from ..ops.arguments import Rounding
from ..ops.coded import Encoded
from ..ops.logarithmic import check_samples, format_of_mean
from ..ops.registry import call
from .integers import Ranges, move_towards
from .quantize import level_bits, rounding_outcomes
from .statistics import Statistics
from .tensors import is_finite
from .treatment import RARE, Coded, Numbers, Outcomes, Setting, check_choice

if TYPE_CHECKING:
    from torch import Tensor

LARGEST, SEEN = range(2)


@final
@dataclass(frozen=True)
class Luq(Coded):
    """LUQ of [chmiel2023]: 2^(bits - 1) - 1 powers of two up to max |g|, and zero, rounded stochastically throughout.

    See `ops.luq` for how many powers of two the paper's formula and its code have.

    Args:
        bits: 2 to 8.
        rounding: "stochastic".  Rounding to "nearest" is there to be compared: what the paper argues against.
        samples: SMP of the paper, for dW: the mean of so many independent draws (2, 4, ... up to 2^(8 - bits)), whose
            variance is that of one divided by their number.  Hardware with 4-bit products makes one product for each
            draw.  Here there is one product of the mean, which has log2(samples) bits more; for 4 bits these are no
            levels of a byte, and the product is dense.
        ranges: "current" takes max |g| of the tensor itself.  "hindsight" takes that of earlier tensors,

                m_t = 0.9 m_(t-1) + 0.1 max |g_(t-1)|,

            as the paper does where no pass over the gradient shall come before the product; 0.9 is that of `Integers`.
            Larger elements saturate, which is a bias, and are counted.  The first gradient that is not zero has its
            own maximum.  Gradients with NaN or infinity, and those of zeros, leave m as it is.
    """

    bits: int = 4
    rounding: Rounding = "stochastic"
    samples: int = field(default=1, metadata=RARE)
    ranges: Ranges = field(default="current", metadata=RARE)
    kind: ClassVar[str] = "luq"

    def __post_init__(self) -> None:
        check_samples(self.bits, self.samples, self.rounding)
        check_choice("ranges", self.ranges, get_args(Ranges))

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic" and self.ranges == "current"

    @property
    def element_bits(self) -> float:
        return format_of_mean(self.bits, self.samples).bits

    @property
    def memory_size(self) -> int:
        """In hindsight: the largest magnitude to expect, and the number of gradients that it comes from."""
        return 2 if self.ranges == "hindsight" else 0

    def numbers(self, statistics: Statistics) -> Numbers:
        return {"largest": float(statistics.law.maximum)}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        found = ops.luq(g, self.bits, setting.key, **self._options(setting))
        self._remember(g, found.largest, found.counts, setting)
        return ops.Counted(found.result, found.counts)

    @property
    def level_bits(self) -> int:
        """8 for up to 4 bits, whose magnitudes are at most 64 times the smallest; the powers of more are too many."""
        return level_bits(format_of_mean(self.bits, self.samples))

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        coded, counts = ops.pack_luq(g, self.bits, setting.key, **self._options(setting), counted=True)
        if self.memory_size:
            self._remember(g, call("largest_and_scale", g, 1.0)[0], counts, setting)
        return Encoded(coded, counts)

    def _options(self, setting: Setting) -> dict[str, Any]:
        known = self.memory_size and float(setting.memory[SEEN])
        return {
            "rounding": self.rounding,
            "samples": self.samples,
            "largest": setting.memory[LARGEST] if known else None,
        }

    def _remember(self, g: Tensor, largest: Tensor, counts: Tensor, setting: Setting) -> None:
        """Move the expected maximum towards that of a gradient which is finite and not zero."""
        if not self.memory_size:
            return
        _, nan, saturated, *_ = counts.tolist()
        if not nan and not (saturated and not is_finite(g)):
            move_towards(setting.memory, [float(largest)])

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        format = format_of_mean(self.bits, 1)
        one = rounding_outcomes(x, format, format.max / numbers["largest"], self.rounding)
        return one if self.samples == 1 else _mean(one, self.samples)

    def memory_words(self, memory: list[float]) -> Numbers:
        return {"largest": memory[LARGEST]} if memory and memory[SEEN] else {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        return memory * memory.new_tensor([factor, 1.0]) if self.memory_size else memory

    def __str__(self) -> str:
        words = [f"fp{self.bits} LUQ"]
        if self.samples > 1:
            words.append(f"mean of {self.samples}")
        if self.ranges == "hindsight":
            words.append("in hindsight")
        return ", ".join([*words, *(["nearest"] if self.rounding == "nearest" else [])])


def _mean(one: Outcomes, samples: int) -> Outcomes:
    """Return the outcomes of the mean of several draws, each of which goes down or up."""
    (low, high), (_, up) = one
    ups = np.arange(samples + 1)[:, None]
    ways = np.array([math.comb(samples, count) for count in range(samples + 1)], dtype=np.float64)[:, None]
    return Outcomes(low + (high - low) * (ups / samples), ways * up**ups * (1 - up) ** (samples - ups))
