"""The multiply-adds of a whole training step, and the part of it that lograd does not treat.

Counted by a profile, saved with the plan, and read by tables and explanations.  No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..errors import InvalidValue, sentence

MOST_NAMES = 3
"""Names that a line of text shows of one kind; the value holds all."""


@final
@dataclass(frozen=True)
class Untreated:
    """A part of the model whose gradients no plan treats.

    Args:
        name: of the module or parameter in the model.
        kind: the class of the module, such as "LSTM", or "parameter".
        reason: why it is not treated.
        forward, backward: operations of its products in one step, two for each multiply-add; 0 for a lookup.
    """

    name: str
    kind: str
    reason: str
    forward: int = 0
    backward: int = 0

    @property
    def total(self) -> int:
        """Operations in forward and backward."""
        return self.forward + self.backward

    def words(self, step: StepWork | None) -> str:
        """Return the text beside its name: kind, reason, and its share of the step where that was counted."""
        return f"not treated ({self.kind}; {self.reason}){self._share(step)}"

    def _share(self, step: StepWork | None) -> str:
        if step is None:
            return ""
        return f": {percent(step.share(self.total))} of the step" if self.total else ": no multiply-adds"


@final
@dataclass(frozen=True)
class StepWork:
    """Operations of all products of one training step, two for each multiply-add.

    Args:
        forward: in the forward pass, of layers, functions and the loss.
        backward: in the backward pass.
        recomputed: in forward passes that activation checkpoints run again during the backward.
        untreated: what is in these counts and in no layer of the profile.
    """

    forward: int
    backward: int
    recomputed: int = 0
    untreated: tuple[Untreated, ...] = ()

    @property
    def total(self) -> int:
        """Operations of the whole step."""
        return self.forward + self.backward + self.recomputed

    def share(self, operations: float) -> float:
        """Return so many operations as a share of the whole step."""
        return operations / self.total if self.total else 0.0

    @classmethod
    def sum(cls, several: Sequence[StepWork]) -> StepWork:
        """Return the sum over several ranks, each with its part of the batch."""
        parts: dict[tuple[str, str, str], Untreated] = {}
        for part in (part for one in several for part in one.untreated):
            key = (part.name, part.kind, part.reason)
            before = parts.get(key, Untreated(*key))
            parts[key] = Untreated(*key, before.forward + part.forward, before.backward + part.backward)
        counts = {name: sum(getattr(one, name) for one in several) for name in ("forward", "backward", "recomputed")}
        return cls(**counts, untreated=tuple(parts.values()))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes these counts again."""
        counts = {"forward": self.forward, "backward": self.backward, "recomputed": self.recomputed}
        return counts | {"untreated": [vars(part) for part in self.untreated]}

    @classmethod
    def from_json(cls, data: Any) -> StepWork:
        """Return the counts that `to_json` was given; the exact inverse."""
        what = "the work of a step"
        _check(what, data, {"forward": int, "backward": int, "recomputed": int, "untreated": list})
        fields = {"name": str, "kind": str, "reason": str, "forward": int, "backward": int}
        for part in data["untreated"]:
            _check("an untreated part of a step", part, fields)
        return cls(**{**data, "untreated": tuple(Untreated(**part) for part in data["untreated"])})

    # -- words --

    def lines(self, layers: Mapping[str, tuple[int, int]]) -> list[str]:
        """Return lines on how the whole step divides and on its untreated parts.

        Args:
            layers: the operations for dX and dW of each layer.
        """
        return [f"{self.division(layers)}.", *_by_kind(self.untreated, self)] if self.total else []

    def division(self, layers: Mapping[str, tuple[int, int]]) -> str:
        """Return the parts of the whole step and their shares, in words."""
        backward = sum(map(sum, layers.values()))
        left = sum(part.total for part in self.untreated)
        forward = max(self.total - self.recomputed - left - backward, 0)
        parts = {
            "the products for dX and dW of these layers": backward,
            "their forward": forward,
            "what checkpoints compute again": self.recomputed,
            "what is not treated": left,
        }
        shares = [f"{percent(self.share(count))} in {what}" for what, count in parts.items() if count]
        text = "The multiply-adds of the whole training step, forward and backward: "
        return text + ", ".join(shares)


def _by_kind(parts: Iterable[Untreated], step: StepWork) -> list[str]:
    """Return a line for each kind and reason, those with the most work first."""
    groups: dict[tuple[str, str], list[Untreated]] = {}
    for part in parts:
        groups.setdefault((part.kind, part.reason), []).append(part)
    lines = []
    for (kind, reason), found in sorted(groups.items(), key=lambda item: -sum(part.total for part in item[1])):
        found = sorted(found, key=lambda part: -part.total)
        names = ", ".join(part.name for part in found[:MOST_NAMES])
        more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        counts = (sum(part.forward for part in found), sum(part.backward for part in found))
        lines.append(f"{names}{more}: {Untreated('', kind, reason, *counts).words(step)}.")
    return lines


def percent(share: float) -> str:
    """Return a share in percent with one digit; a small one is not shown as nothing."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _check(what: str, data: Any, fields: dict[str, type]) -> None:
    if not isinstance(data, dict) or data.keys() != fields.keys():
        raise InvalidValue(sentence(what, data, "an object with " + ", ".join(fields)))
    for name, kind in fields.items():
        if type(data[name]) is not kind or (kind is int and data[name] < 0):
            expected = {int: "a count of operations", str: "a text", list: "a list"}[kind]
            raise InvalidValue(sentence(f"{name} of {what}", data[name], expected))
