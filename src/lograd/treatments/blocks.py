"""Formats in which a block of neighbours shares a scale: MXFP4, MXFP6, MXFP8, NVFP4."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast, final

from .. import ops
from ..errors import InvalidValue, sentence
from ..formats import BlockFormat, parse_format
from ..formats.values import check_rounding
from ..ops.arguments import Rounding
from ..ops.blocks import why_biased
from ..ops.coded import Encoded, Layout
from ..ops.codes import reason_without_levels
from ..ops.layouts import dense
from .tensors import contracted_last
from .treatment import Coded, Setting

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Blocks(Coded):
    """Q(g / s) s with a scale s for each block of neighbours along the dimension that the product sums over.

    So dX and dW take copies of their own.  Rounded stochastically, a format with power-of-two scales is made unbiased
    as [tseng2025] does: by 3/4 before and 4/3 after, so that nothing is cut off.  Where the scale is no power of two,
    as in NVFP4, its own rounding to nearest may cut off the largest of a block: the bias is small, and not zero.

    It rounds one operand; each operand of a product has treatments of its own (`LayerPlan`).

    Args:
        format: a BlockFormat, or its text: "mxfp4", "mxfp6", "mxfp8", "nvfp4", ...
        rounding: "stochastic" or "nearest".  Which of the two is better for dW is contested.
    """

    format: BlockFormat
    rounding: Rounding = "stochastic"
    kind: ClassVar[str] = "blocks"
    per_product: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.format, str):
            object.__setattr__(self, "format", parse_format(self.format))
        if not isinstance(self.format, BlockFormat):
            raise InvalidValue(sentence("format of blocks", str(self.format), "a block format, such as 'mxfp4'"))
        check_rounding(self.rounding, ("stochastic", "nearest"))

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic" and not why_biased(self.format)

    @property
    def element_bits(self) -> float:
        return self.format.bits_per_element

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        matrix, back = contracted_last(g, setting.contracted)
        result = cast(ops.Counted, ops.quantize_blocks(matrix, **self._arguments(matrix, setting)))
        return ops.Counted(back(result.result), result.counts)

    @property
    def block_levels(self) -> bool:
        return reason_without_levels(str(self.format)) is None

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        """Return codes and counts; zeros are counted before a product of scales that underflows makes more of them."""
        layout = Layout.summed_last(dense(g), setting.contracted)
        matrix = layout.matrix(g)
        coded, counts = cast(Encoded, ops.quantize_block_codes(matrix, **self._arguments(matrix, setting)))
        return Encoded(replace(coded, layout=layout), counts)

    def _arguments(self, matrix: Tensor, setting: Setting) -> dict[str, Any]:
        return {
            "format": self.format,
            "rounding": self.rounding,
            "variant": "unbiased" if self.unbiased else "standard",
            "seed": setting.key,
            "tensor_scale": ops.tensor_scale_of(matrix, self.format) if self.format.scale.mantissa else 1.0,
            "counted": True,
        }

    def __str__(self) -> str:
        return f"{self.format}" + (", nearest" if self.rounding == "nearest" else "")
