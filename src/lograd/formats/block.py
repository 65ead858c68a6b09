"""Block formats: elements of few bits that share one scale, as in the OCP microscaling (MX) formats and NVFP4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..errors import InvalidType, InvalidValue, sentence
from .float import FloatFormat
from .integer import IntFormat
from .values import Rounding, check_width


@final
@dataclass(frozen=True)
class BlockFormat:
    """A block of `size` elements with one scale; each decodes to decode(scale) * decode(element).

    The scale's own format says how it is chosen.  A scale of powers of two (no mantissa, as E8M0) follows the OCP MX
    rule 2^(floor(log2 max|x|) - emax): the largest element lands in the element format's top binade and may saturate
    there.  A scale with a mantissa (as E4M3 in NVFP4) is max|x| / element.max, rounded to nearest.

    Args:
        element: the format of each element.
        size: elements in a block.
        scale: the format of the shared scale; unsigned, or its sign is not used.

    The MX rule is that of [ocp2023], the NVFP4 block that of [nvidia2025].  NVIDIA adds a float32 scale per tensor; it
    is a factor in front of all blocks and not part of the block format.

    @techreport{ocp2023,
      title       = {OCP Microscaling Formats (MX) Specification, Version 1.0},
      institution = {Open Compute Project},
      year        = {2023}
    }

    @misc{nvidia2025,
      title  = {Pretraining Large Language Models with NVFP4},
      author = {NVIDIA},
      year   = {2025},
      eprint = {2509.25149},
      archivePrefix = {arXiv}
    }
    """

    element: FloatFormat | IntFormat
    size: int
    scale: FloatFormat

    def __post_init__(self) -> None:
        if not isinstance(self.element, FloatFormat | IntFormat):
            raise InvalidType(sentence("element of a block format", self.element, "a FloatFormat or an IntFormat"))
        if not isinstance(self.scale, FloatFormat):
            raise InvalidType(sentence("scale of a block format", self.scale, "a FloatFormat"))
        object.__setattr__(self, "size", check_width("size of a block", self.size, 1, 2**20))

    @property
    def bits_per_element(self) -> float:
        """Bits of storage for one element, its share of the scale included."""
        return self.element.bits + self.scale.bits / self.size

    def __str__(self) -> str:
        return f"{self.element}/{self.size}/{self.scale}"

    def scale_of(self, block: Sequence[float]) -> float:
        """Return the shared scale of a block, a value of the scale's format; NaN if the block holds NaN or infinity."""
        largest = max(map(abs, block), default=0.0)
        if not all(map(math.isfinite, block)):
            return math.nan
        if self.scale.mantissa:
            return self.scale.round(largest / self.element.max)
        emax = math.frexp(self.element.max)[1] - 1
        ideal = math.ldexp(1.0, max(math.frexp(largest)[1] - 1 - emax, -1074)) if largest else 0.0
        return self.scale.round(ideal, "toward_zero")

    def encode(
        self, block: Sequence[float], rounding: Rounding = "nearest", *, uniforms: Sequence[float] | None = None
    ) -> tuple[int, list[int]]:
        """Return the code of the scale and those of the elements, for a block of at most `size` elements.

        Args:
            block: values; elements beyond the range saturate.
            rounding: as for `Format.round`.
            uniforms: a draw from [0, 1) for each element, for stochastic rounding.
        """
        if len(block) > self.size:
            raise InvalidValue(
                sentence("a block", f"an array of {len(block)} elements", f"at most {self.size} elements")
            )
        scale = self.scale_of(block)
        if math.isnan(scale):  # only the scale can be NaN: element formats of 4 and 6 bits have none
            return self.scale.encode(scale), [0] * len(block)
        if uniforms is None and rounding == "stochastic":
            raise InvalidValue(f"stochastic rounding needs uniforms=, {len(block)} draws from [0, 1).")
        if uniforms is not None and len(uniforms) != len(block):
            raise InvalidValue(f"uniforms= must have one draw per element; got {len(uniforms)} for {len(block)}.")
        draws: Sequence[float | None] = [None] * len(block) if uniforms is None else uniforms
        scaled = [x / scale if scale else 0.0 for x in block]
        rounded = [self.element.round(x, rounding, uniform=u) for x, u in zip(scaled, draws, strict=True)]
        return self.scale.encode(scale), [self.element.encode(x) for x in rounded]

    def decode(self, scale: int, codes: Sequence[int]) -> list[float]:
        """Return the values of a block from the code of its scale and those of its elements."""
        factor = self.scale.decode(scale)
        return [factor * self.element.decode(code) for code in codes]

    def round(
        self, block: Sequence[float], rounding: Rounding = "nearest", *, uniforms: Sequence[float] | None = None
    ) -> list[float]:
        """Return the values that a block is rounded to, which is `decode(*encode(...))`."""
        return self.decode(*self.encode(block, rounding, uniforms=uniforms))
