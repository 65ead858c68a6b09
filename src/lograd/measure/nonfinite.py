"""NaN and infinite gradients or losses in a profile: in which layers and steps, and the refusal to plan with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..errors import InvalidValue, sentence
from .records import LayerProfile, Record

MOST_NAMES = 3
"""Layers that a message names; it only counts the others."""


@final
@dataclass(frozen=True)
class NonFiniteLoss:
    """The first step at which the loss was NaN or infinite, its value there, and how many such steps there were."""

    step: int
    value: float
    steps: int = 1

    def words(self) -> str:
        """Return a clause such as "the loss was NaN at step 3 and at 2 more"."""
        more = f" and at {self.steps - 1} more" if self.steps > 1 else ""
        return f"the loss was {'NaN' if math.isnan(self.value) else 'infinite'} at step {self.step}{more}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the loss is a text, since JSON has no NaN."""
        return {"step": self.step, "value": str(self.value), "steps": self.steps}

    @classmethod
    def from_json(cls, data: Any) -> NonFiniteLoss:
        """Return the loss that `to_json` describes; InvalidValue for anything else."""
        names, values = ("step", "value", "steps"), ("nan", "inf", "-inf")
        if not isinstance(data, dict) or data.keys() != set(names) or data["value"] not in values:
            raise InvalidValue(sentence("loss of a profile", data, f"an object with {', '.join(names)}"))
        if type(data["step"]) is not int or type(data["steps"]) is not int:
            raise InvalidValue(sentence("loss of a profile", data, "an object with whole numbers of steps"))
        return cls(data["step"], float(data["value"]), data["steps"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonFiniteLoss) and self.to_json() == other.to_json()  # so NaN equals NaN

    __hash__ = None  # type: ignore[assignment]


def after_step(loss: NonFiniteLoss | None, step: int, value: float) -> NonFiniteLoss | None:
    """Return the record of non-finite losses after one more step.

    Args:
        loss: the record so far; None where all losses were finite.
        value: the loss at this step.
    """
    if math.isfinite(value):
        return loss
    return NonFiniteLoss(step, value) if loss is None else NonFiniteLoss(loss.step, loss.value, loss.steps + 1)


@final
@dataclass(frozen=True)
class NonFiniteLayer:
    """The first observed step at which a layer's gradient, or that of its weight, was not finite."""

    layer: str
    record: Record
    of_weight: bool
    steps: int
    """Observed steps at which it was not finite."""

    def words(self) -> str:
        """Return the layer's name, with how many elements were NaN or infinite at that step."""
        counts = {"NaN": self.record.nan, "infinite": self.record.infinities}
        found = " and ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        what = "elements of its weight's gradient" if self.of_weight else "elements"
        return f"{self.layer!r} ({found} of {self.record.elements:,} {what} at step {self.record.step})"


def nonfinite_layers(layers: Mapping[str, LayerProfile]) -> list[NonFiniteLayer]:
    """Return the layers with a NaN or infinite gradient, the earliest step first."""
    found = []
    for name, layer in layers.items():
        for side, records in ((False, layer.records), (True, layer.weight_records)):
            bad = [record for record in records if record.nan or record.infinities]
            if bad:
                found.append(NonFiniteLayer(name, bad[0], side, len(bad)))
                break
    return sorted(found, key=lambda one: one.record.step)


def nonfinite_words(layers: Mapping[str, LayerProfile], loss: NonFiniteLoss | None) -> str | None:
    """Return one sentence on all that was not finite; None where everything was finite."""
    found = nonfinite_layers(layers)
    if not found:
        return (
            None if loss is None else f"{loss.words()[0].upper()}{loss.words()[1:]}, though all gradients were finite."
        )
    text = f"NaN or infinite gradients in {len(found)} of {len(layers)} layers: {_named(found)}"
    return f"{text}; {loss.words()}." if loss is not None else f"{text}."


def refuse_nonfinite(layers: Mapping[str, LayerProfile], treated: Sequence[str], loss: NonFiniteLoss | None) -> None:
    """Raise InvalidValue if one of the layers to treat had a gradient that was not finite.

    Args:
        layers: all layers of the profile.
        treated: names of those that a plan would treat.
        loss: the first loss that was not finite, which may be the cause.
    """
    found = nonfinite_layers({name: layers[name] for name in treated})
    if not found:
        return
    why = "" if loss is None else f" ({loss.words()})"
    text = (
        f"no plan follows from NaN or infinite gradients, which the profile has in {len(found)} of the {len(treated)} "
        f"layers to treat: {_named(found)}; mend the loss or the data{why}, or lower the learning rate or the loss "
        "scale, and profile again"
    )
    if len(found) < len(treated):
        names = [one.layer for one in found]
        shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        text += f", or leave these layers alone as well (keep= or --keep: {shown})"
    raise InvalidValue(f"{text}.")


def _named(found: Sequence[NonFiniteLayer]) -> str:
    more = f", and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return ", ".join(one.words() for one in found[:MOST_NAMES]) + more
