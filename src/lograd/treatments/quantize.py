"""Rounding to a format of few bits, at a scale per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast, final

import numpy as np

from .. import ops, theory
from ..formats import Format, parse_format
from ..formats.values import check_rounding
from ..laws import LogNormal
from ..laws.law import Values
from ..ops.grid import grid_of
from .statistics import Statistics
from .treatment import Numbers, Outcomes, Treatment

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Scales are float32 and must stay normal numbers."""


@final
@dataclass(frozen=True)
class Quantize(Treatment):
    """Q(s g) / s, simulated: the values of the format in the gradient's own type, saturating.

    Args:
        format: a FloatFormat or IntFormat of at most 8 bits, or its text.
        scale: the rule of `theory.scale` by which s follows from the layer's law.  "max" keeps the largest magnitudes
            and loses the smallest; it takes the upper edge of the highest occupied bin, at most 1/16 too high.
        rounding: "stochastic" (unbiased inside the range) or "nearest".
    """

    format: Format
    scale: str = "max"
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    kind: ClassVar[str] = "quantize"
    number_names: ClassVar[tuple[str, ...]] = ("scale",)

    def __post_init__(self) -> None:
        if isinstance(self.format, str):
            object.__setattr__(self, "format", parse_format(self.format))
        grid_of(self.format)  # refuses what the operator cannot round to
        check_rounding(self.rounding, ("stochastic", "nearest"))
        theory.scale(LogNormal(0.0, 1.0), self.format, self.scale, count=2, maximum=1.0)  # refuses an unknown rule

    def numbers(self, statistics: Statistics) -> Numbers:
        scale = theory.scale(statistics.law, self.format, self.scale)
        return {"scale": float(np.clip(scale, SMALLEST, LARGEST))}

    def apply(self, g: Tensor, numbers: dict[str, Tensor], key: Tensor) -> ops.Counted:
        return cast(ops.Counted, ops.quantize(g, self.format, numbers["scale"], self.rounding, key, counted=True))

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        sides = [
            self._side(x, cells.edges, cells.points, numbers["scale"]) for cells in self.format.cells(self.rounding)
        ]
        values, probabilities = (np.concatenate(columns) for columns in zip(*sides, strict=True))
        return Outcomes(values, probabilities / len(sides))  # both signs are equally likely

    def _side(self, x: Values, edges: Values, points: Values, scale: float) -> Outcomes:
        y = x * scale
        index = np.searchsorted(edges, y, side="right") - 1
        if self.rounding == "nearest":
            return Outcomes(points[index][None] / scale, np.ones((1, x.size)))
        low, high = points[index], points[np.minimum(index + 1, points.size - 1)]
        with np.errstate(divide="ignore", invalid="ignore"):
            up = np.where(high > low, (y - low) / (high - low), 0.0)  # beyond the largest value there is no way up
        return Outcomes(np.stack([low, high]) / scale, np.stack([1 - up, up]))

    def __str__(self) -> str:
        return f"{self.format} scale {self.scale}" + ("" if self.rounding == "stochastic" else ", nearest")
