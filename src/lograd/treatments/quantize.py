"""Rounding to a format of few bits, at a scale per layer or at one scale for all."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, cast, final

import numpy as np

from .. import ops, theory
from ..errors import InvalidValue
from ..formats import FloatFormat, Format, parse_format
from ..formats.values import check_rounding
from ..laws import LogNormal
from ..laws.law import Values
from ..ops.arguments import Rounding, scalar
from ..ops.coded import Encoded
from ..ops.codes import levels_of, reason_without_levels
from ..ops.elementwise import arguments_of, grid_of
from ..ops.registry import call
from ..theory.clipping import CRITERIA
from .statistics import Statistics
from .treatment import RARE, Coded, Numbers, Outcomes, Setting, check_choice

if TYPE_CHECKING:
    from torch import Tensor

Overflow = Literal["saturate", "infinity"]
SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Scales are float32 and must stay normal numbers."""
_POWER = re.compile(r"2\^(-?\d{1,3})")


@final
@dataclass(frozen=True)
class Quantize(Coded):
    """Q(s g) / s, simulated: the values of the format in the gradient's own type.

    Args:
        format: a FloatFormat or IntFormat of at most 8 bits, or its text.
        scale: the rule of `theory.scale` by which s follows from the layer's law.  "max" keeps the largest magnitudes
            and loses the smallest; it takes the upper edge of the highest occupied bin, at most 1/16 too high.
            "mean-3" is what the released code of [chmiel2021] does.  "2^13" is the same for every layer and step: the
            static global loss scale of that paper's Table 4, as scaling by powers of two commutes with everything else.
            "squared" and "cosine" cut off what makes the squared error least or the cosine largest
            (`theory.best_scale`).
        rounding: "stochastic" (unbiased inside the range) or "nearest".
        overflow: "saturate" at the largest value, or "infinity", where a value that would be rounded beyond it becomes
            infinite.  With scale "2^0" and a GradScaler around the training step that is dynamic global loss scaling
            [micikevicius2018] which sees the overflow of the low-bit format: the step is skipped, the scale halved.

    @inproceedings{micikevicius2018,
      title     = {Mixed Precision Training},
      author    = {Micikevicius, Paulius and Narang, Sharan and Alben, Jonah and Diamos, Gregory and Elsen, Erich and
                   Garcia, David and Ginsburg, Boris and Houston, Michael and Kuchaiev, Oleksii and Venkatesh, Ganesh
                   and Wu, Hao},
      booktitle = {International Conference on Learning Representations},
      year      = {2018}
    }
    """

    format: Format
    scale: str = "max"
    rounding: Rounding = "stochastic"
    overflow: Overflow = field(default="saturate", metadata=RARE)
    kind: ClassVar[str] = "quantize"
    changeable: ClassVar[frozenset[str]] = frozenset({"format", "scale", "rounding"})

    def __post_init__(self) -> None:
        if isinstance(self.format, str):
            object.__setattr__(self, "format", parse_format(self.format))
        grid_of(self.format)  # refuses what the operator cannot round to
        check_rounding(self.rounding, ("stochastic", "nearest"))
        check_choice("overflow", self.overflow, ("saturate", "infinity"))
        fixed = self.fixed_scale
        if fixed is None and self.scale not in CRITERIA:
            theory.scale(LogNormal(0.0, 1.0), self.format, self.scale, count=2, maximum=1.0)  # refuses an unknown rule
        elif fixed is not None and not SMALLEST <= fixed <= LARGEST:
            raise InvalidValue(f"scale must lie between 2^-126 and 2^127; got {self.scale!r}.")

    @property
    def fixed_scale(self) -> float | None:
        """The scale that no statistics change; None where a rule gives it."""
        match = _POWER.fullmatch(str(self.scale))
        return 2.0 ** int(match[1]) if match else None

    @property
    def number_names(self) -> tuple[str, ...]:
        return ("scale",) if self.fixed_scale is None else ()

    @property
    def unbiased(self) -> bool:
        """True for stochastic rounding at scale "max", the one rule that keeps all inside the range, one step late."""
        return self.rounding == "stochastic" and self.scale == "max"

    @property
    def overflows(self) -> bool:
        return self.overflow == "infinity"

    @property
    def element_bits(self) -> float:
        return self.format.bits

    def numbers(self, statistics: Statistics) -> Numbers:
        fixed = self.fixed_scale
        scale: Values | float
        if fixed is not None:
            scale = fixed
        elif self.scale in CRITERIA:
            scale = theory.best_scale(statistics.law, self.format, self.scale, self.rounding)  # type: ignore[arg-type]
        else:
            scale = theory.scale(statistics.law, self.format, self.scale)
        finite = self.format.max / float(np.finfo(np.float32).max)  # the top of the format stays a number
        return {"scale": float(np.clip(scale, max(SMALLEST, np.nextafter(finite, np.inf)), LARGEST))}

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        scale = setting.numbers.get("scale", self.fixed_scale)
        assert scale is not None
        # The operator itself: what the public function checks was checked when the site was made.
        arguments = (*arguments_of(self.format), self.rounding == "stochastic", setting.key, True)
        result = ops.Counted(*call("quantize", g, scalar("scale", scale, g, SMALLEST), *arguments))
        return self._overflowing(g, scale, result) if self.overflow == "infinity" and result.counts[2] else result

    @property
    def can_encode(self) -> bool:
        """True unless `overflow` is "infinity", for which few formats have a code."""
        return self.overflow == "saturate"

    @property
    def level_bits(self) -> int:
        return level_bits(self.format) if self.can_encode else 0

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        if not self.can_encode:
            raise InvalidValue(f"{self} has no code for infinity in most formats; apply it, or let it saturate.")
        scale = setting.numbers.get("scale", self.fixed_scale)
        assert scale is not None
        return cast(Encoded, ops.pack_codes(g, self.format, scale, self.rounding, setting.key, counted=True))

    def _overflowing(self, g: Tensor, scale: Tensor | float, rounded: ops.Counted) -> ops.Counted:
        beyond = (g.float().abs() * scale) > self._limit
        infinite = g.new_full((), float("inf")).copysign(g)
        counts = rounded.counts.clone()
        counts[2] = beyond.sum()
        return ops.Counted(rounded.result.where(~beyond, infinite), counts)

    @property
    def _limit(self) -> float:
        """The largest magnitude that is not rounded beyond the format; stochastically, all beyond its end are."""
        if self.rounding == "stochastic":
            return self.format.max
        spacing = 2.0 ** (self.format.emax - self.format.mantissa) if isinstance(self.format, FloatFormat) else 1.0
        return float(np.nextafter(np.float32(self.format.max + spacing / 2), np.float32(0)))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        return (
            None if self.overflow == "infinity" else rounding_outcomes(x, self.format, numbers["scale"], self.rounding)
        )

    def __str__(self) -> str:
        words = [self.rounding] * (self.rounding == "nearest") + ["overflows"] * (self.overflow == "infinity")
        return ", ".join([f"{self.format} scale {self.scale}", *words])


