"""The error that clipped levels make on a layer's gradient, on all of it and on its large elements, while training.

It follows from the histogram that was taken last and from the interval in force, so that it costs nothing in a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import final

from .. import theory
from ..formats import IntFormat
from ..laws import Empirical
from ..report.text import TextTable, text_table
from ..theory.intervals import ALPHA
from ..treatments import Interval, Numbers, Quantize, Treatment
from ..treatments.quantize import Rounding
from .refresh import OperandStatistics


@final
@dataclass(frozen=True)
class LayerInterval:
    """The interval of one gradient and its errors, in units of the largest magnitude; see `lograd.theory.intervals`."""

    step: int
    """The step in which the gradient was counted."""
    gamma: float
    """The end of the levels in force, as a share of the largest magnitude."""
    gamma_by_law: float
    """The gamma that [kim2024] asks for: `theory.optimal_interval`."""
    error_all: float
    error_large: float
    bound: float
    """The paper's bound on `error_large`."""
    clipped: float
    """The share of elements beyond the interval."""

    def to_json(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


@final
class Intervals(dict[str, LayerInterval]):
    """The intervals of a handle by layer, or by layer and site where the two products differ.  Printed, a table."""

    def table(self) -> TextTable:
        """Return a row for each layer."""
        columns = ["layer", "step", "gamma", "gamma by law", "error, all", "error, large", "its bound", "clipped"]
        rows = [
            [name, str(one.step), *(f"{number:.3g}" for name, number in one.to_json().items() if name != "step")]
            for name, one in self.items()
        ]
        return text_table("Intervals of gradients", columns, rows, "errors in units of the largest magnitude")

    def __str__(self) -> str:
        return str(self.table())


def intervals_of(gradients: Mapping[str, OperandStatistics], loss_scale: float, alpha: float | None) -> Intervals:
    """Return the intervals of all gradients that are rounded to levels over one symmetric range.

    Args:
        gradients: by layer; those without statistics so far are left out.
        alpha: the share of elements that counts as large; None for that of the treatment, 0.001 where it has none.
    """
    found = Intervals()
    for layer, statistics in gradients.items():
        single = {name: site for name, site in statistics.operand.sites.items() if len(site.treatments) == 1}
        levels = {name: site for name, site in single.items() if isinstance(site.treatments[0], Interval | Quantize)}
        if statistics.table is None or not levels:
            continue
        law = statistics.statistics(loss_scale).law
        for name, site in levels.items():
            one = _interval(law, site.treatments[0], site.numbers_and_memory()[0], statistics.step, alpha)
            if one is not None:
                found[layer if name == "gradient" else f"{layer}.{name}"] = one
    return found


def _interval(law: Empirical, one: Treatment, numbers: Numbers, step: int, alpha: float | None) -> LayerInterval | None:
    """Return the interval of a treatment with numbers in force; None where it has none."""
    bits: int
    rounding: Rounding
    if isinstance(one, Interval) and numbers.get("gamma"):
        bits, rounding, gamma = one.bits, one.rounding, numbers["gamma"]
        large = one.alpha if alpha is None else alpha
    elif isinstance(one, Quantize) and isinstance(one.format, IntFormat) and one.format.signed and one.format.bits <= 8:
        scale = numbers.get("scale", one.fixed_scale)
        if not scale:
            return None
        # A level more on the negative side, which two's complement has, is left out of account.
        bits, rounding, gamma = one.format.bits, one.rounding, one.format.max / scale / float(law.maximum)
        large = ALPHA if alpha is None else alpha
    else:
        return None
    errors = theory.interval_errors(law, bits, gamma, large, rounding)
    return LayerInterval(
        step, float(gamma), float(theory.optimal_interval(law, bits, large)), float(errors.all), float(errors.large),
        float(errors.bound), float(errors.clipped),
    )  # fmt: skip
