"""The prediction of a profile for a plan: noise, in units of the variance that the minibatch itself has, and time.

No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from ..errors import InvalidValue, sentence
from ..files.checks import check_number, check_object, check_text

NUMBERS = ("penalty", "seconds", "dense_seconds")
"""Fields that a file may lack."""
FORMER = ("budget", "travel")
"""Fields of files from before 2026-11-18, for the guard of that time; they are not read."""


@final
@dataclass(frozen=True)
class Expected:
    """The noise and the time that a profile predicts of a plan.

    Args:
        rho: W / V, the variance that the plan's treatments add to the gradient of all parameters, over the variance
            that it has from minibatch to minibatch; None where theory does not tell.
        unit: V, in the unit of the squared gradient, at the time of the profile.
        unknown: the reason why rho is None; else empty.
        penalty: pi, the squared change of the exact gradient by the forward's rounding, over V.
        seconds: of a step with the plan; None where methods were not timed.
        dense_seconds: of the plain step.

    >>> Expected(0.25, 1.5).words()
    "Noise adds 0.25 of the minibatch's variance: a step is worth about one with 80 % of the samples."
    """

    rho: float | None
    unit: float
    unknown: str = ""
    penalty: float | None = None
    seconds: float | None = None
    dense_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.unit < math.inf:
            raise InvalidValue(sentence("unit of a plan's noise", self.unit, "finite and above zero"))
        for name in ("rho", *NUMBERS):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidValue(sentence(f"{name} of a plan", value, "finite, zero or positive"))
        if (self.rho is None) != bool(self.unknown):
            raise InvalidValue("a plan has either rho, its noise, or the reason why that is not known.")
        if (self.seconds is None) != (self.dense_seconds is None):
            raise InvalidValue("a plan has either both seconds and dense_seconds, or none of them.")

    @property
    def total(self) -> float | None:
        """rho + pi; None where rho is not known."""
        return None if self.rho is None else self.rho + (self.penalty or 0.0)

    @property
    def speed(self) -> float | None:
        """How many times as fast as the plain step one with the plan is; None where methods were not timed."""
        if self.seconds is None or self.dense_seconds is None:
            return None
        return self.dense_seconds / self.seconds if self.seconds > 0 else math.inf

    @property
    def progress(self) -> float | None:
        """Progress per second over that of the plain step: speed / (1 + rho + pi); None where one is not known."""
        return None if self.speed is None or self.total is None else self.speed / (1 + self.total)

    def words(self) -> str:
        """Return sentences for the table of a plan."""
        if self.total is None:
            return f"Noise in units of the minibatch's variance is not predicted: {self.unknown}."
        worth = 1 / (1 + self.total)
        samples = f"{worth:.0%}".replace("%", " %") if worth > 0.005 else "less than 1 %"
        parts = ""
        if self.penalty:
            parts = f" (rho {_number(self.rho or 0.0)} by the backward, pi {_number(self.penalty)} by the forward)"
        noise = f"Noise adds {_number(self.total)} of the minibatch's variance{parts}"
        return f"{self._time()}{noise}: a step is worth about one with {samples} of the samples."

    def _time(self) -> str:
        if self.speed is None or self.seconds is None or self.dense_seconds is None:
            return ""
        return (
            f"A step is predicted to take {1e3 * self.seconds:.4g} ms against {1e3 * self.dense_seconds:.4g} ms of the "
            f"plain one, {self.speed:.2f} times as fast. "
        )

    @property
    def brief(self) -> str:
        """Speed and noise in a few words; empty where noise is not known."""
        if self.total is None:
            return ""
        speed = "" if self.speed is None else f"{self.speed:.2f} times as fast, "
        return f"{speed}adds {_number(self.total)} of the minibatch's variance"

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes this value again."""
        found: dict[str, Any] = {"unit": self.unit}
        found |= {"unknown": self.unknown} if self.rho is None else {"rho": self.rho}
        found |= {name: value for name in NUMBERS if (value := getattr(self, name)) is not None}
        return found

    @classmethod
    def from_json(cls, data: Any) -> Expected:
        """Return the value that `to_json` was given; the exact inverse."""
        check_object("expected of a plan", data, ("unit",), ("rho", "unknown", *NUMBERS, *FORMER))
        numbers = {name: check_number(f"{name} of a plan", data[name], 0) for name in NUMBERS if name in data}
        return cls(
            check_number("rho of a plan", data["rho"], 0) if "rho" in data else None,
            check_number("unit of a plan's noise", data["unit"], 0),
            check_text("why noise of a plan is not known", data.get("unknown", "")),
            **numbers,
        )


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.1e}"