def level_bits(format: Format) -> int:
    """Return the bits of the whole numbers that the numbers of a format are multiples of; 0 where these are too large.

    >>> level_bits(parse_format("int4")), level_bits(parse_format("1-3-0")), level_bits(parse_format("1-5-2"))
    (4, 8, 0)
    """
    text = str(format)
    if reason_without_levels(text):
        return 0
    found = levels_of(text)
    return format.bits if found.identity else max(found.table).bit_length()


def rounding_outcomes(x: Values, format: Format, scale: float, rounding: Rounding) -> Outcomes:
    """Return the outcomes of magnitudes rounded to a format; both signs are equally likely."""
    sides = [_side(x, cells.edges, cells.points, scale, rounding) for cells in format.cells(rounding)]
    values, probabilities = (np.concatenate(columns) for columns in zip(*sides, strict=True))
    return Outcomes(values, probabilities / len(sides))


def _side(x: Values, edges: Values, points: Values, scale: float, rounding: Rounding) -> Outcomes:
    y = x * scale
    index = np.searchsorted(edges, y, side="right") - 1
    if rounding == "nearest":
        return Outcomes(points[index][None] / scale, np.ones((1, x.size)))
    low, high = points[index], points[np.minimum(index + 1, points.size - 1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(high > low, (y - low) / (high - low), 0.0)  # beyond the largest value there is no way up
    return Outcomes(np.stack([low, high]) / scale, np.stack([1 - up, up]))


def stepped(x: Values, step: float, largest: float, rounding: Rounding) -> Outcomes:
    """Return the outcomes of magnitudes rounded to multiples of a step, the last of them `largest`."""
    inside = np.minimum(x, largest) / step
    if rounding == "nearest":
        return Outcomes(np.rint(inside)[None] * step, np.ones((1, x.size)))
    low = np.floor(inside)
    up = inside - low
    return Outcomes(np.stack([low, low + 1]) * step, np.stack([1 - up, up]))
