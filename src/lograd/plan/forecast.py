"""The growth of a gradient's energy that the noise of a plan is predicted to cause: does it explode over depth?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from ..errors import InvalidValue, sentence

LIMIT = 10.0
"""The limit of a growth that follows from measured noise: noise of three times the size of the gradient arrives then.

A MobileNetV3-small that had learned for a hundred steps went on learning under a predicted growth of 6, lost what it
had learned slowly under 21, and at once under 2600, in one run each.  A ResNet-20 of that age stays below 10, also at
90 %."""
BOUND_LIMIT = 1e7
"""The limit of a growth that is a bound.  Where layers stand in parallel less arrives: most bounds are far too high."""


@final
@dataclass(frozen=True)
class Forecast:
    """The layer whose gradient is predicted to grow most, and by how much its energy does.

    Args:
        layer: its name.
        factor: of the energy E[g^2], against that of a backward without the plan.
        measured: True if it follows from measured noise (`lograd.profile(noise=2)`).  Else it is what arrives if all
            layers stand in one row and noise travels as the gradient itself does: the product of 1 / cosine^2.
        handing_on: layers that are treated in the product for dX, and so hand noise on.
    """

    layer: str
    factor: float
    measured: bool
    handing_on: int

    def __post_init__(self) -> None:
        numbers = isinstance(self.factor, float | int) and self.factor >= 1 and type(self.handing_on) is int
        if not (numbers and isinstance(self.layer, str) and type(self.measured) is bool and self.handing_on >= 1):
            raise InvalidValue(sentence("growth of a plan", vars(self), "a layer, a factor from 1 on, and a count"))

    @property
    def explodes(self) -> bool:
        """True if the growth is worth a warning."""
        return self.factor > (LIMIT if self.measured else BOUND_LIMIT)

    def words(self) -> str:
        """Return a sentence for the table of a plan."""
        most = f"the energy of a gradient by up to {_times(self.factor)}, in {self.layer!r}"
        if self.measured:
            return f"Noise is predicted to multiply {most}, by noise that was measured in the profile."
        return (
            f"Noise may multiply {most}: a bound, if layers stand in one row and noise travels as the gradient does; "
            "profile(noise=2) measures it."
        )

    def warning(self) -> str:
        """Return the text of a warning, with advice."""
        layers = "1 layer hands" if self.handing_on == 1 else f"{self.handing_on} layers hand"
        grown = f"the energy of the gradient of {self.layer!r} by {_times(self.factor)}, as {layers} it on in dX"
        advice = (
            "prune the product for dW only (products='weight_gradient'), where nothing adds up, ask for less sparsity, "
            "or split it by measured noise; a network at its beginning grows noise most, so train it for a hundred "
            "steps first, and profile it again then"
        )
        if self.measured:
            return f"noise of this plan is predicted to multiply {grown}: it explodes; {advice}."
        return (
            f"noise of this plan may multiply {grown}; that is a bound, and a profile with noise=2 tells; "
            f"if it holds, {advice}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes this forecast again."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Any) -> Forecast:
        """Return the forecast that `to_json` was given; the exact inverse."""
        names = ("layer", "factor", "measured", "handing_on")
        if not isinstance(data, dict) or sorted(data) != sorted(names):
            raise InvalidValue(sentence("growth of a plan", data, "an object with " + ", ".join(names)))
        return cls(**data)


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor < 100 else f"{factor:.0e}"
