"""Levels for integer products: the quantizer of weights, activations and gradients that meet as exact integers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final, get_args

from .. import ops
from ..coded import Encoded
from ..errors import InvalidValue
from ..files.checks import check_flag
from ..formats.values import check_rounding, check_width
from ..laws.law import Values
from ..ops.registry import call
from .fields import check_choice
from .quantize import Rounding, stepped
from .statistics import Statistics
from .treatment import RARE, LevelCodes, Numbers, Outcomes, Setting, Treatment

if TYPE_CHECKING:
    from torch import Tensor

Per = Literal["tensor", "channel"]
Ranges = Literal["current", "hindsight"]

MOMENTUM = 0.9
LOW, HIGH, SEEN = range(3)


@final
@dataclass(frozen=True)
class Integers(Treatment):
    """Whole multiples of a step around a zero point, as integer products take them: see `ops.pack_integers`.

    Args:
        bits: 2 to 8.
        per: one range for the "tensor", or one for each "channel", the first dimension: outputs of a weight.
        symmetric: as many levels below zero as above; else zero may be any level, and is the first where nothing is
            negative.
        rounding: "nearest" or "stochastic".
        ranges: "current" takes the range of the tensor itself.  "hindsight" takes that of earlier tensors, so that each
            is read once: in-hindsight ranges of [fournarakis2021],

                low_t = 0.9 low_(t-1) + 0.1 min x_(t-1)        high_t = 0.9 high_(t-1) + 0.1 max x_(t-1).

            The first tensor that is not zero has its own range.  Elements outside saturate, and are counted.  Tensors
            with NaN or infinity, and those of zeros, leave the range as it is.
        power_of_two: the step is the next power of two above the one that the range needs, so that scales are shifts
            and nothing inside the range saturates.

    Where the setting brings factors (`Setting.fold`), each channel is multiplied by its factor before it is rounded,
    and divided by it afterwards.

    @inproceedings{fournarakis2021,
      title     = {In-Hindsight Quantization Range Estimation for Quantized Training},
      author    = {Fournarakis, Marios and Nagel, Markus},
      booktitle = {Conference on Computer Vision and Pattern Recognition Workshops},
      year      = {2021}
    }
    """

    bits: int
    per: Per = "tensor"
    symmetric: bool = False
    rounding: Rounding = "nearest"
    ranges: Ranges = "current"
    power_of_two: bool = field(default=False, metadata=RARE)
    kind: ClassVar[str] = "integers"
    reads_fold: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_width("bits", self.bits, 2, 8)
        check_choice("per", self.per, get_args(Per))
        check_flag("symmetric", self.symmetric)
        check_rounding(self.rounding, ("stochastic", "nearest"))
        check_choice("ranges", self.ranges, get_args(Ranges))
        check_flag("power_of_two", self.power_of_two)
        if self.ranges == "hindsight" and self.per == "channel":
            raise InvalidValue("ranges='hindsight' remembers one range, per='tensor'; per='channel' takes 'current'.")

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic" and self.ranges == "current"

    @property
    def element_bits(self) -> float:
        return self.bits

    @property
    def wider(self) -> Integers | None:
        return replace(self, bits=8) if self.bits < 8 else None

    @property
    def memory_size(self) -> int:
        """In hindsight: low and high of the next range, and the number of tensors that they come from."""
        return 3 if self.ranges == "hindsight" else 0

    def numbers(self, statistics: Statistics) -> Numbers:
        largest = float(statistics.law.maximum)
        step = largest / (2 ** (self.bits - 1) - 1)
        if statistics.range is not None and not self.symmetric:
            low, high, last = max(-statistics.range[0], 0.0), max(statistics.range[1], 0.0), 2**self.bits - 1
            below = min(max(math.floor(low * last / (low + high)), 1), last - 1)
            zeros = (below, min(below + 1, last - 1))
            step = min(max(low / zero, high / (last - zero)) for zero in zeros) if low and high else (low + high) / last
        return {"step": 2.0 ** math.ceil(math.log2(step)) if self.power_of_two else step, "largest": largest}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        found = ops.quantize_integers(g, self.bits, **self._arguments(g, setting))
        self._remember(found.range, found.counts, setting)
        return ops.Counted(found.result, found.counts)

    @property
    def can_encode(self) -> bool:
        return True

    @property
    def level_bits(self) -> int:
        return self.bits

    @property
    def per_channel(self) -> bool:
        return self.per == "channel"

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        found = ops.pack_integers(g, self.bits, **self._arguments(g, setting))
        self._remember(found.range, found.counts, setting)
        return Encoded(found.coded, found.counts)

    def level_codes(self, g: Tensor, setting: Setting) -> LevelCodes:
        known = self.memory_size and float(setting.memory[SEEN])
        # The operator itself: what the public function checks was checked when the site was made.
        codes, parameters, range, counts = call(
            "integer_codes", g, setting.memory[:SEEN].float() if known else None, setting.fold, setting.fold_dim,
            self.bits, self.per == "channel", self.symmetric, self.rounding == "stochastic", setting.key,
            self.power_of_two,
        )  # fmt: skip
        if self.memory_size:
            self._remember(range[:, 0], counts, setting)
        scale, zero = parameters.unbind()
        return LevelCodes(codes, scale, zero, counts)

    def _arguments(self, g: Tensor, setting: Setting) -> dict[str, Any]:
        known = self.memory_size and float(setting.memory[SEEN])
        return {
            "per": self.per if g.dim() else "tensor",
            "symmetric": self.symmetric,
            "rounding": self.rounding,
            "seed": setting.key,
            "fold": setting.fold,
            "fold_dim": setting.fold_dim,
            "range": setting.memory[:SEEN] if known else None,
            "power_of_two": self.power_of_two,
            "counted": True,
        }

    def _remember(self, range: Tensor, counts: Tensor, setting: Setting) -> None:
        """Move the range towards that of a tensor which is finite and not zero."""
        if not self.memory_size or int(counts[1]):
            return
        ends, (*before, seen) = range.tolist(), setting.memory.tolist()  # plain numbers: an operator takes longer
        if not any(ends):
            return
        if seen:
            ends = [MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip(before, ends, strict=True)]
        setting.memory.copy_(setting.memory.new_tensor([*ends, seen + 1]))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        """Return the outcomes per tensor; None where a channel decides."""
        if self.per == "channel":
            return None
        return stepped(x, numbers["step"], numbers["largest"], self.rounding)

    def memory_words(self, memory: list[float]) -> Numbers:
        return {"low": memory[LOW], "high": memory[HIGH]} if memory and memory[SEEN] else {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        if not self.memory_size:
            return memory
        return memory * memory.new_tensor([factor, factor, 1.0])

    def __str__(self) -> str:
        words = [f"int{self.bits} levels"]
        if self.per == "channel":
            words.append("per channel")
        if self.symmetric:
            words.append("symmetric")
        if self.ranges == "hindsight":
            words.append("in hindsight")
        if self.power_of_two:
            words.append("steps of powers of two")
        return ", ".join([*words, *(["stochastic"] if self.rounding == "stochastic" else [])])
