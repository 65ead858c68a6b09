"""Levels for integer products: the quantizer of weights, activations and gradients that meet as exact integers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from .. import ops
from ..errors import InvalidValue
from ..files import check_flag
from ..formats.values import check_rounding, check_width
from ..laws.law import Values
from ..ops.affine import coded_levels
from ..ops.arguments import Rounding, check_floats
from ..ops.coded import Encoded
from ..ops.registry import call, kernel_of
from .quantize import stepped
from .statistics import Statistics
from .treatment import RARE, Coded, LevelCodes, Numbers, Outcomes, Scales, Setting, check_choice

Per = Literal["tensor", "channel", "column", "row"]
Ranges = Literal["current", "hindsight"]

MOMENTUM = 0.9
LOW, HIGH, SEEN = range(3)
MOST = torch.finfo(torch.float32).max


def move_towards(memory: Tensor, found: list[float]) -> None:
    """Move numbers that are remembered, with the count of their tensors behind them, towards those of one more.

    The first tensor has its own; one of zeros leaves the memory as it is.
    """
    *before, seen = memory.tolist()  # plain numbers: an operator takes longer
    if not any(found):
        return
    if seen:
        found = [MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip(before, found, strict=True)]
    if memory.is_cpu:
        memory.numpy()[:] = [*found, seen + 1]
    else:
        memory.copy_(memory.new_tensor([*found, seen + 1]))


class ToLevels(Coded, abstract=True):
    """A treatment that is the operator `integer_codes`, with arguments of its own: values are those of the codes."""

    bits: int

    @property
    def element_bits(self) -> float:
        return self.bits

    @property
    def level_bits(self) -> int:
        return self.bits

    @abstractmethod
    def _arguments(self, g: Tensor, setting: Setting) -> tuple[Any, ...]:
        """Return the arguments of `integer_codes` behind the tensor."""

    def _between(self, low: float, high: float, g: Tensor, setting: Setting) -> tuple[Any, ...]:
        """Return the arguments for one given range, rounded to nearest; symmetric if it reaches below zero."""
        limits = g.new_tensor([low, high], dtype=torch.float32)
        return limits, setting.fold, setting.fold_dim, self.bits, False, low < 0, False, setting.key, False

    def _remember(self, range: Tensor, counts: Tensor, setting: Setting) -> None:
        """Take the range of a tensor, as it was found, into the memory."""

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        coded, counts = self.encode(g, setting)
        return ops.Counted(coded.decode(), counts)

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        check_floats(g)
        arguments = self._arguments(g, setting)
        _, fold, fold_dim, bits, _, symmetric, *_ = arguments
        codes, parameters, range, counts = call("integer_codes", g, *arguments)
        self._remember(range, counts, setting)
        return Encoded(coded_levels(g, codes, parameters, bits, symmetric, fold, fold_dim), counts)

    def level_codes(self, g: Tensor, setting: Setting) -> LevelCodes:
        arguments = self._arguments(g, setting)
        # The kernel itself: what the operator checks was checked when the site was made.
        codes, parameters, range, counts = kernel_of("integer_codes")(g, *arguments)
        self._remember(range, counts, setting)
        return LevelCodes(codes, self._of_elements(parameters, g, arguments[1], setting), counts)

    def _of_elements(self, parameters: Tensor, g: Tensor, fold: Tensor | None, setting: Setting) -> Tensor:
        """Return scales and zeros of the elements, from those of elements times factors."""
        return parameters


@final
@dataclass(frozen=True)
class Integers(ToLevels):
    """Whole multiples of a step around a zero point, as integer products take them: see `ops.pack_integers`.

    Args:
        bits: 2 to 8.
        per: one range for the "tensor"; one for each "channel", the first dimension: outputs of a weight; or one for
            each "column", the second dimension: outputs of a gradient, over whose samples and pixels dW sums.  Or one
            for each "row" of a matrix, with one zero point for all: activations of a linear layer, tokens of very
            different sizes among them.  A patch of a convolution meets several rows at once, so a tensor that is no
            matrix has one range.
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
        if self.ranges == "hindsight" and self.per != "tensor":
            raise InvalidValue(
                f"ranges='hindsight' remembers one range, per='tensor'; per={self.per!r} takes ranges='current'."
            )
        if self.per == "column" and not (self.symmetric and not self.power_of_two):
            raise InvalidValue(
                "per='column' takes symmetric=True, one code of zero for all columns, and no power_of_two."
            )
        if self.per == "row" and self.power_of_two and not self.symmetric:
            raise InvalidValue("per='row' with power_of_two takes symmetric=True: its zero point fits other steps.")

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic" and self.ranges == "current"

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

    @property
    def scales(self) -> Scales:
        return self.per

    @property
    def can_fold(self) -> bool:
        return self.per != "column"

    def _arguments(self, g: Tensor, setting: Setting) -> tuple[Any, ...]:
        fold, fold_dim, limits = setting.fold, setting.fold_dim, None
        columns, rows = self._has_columns(g), self._has_rows(g, fold)
        if columns:
            fold, fold_dim, limits = self._column_scales(g, setting.fold), 1, self._column_limits(g, setting.fold)
        elif rows and not self.symmetric:
            limits = call("row_limits", g, self.bits)
        elif self.memory_size and (memory := setting.memory.tolist())[SEEN]:
            limits = g.new_tensor(memory[:SEEN], dtype=torch.float32)
        per_channel, stochastic = rows or (self.per == "channel" and g.dim() > 0), self.rounding == "stochastic"
        symmetric, key = self.symmetric, setting.key
        return limits, fold, fold_dim, self.bits, per_channel, symmetric, stochastic, key, self.power_of_two

    def _of_elements(self, parameters: Tensor, g: Tensor, fold: Tensor | None, setting: Setting) -> Tensor:
        """Return the scales of columns, which the elements were multiplied by."""
        if fold is None or not self._has_columns(g):
            return parameters
        scale = fold if self._has_rows(g, setting.fold) else parameters[0] * fold  # scales of rows are the factors
        return torch.stack([scale, torch.full_like(scale, self._middle)])

    @property
    def _middle(self) -> float:
        """The code of zero where codes are symmetric, which is also the largest number of steps."""
        return 2.0 ** (self.bits - 1) - 1

    def _has_columns(self, g: Tensor) -> bool:
        """Return True if columns have ranges: a tensor of one dimension, or without elements, has one range at most."""
        return self.per == "column" and g.dim() > 1 and g.numel() > 0

    def _column_scales(self, g: Tensor, rows: Tensor | None) -> Tensor:
        """Return the scale of each column: its largest magnitude has the last code, to one part in 2^22.

        A column of zeros has the scale 1, which is as good as any other.

        Args:
            rows: factors of the rows; None for none.
        """
        # Not a hair more: a number above the last code would count as saturated.
        largest: Tensor = call("column_largest", g, None if rows is None else _above_zero(rows))
        scale = (self._middle * (1 - 2.0 ** (-22 if rows is None else -20)) / largest).clamp(max=MOST)
        return torch.where(largest == 0, 1.0, scale)

    def _column_limits(self, g: Tensor, rows: Tensor | None) -> Tensor:
        """Return the range of a tensor whose columns were multiplied by their scales.

        Where rows have factors, it is one range for each: the range over which its factor is the scale.
        """
        if rows is None:
            return g.new_tensor([-self._middle, self._middle], dtype=torch.float32)
        ends = self._middle / _above_zero(rows)
        return torch.stack([-ends, ends])

    def _has_rows(self, g: Tensor, fold: Tensor | None) -> bool:
        """Return True if each row of a matrix has its range, or its factor beside the scales of columns."""
        return (self.per == "row" and g.dim() == 2) or (self._has_columns(g) and fold is not None)

    def _remember(self, range: Tensor, counts: Tensor, setting: Setting) -> None:
        """Move the range towards that of a tensor which is finite and not zero."""
        if self.memory_size and not int(counts[1]):
            move_towards(setting.memory, range.flatten().tolist())

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        """Return the outcomes per tensor; None where a channel, column or row decides."""
        if self.per != "tensor":
            return None
        return stepped(x, numbers["step"], numbers["largest"], self.rounding)

    @property
    def bounded_by(self) -> Integers | None:
        return replace(self, per="tensor") if self.per != "tensor" else None

    def memory_words(self, memory: list[float]) -> Numbers:
        return {"low": memory[LOW], "high": memory[HIGH]} if memory and memory[SEEN] else {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        if not self.memory_size:
            return memory
        return memory * memory.new_tensor([factor, factor, 1.0])

    def __str__(self) -> str:
        words = [f"int{self.bits} levels"]
        if self.per != "tensor":
            words.append(f"per {self.per}")
        if self.symmetric:
            words.append("symmetric")
        if self.ranges == "hindsight":
            words.append("in hindsight")
        if self.power_of_two:
            words.append("steps of powers of two")
        return ", ".join([*words, *(["stochastic"] if self.rounding == "stochastic" else [])])


def _above_zero(rows: Tensor) -> Tensor:
    """Return factors of rows, the largest of which is near 1, with none so small that a scale would overflow.

    A row of zeros, whose factor is 0, is no part of dW whatever its gradient is; neither is one of 2^-60 of the others.
    """
    return rows.clamp(min=2.0**-60)
