"""The noise that a plan is predicted to add, in units of the variance that the minibatch itself has.  No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from ..errors import InvalidValue, sentence
from ..files.checks import check_number, check_object, check_text


@final
@dataclass(frozen=True)
class Expected:
    """The noise of a plan as a profile predicts it.

    Args:
        rho: W / V, the variance that the plan's treatments add to the gradient of all parameters, over the variance
            that it has from minibatch to minibatch; None where theory does not tell.
        unit: V, in the unit of the squared gradient, at the time of the profile.
        unknown: the reason why rho is None; else empty.

    >>> Expected(0.25, 1.5).words()
    "Noise adds 0.25 of the minibatch's variance: a step is worth about one with 80 % of the samples."
    """

    rho: float | None
    unit: float
    unknown: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.unit < math.inf:
            raise InvalidValue(sentence("unit of a plan's noise", self.unit, "finite and above zero"))
        if self.rho is not None and not 0 <= self.rho < math.inf:
            raise InvalidValue(sentence("rho of a plan", self.rho, "finite, zero or positive"))
        if (self.rho is None) != bool(self.unknown):
            raise InvalidValue("a plan has either rho, its noise, or the reason why that is not known.")

    def words(self) -> str:
        """Return a sentence for the table of a plan."""
        if self.rho is None:
            return f"Noise in units of the minibatch's variance is not predicted: {self.unknown}."
        worth = 1 / (1 + self.rho)
        samples = f"{worth:.0%}".replace("%", " %") if worth > 0.005 else "less than 1 %"
        return f"Noise {self.brief}: a step is worth about one with {samples} of the samples."

    @property
    def brief(self) -> str:
        """The noise in a few words; empty where it is not known."""
        return "" if self.rho is None else f"adds {_number(self.rho)} of the minibatch's variance"

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes this value again."""
        found: dict[str, Any] = {"unit": self.unit}
        return found | ({"unknown": self.unknown} if self.rho is None else {"rho": self.rho})

    @classmethod
    def from_json(cls, data: Any) -> Expected:
        """Return the value that `to_json` was given; the exact inverse."""
        check_object("expected of a plan", data, ("unit",), ("rho", "unknown"))
        return cls(
            check_number("rho of a plan", data["rho"], 0) if "rho" in data else None,
            check_number("unit of a plan's noise", data["unit"], 0),
            check_text("why noise of a plan is not known", data.get("unknown", "")),
        )


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.1e}"
