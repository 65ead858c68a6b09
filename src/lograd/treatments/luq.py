"""Logarithmic unbiased quantization: powers of two below the largest magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast, final

from .. import ops
from ..coded import Encoded
from ..formats import FloatFormat
from ..formats.values import check_rounding, check_width
from ..laws.law import Values
from .quantize import Rounding, level_bits, rounded
from .statistics import Statistics
from .treatment import Numbers, Outcomes, Setting, Treatment

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Luq(Treatment):
    """LUQ of [chmiel2023]: 2^(bits - 1) - 1 powers of two up to max |g|, and zero, rounded stochastically throughout.

    Rounding to nearest is there to be compared: what the paper argues against.

    The largest magnitude is that of the gradient itself.  The paper's "hindsight" estimate from earlier gradients and
    its averaging of several samples for dW are not part of it; the recipe "luq4" adds an INT4 forward pass.  See
    `ops.luq` for how many powers of two its formula and its code have.
    """

    bits: int = 4
    rounding: Rounding = "stochastic"
    kind: ClassVar[str] = "luq"

    def __post_init__(self) -> None:
        check_width("bits", self.bits, 2, 8)
        check_rounding(self.rounding, ("stochastic", "nearest"))

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    @property
    def element_bits(self) -> float:
        return self.bits

    def numbers(self, statistics: Statistics) -> Numbers:
        return {"scale": self._format.max / float(statistics.law.maximum)}

    @property
    def _format(self) -> FloatFormat:
        return FloatFormat(self.bits - 1, 0)

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        found = ops.luq(g, self.bits, setting.key, rounding=self.rounding)
        return ops.Counted(found.result, found.counts)

    @property
    def can_encode(self) -> bool:
        return True

    @property
    def level_bits(self) -> int:
        """8 for up to 4 bits, whose magnitudes are at most 64 times the smallest; the powers of more are too many."""
        return level_bits(self._format)

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        return cast(Encoded, ops.pack_luq(g, self.bits, setting.key, rounding=self.rounding, counted=True))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        return rounded(x, self._format, numbers["scale"], self.rounding)

    def __str__(self) -> str:
        return f"fp{self.bits} LUQ" + (", nearest" if self.rounding == "nearest" else "")
