"""The settings of a guard, the changes that it makes, and what must hold of its saved state."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from ..errors import InvalidType, InvalidValue, sentence
from ..files.checks import MAX_FLOAT, check_number, check_object, check_text, check_whole
from .place import check_place

LONGEST = 2**62
"""More steps than anybody makes."""


@final
@dataclass(frozen=True)
class Guard:
    """How `attach` guards a run against noise.

    Args:
        budget: the most guard noise: rho of the backward where the plan brings measured factors, else the
            noise-to-signal ratio in the worst layer.  None takes the budget that the plan was made for, or 1.
        fall_back: let treated layers with too much noise fall back, to fewer zeros, to 8 bits or to a gradient as it
            is; False only warns.
    """

    budget: float | None = None
    fall_back: bool = True

    def __post_init__(self) -> None:
        if self.budget is not None:
            check_number("budget of a guard", self.budget, 0, MAX_FLOAT)
            if not self.budget:
                raise InvalidValue(sentence("budget of a guard", self.budget, "above 0"))
        if not isinstance(self.fall_back, bool):
            raise InvalidType(sentence("fall_back of a guard", self.fall_back, "True or False"))


def check_guard(guard: bool | Guard | None) -> Guard | None:
    """Return the guard that was asked for: True is `Guard()`, False and None are none."""
    if isinstance(guard, Guard):
        return guard
    if guard is None or isinstance(guard, bool):
        return Guard() if guard else None
    raise InvalidType(sentence("guard", guard, "True, False or a Guard"))


class Change(NamedTuple):
    """A change that a guard has made to one layer."""

    step: int
    layer: str
    before: str
    after: str
    cause: str
    """"fits", "noise", "size" or "clipped"."""
    noise: float
    """The guard noise after it."""

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.layer} {self.before} -> {self.after} ({self.cause}; guard noise {self.noise:.2g})"
        )


def check_watch(state: Any, layers: Container[str]) -> None:
    """Refuse what is no state of a guard over these layers, in one sentence."""
    what = "the guard of a handle's state"
    check_object(what, state, ("references", "made", "schedule", "measured", "changes", "layers"))
    for name in ("references", "made"):
        check_whole(f"{name} of {what}", state[name], 0, LONGEST)
    for name, count in (("schedule", 7), ("measured", 4)):
        if not isinstance(state[name], list) or len(state[name]) != count:
            raise InvalidValue(sentence(f"{name} of {what}", state[name], f"{count} numbers"))
    for value in state["schedule"]:
        check_whole(f"schedule of {what}", value, -1, LONGEST)
    for value in state["measured"]:
        check_number(f"measured of {what}", value, 0)
    if not isinstance(state["changes"], list) or not isinstance(state["layers"], dict):
        raise InvalidValue(sentence(what, state, "given changes as a list, and layers by name"))
    for change in state["changes"]:
        if not isinstance(change, list | tuple) or len(change) != len(Change._fields):
            raise InvalidValue(sentence(f"a change of {what}", change, f"{len(Change._fields)} values"))
        check_whole(f"the step of a change of {what}", change[0])
        for text in change[1:5]:
            check_text(f"a change of {what}", text)
        check_number(f"the noise of a change of {what}", change[5], 0)
    for name, place in state["layers"].items():
        if name not in layers:
            raise InvalidValue(f"{what} has a layer {str(name)[:60]!r}, and no layer of that name is treated.")
        check_place(name, place)
