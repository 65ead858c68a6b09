"""StatQuant's integer quantizers: one range for the tensor, one for each sample, or rows spread by reflections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast, final, get_args

from .. import ops
from ..formats.values import check_rounding, check_width
from ..laws.law import Values
from ..ops.arguments import Rounding
from ..ops.coded import Encoded
from .quantize import stepped
from .statistics import Statistics
from .treatment import Coded, Numbers, Outcomes, Scales, Setting, check_choice

if TYPE_CHECKING:
    from torch import Tensor

Method = Literal["ptq", "psq", "bhq"]


@final
@dataclass(frozen=True)
class StatQuant(Coded):
    """The quantizers of [chen2020]: 2^bits codes from the smallest to the largest element.

    "ptq": per tensor, with zero as one of the codes.  "psq": per sample; rows of a linear layer (tokens, where it has
    more leading dimensions), images of a convolution.  "bhq": block Householder, which spreads rows of a wide range
    over rows of a narrow one first.  See `ops.quantize_per_tensor` and its neighbours for the formulas and what is
    reconstructed.

    The paper quantizes twice (biprecision): the recipes "intN-ptq", "intN-psq" and "intN-bhq" take `bits` in the
    product for dX and 8 bits per tensor in the one for dW.  (Where the paper's code takes ranges per sample for dX, it
    takes them per column for dW.)  Its forward pass is quantized too: "fqtN-ptq", "fqtN-psq" and "fqtN-bhq" do so.
    """

    bits: int
    method: Method = "ptq"
    rounding: Rounding = "stochastic"
    kind: ClassVar[str] = "statquant"

    def __post_init__(self) -> None:
        check_width("bits", self.bits, 2, 8)
        check_choice("method", self.method, get_args(Method))
        check_rounding(self.rounding, ("stochastic", "nearest"))

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    @property
    def element_bits(self) -> float:
        return self.bits

    def numbers(self, statistics: Statistics) -> Numbers:
        largest = float(statistics.law.maximum)
        if statistics.range is None:
            return {"step": largest / (2 ** (self.bits - 1) - 1), "largest": largest}
        low, high, last = max(-statistics.range[0], 0.0), max(statistics.range[1], 0.0), 2**self.bits - 1
        # As `ops.quantize_per_tensor` puts zero on a code.
        zero = math.floor(low * last / (low + high))
        return {"step": low / zero if zero else high / (last - (low > 0)), "largest": max(low, high)}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        per_row = g.dim() >= 2
        quantize = {
            "ptq": ops.quantize_per_tensor,
            "psq": ops.quantize_per_sample if per_row else ops.quantize_per_tensor,
            "bhq": ops.quantize_block_householder if per_row else ops.quantize_per_tensor,
        }[self.method]
        return cast(ops.Counted, quantize(g, self.bits, self.rounding, setting.key, counted=True))

    @property
    def level_bits(self) -> int:
        """The bits of "ptq", whose codes have a zero; codes of the other methods count from the end of a range."""
        return self.bits if self.method == "ptq" else 0

    @property
    def scales(self) -> Scales:
        return "tensor" if self.method == "ptq" else "sample"

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        per_row = g.dim() >= 2
        pack = {
            "ptq": ops.pack_per_tensor,
            "psq": ops.pack_per_sample if per_row else ops.pack_per_tensor,
            "bhq": ops.pack_block_householder if per_row else ops.pack_per_tensor,
        }[self.method]
        return cast(Encoded, pack(g, self.bits, self.rounding, setting.key, counted=True))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        """Return the outcomes per tensor; None for methods that depend on the row."""
        if self.method != "ptq":
            return None
        return stepped(x, numbers["step"], numbers["largest"], self.rounding)

    def __str__(self) -> str:
        return f"int{self.bits} {self.method}" + (", nearest" if self.rounding == "nearest" else "")
