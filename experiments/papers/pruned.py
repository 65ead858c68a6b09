"""Parts that experiments with pruned gradients share: ways to split a sparsity over layers, and the noise of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from torch import nn

from lograd import Plan, Profile
from lograd.laws.law import Values
from lograd.theory import Propagation
from lograd.treatments import ProductPlan, Prune

from ..lab import Config, load_data, session_of

Maker = Callable[[Profile, float], Plan]
"""From a profile and a sparsity to a plan."""


def begun(config: Config, steps: int) -> tuple[nn.Module, Any]:
    """The network of a config after some dense steps at a constant learning rate, and the next batch."""
    plain = replace(config, steps=max(steps, 1), epochs=None, schedule="constant", weight_decay=0.0)
    session = session_of(plain, load_data(plain))
    for _ in range(steps):
        session.step()
    return session.model, next(session.batches)


def uniform(profile: Profile, sparsity: float) -> Plan:
    """One sparsity for all layers but the last."""
    return profile.plan(sparsity=sparsity, allocation="uniform", everywhere=True)


def everything(profile: Profile, sparsity: float) -> Plan:
    """One sparsity for all layers, the last one too."""
    return profile.plan(sparsity=sparsity, allocation="uniform", keep=(), everywhere=True)


def ends_kept(profile: Profile, sparsity: float) -> Plan:
    """One sparsity for all layers but the first and the last."""
    return profile.plan(sparsity=sparsity, allocation="uniform", keep=("first", "last"), everywhere=True)


def cosine(profile: Profile, sparsity: float) -> Plan:
    """Sparsities that give all layers the same cosine."""
    return profile.plan(sparsity=sparsity, allocation="cosine", everywhere=True)


def noise(profile: Profile, sparsity: float) -> Plan:
    """Sparsities that bring the least noise into the weight gradients."""
    return profile.plan(sparsity=sparsity, allocation="noise", everywhere=True)


def split(profile: Profile, sparsity: float) -> Plan:
    """The least noise, with sparsities of their own for the two products of a layer."""
    return profile.plan(sparsity=sparsity, allocation="noise", split=True, everywhere=True)


def two_copies(profile: Profile, sparsity: float) -> Plan:
    """One sparsity for all layers, with a copy of its own for each product: the two differ in the fourth digit."""
    plan = uniform(profile, sparsity)
    layers = {
        name: replace(
            layer,
            input_gradient=ProductPlan((Prune(sparsity),)),
            weight_gradient=ProductPlan((Prune(sparsity + 1e-4),)),
        )
        for name, layer in plan.layers.items()
    }
    return replace(plan, layers=layers)


@final
@dataclass(frozen=True)
class Predicted:
    """The noise that a plan is predicted to bring into the weight gradients."""

    factors: Propagation
    input: Values
    weight: Values
    """Noise-to-signal ratios of the layers in the two products."""

    @classmethod
    def of(cls, profile: Profile, plan: Plan, left: dict[str, float] | None = None) -> Predicted:
        """Predict it from the noise that was measured with the profile.

        Args:
            profile: with measured noise.
            plan: made from it.
            left: the share of the noise in a layer's own dW that is left, by layer; None leaves all of it.
        """
        assert profile.noise is not None
        names = list(plan.layers)
        found = profile.noise.factors.among(profile.noise.places(names))
        share = np.array([1.0 if left is None else left[name] for name in names])
        input, weight = (
            np.array([1 / getattr(plan.layers[name], side).cosine ** 2 - 1 for name in names])
            for side in ("predicted_input_gradient", "predicted_weight_gradient")
        )
        input *= np.array([plan.evidence.work[name][0] > 0 for name in names])
        return cls(Propagation(share * found.own, found.passed, found.transfer), input, weight)

    def numbers(self) -> dict[str, float]:
        """The sum over layers of |error of dW|^2 / |dW|^2, and the largest growth of a gradient's energy."""
        total = self.factors.total(self.input, self.weight)
        return {"noise": total, "growth": float(self.factors.growth(self.input).max())}

    def won_by_keeping(self, place: int) -> float:
        """The share of the noise that is gone if a layer is not pruned."""
        others = np.arange(self.input.size) != place
        return 1 - self.factors.total(self.input * others, self.weight * others) / self.numbers()["noise"]
