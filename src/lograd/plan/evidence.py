"""The evidence beside a plan: the work of a step, predicted noise and time, and the growth of noise.  No torch here.

A profile computes it, the plan's file keeps it, tables and explanations read it.  It changes nothing in training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from ..files import from_plain, to_plain
from ..treatments import Statistics

MOST_NAMES = 3
"""Names that a line of text shows of one kind; the value holds all."""
LIMIT = 10.0
"""The limit of a growth that follows from measured noise: noise of three times the size of the gradient arrives then.

A MobileNetV3-small that had learned for a hundred steps went on learning under a predicted growth of 6, lost what it
had learned slowly under 21, and at once under 2600, in one run each.  A ResNet-20 of that age stays below 10, also at
90 %."""


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
        share = "" if step is None else f": {percent(step.share(self.total))} of the step"
        return f"not treated ({self.kind}; {self.reason}){share if self.total else share and ': no multiply-adds'}"


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

    def lines(self, layers: Mapping[str, tuple[int, int]]) -> list[str]:
        """Return lines on how the whole step divides and on its untreated parts, those with the most work first.

        Args:
            layers: the operations for dX and dW of each layer.
        """
        groups: dict[tuple[str, str], list[Untreated]] = {}
        for part in sorted(self.untreated, key=lambda part: -part.total):
            groups.setdefault((part.kind, part.reason), []).append(part)
        lines = [f"{self.division(layers)}."] if self.total else []
        for (kind, reason), found in sorted(groups.items(), key=lambda item: -sum(part.total for part in item[1])):
            counts = (sum(part.forward for part in found), sum(part.backward for part in found))
            names = listed([part.name for part in found], MOST_NAMES)
            lines += [f"{names}: {Untreated('', kind, reason, *counts).words(self)}."] if self.total else []
        return lines

    def division(self, layers: Mapping[str, tuple[int, int]]) -> str:
        """Return the parts of the whole step and their shares, in words."""
        backward = sum(map(sum, layers.values()))
        left = sum(part.total for part in self.untreated)
        parts = {
            "the products for dX and dW of these layers": backward,
            "their forward": max(self.total - self.recomputed - left - backward, 0),
            "what checkpoints compute again": self.recomputed,
            "what is not treated": left,
        }
        shares = [f"{percent(self.share(count))} in {what}" for what, count in parts.items() if count]
        return "The multiply-adds of the whole training step, forward and backward: " + ", ".join(shares)


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


@final
@dataclass(frozen=True)
class Forecast:
    """The layer whose gradient is predicted to grow most by the noise of a plan, and by how much its energy does.

    Args:
        layer: its name.
        factor: of the energy E[g^2], against that of a backward without the plan.
        handing_on: layers that are treated in the product for dX, and so hand noise on.
    """

    layer: str
    factor: float
    handing_on: int

    @property
    def explodes(self) -> bool:
        """True if the growth is worth a warning."""
        return self.factor > LIMIT

    def words(self) -> str:
        """Return a sentence for the table of a plan."""
        grown = f"by up to {_times(self.factor)}, in {self.layer!r}"
        return f"Noise is predicted to multiply the energy of a gradient {grown}."

    def warning(self) -> str:
        """Return the text of a warning, with advice."""
        layers = "1 layer hands" if self.handing_on == 1 else f"{self.handing_on} layers hand"
        grown = f"the energy of the gradient of {self.layer!r} by {_times(self.factor)}, as {layers} it on in dX"
        advice = (
            "prune the product for dW only (products='weight_gradient'), where nothing adds up, ask for less sparsity, "
            "or split it by measured noise; a network at its beginning grows noise most, so train it for a hundred "
            "steps first, and profile it again then"
        )
        return f"noise of this plan is predicted to multiply {grown}: it explodes; {advice}."


@final
@dataclass(frozen=True)
class Evidence:
    """What a profile knows of a plan.

    Args:
        work: operations of the products for dX and dW of each layer per step in the profile, kept layers included.
        step: operations of the whole training step in the profile, and what of it no plan treats, where it was counted.
        growth: by how much noise is predicted to multiply the energy of a gradient; None if that is not known.
        unpruned: layers that are rounded and not pruned as others are, and why.
        expected: noise and time, in units of the minibatch's own variance and of the plain step; None where the profile
            has not measured the noise.
        statistics: the laws behind the predictions; not saved.
    """

    work: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    step: StepWork | None = None
    growth: Forecast | None = None
    unpruned: Mapping[str, str] = field(default_factory=dict)
    expected: Expected | None = None
    statistics: Mapping[str, Statistics] = field(default_factory=dict, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without what is not known, of which `from_dict` makes this evidence again."""
        known: dict[str, Any] = to_plain(replace(self, statistics={}))
        return {name: value for name, value in known.items() if value not in (None, {})}

    @classmethod
    def from_dict(cls, data: Any) -> Evidence:
        """Return the evidence that `to_dict` was given; the exact inverse."""
        found: Evidence = from_plain(cls, data, "the evidence of a plan")
        return found


def percent(share: float) -> str:
    """Return a share in percent with one digit; a small one is not shown as nothing."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.1e}"


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor < 100 else f"{factor:.0e}"
