"""Levels whose range is learned: the clip is a parameter, with a gradient of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final, get_args

import torch

from ..formats.values import check_width
from ..ops.registry import call
from .integers import ToLevels
from .tensors import finite_part, steady_square_sum, steady_sum
from .treatment import Numbers, Setting, check_choice

if TYPE_CHECKING:
    from torch import Tensor

Method = Literal["clip", "lsq"]
CLIP, SIGNED, INITIAL = range(3)
SMALLEST, LARGEST = 1e-12, 1e38
"""A clip that an optimizer moved beyond one of these is taken as it."""


@final
@dataclass(frozen=True)
class Learned(ToLevels):
    """Levels over [-c, c], or over [0, c] where the first tensor has nothing negative, with a clip c that is learned.

        x_q = s clamp(round(x / s), -Q, Q)        s = c / Q        Q = 2^(bits - 1) - 1

    and with 0 and Q = 2^bits - 1 for the ends where it is unsigned.

    The gradient of c is that of LSQ [esser2020]: rounding counts as the identity, so

        d x_q / d c = (round(x / s) - x / s) / Q inside, -1 or 1 outside,

    and the gradient of x is that of x_q inside, and 0 outside.

    Args:
        bits: 2 to 8.
        method: "clip", the clips of [kim2024]: c starts at 3 standard deviations of x, and unsigned, where x is taken
            for the positive half of a normal law, at 3 std(x) / sqrt(1 - 2 / pi).  "lsq": c starts at 2 E|x| sqrt(Q),
            and its gradient is divided by sqrt(n Q), n the number of elements.

    The handle has a parameter for it (`handle.parameters()`), for an optimizer of its own: the clip is its initial
    value plus that parameter.

    @inproceedings{esser2020,
      title     = {Learned Step Size Quantization},
      author    = {Esser, Steven K. and McKinstry, Jeffrey L. and Bablani, Deepika and Appuswamy, Rathinakumar and
                   Modha, Dharmendra S.},
      booktitle = {International Conference on Learning Representations},
      year      = {2020}
    }
    """

    bits: int
    method: Method = "clip"
    kind: ClassVar[str] = "learned"
    learns: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_width("bits", self.bits, 2, 8)
        check_choice("method", self.method, get_args(Method))

    @property
    def memory_size(self) -> int:
        """The clip, 0 before the first tensor; 1 if there are levels below zero; and the clip at first."""
        return 3

    def follow(self, x: Tensor, learned: float, memory: Tensor) -> None:
        """Set the clip to its initial value, from the first tensor that is not empty, plus its parameter."""
        _, signed, initial = memory.tolist()
        if not initial:
            signed, initial = self._start(x)
        clip = min(max(initial + learned, SMALLEST), LARGEST) if initial else 0.0
        memory.copy_(memory.new_tensor([clip, signed, initial]))

    def _start(self, x: Tensor) -> tuple[bool, float]:
        """Return if a first tensor has negative elements, and the clip that it suggests; 0 where it has but zeros."""
        values = finite_part(x)
        if not values.numel():
            return False, 0.0
        signed = bool((values < 0).any())
        magnitude = float(steady_sum(values.abs())) / values.numel()
        if self.method == "lsq":
            return signed, 2 * magnitude * math.sqrt(self._largest(signed))
        mean = float(steady_sum(values)) / values.numel()
        spread = math.sqrt(max(float(steady_square_sum(values)) / values.numel() - mean * mean, 0.0))
        if spread <= 1e-6 * magnitude:  # all elements alike
            return signed, magnitude
        return signed, 3 * spread if signed else 3 * spread / math.sqrt(1 - 2 / math.pi)

    def learn(self, g: Tensor, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and of the parameter (float32, one), from that of the treated x."""
        clip, signed, _ = memory.tolist()
        if not clip:
            return g.clone(), memory.new_zeros(1, dtype=torch.float32)
        largest = self._largest(signed)
        d_x, by_step = call("range_gradients", g, x, largest / clip, -largest if signed else 0, largest)
        # A step is c / Q, so that the gradient of c is that of the step divided by Q.
        factor = 1.0 if self.method == "clip" else 1 / math.sqrt(max(x.numel(), 1) * largest)
        return d_x, (by_step * (factor / largest)).to(memory.device, torch.float32)

    def _arguments(self, g: Tensor, setting: Setting) -> tuple[Any, ...]:
        if not float(setting.memory[INITIAL]):  # a first tensor gives the range
            self.follow(g, 0.0, setting.memory)
        clip, signed, _ = setting.memory.tolist()
        return self._between(-clip if signed else 0.0, clip, g, setting)

    def _largest(self, signed: float) -> int:
        return int(2 ** (self.bits - 1) - 1 if signed else 2**self.bits - 1)

    def memory_words(self, memory: list[float]) -> Numbers:
        return {"clip": memory[CLIP]} if memory[CLIP] else {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        """Return the memory: weights and activations do not follow a loss scale."""
        return memory

    def __str__(self) -> str:
        return f"int{self.bits} levels, {'LSQ' if self.method == 'lsq' else 'learned clip'}"
