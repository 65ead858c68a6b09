"""The plan of a choice among methods: the treatment of each layer, why others are left alone, and what is expected."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ..errors import LogradWarning
from ..laws.law import Values
from ..plan import Expected, LayerPlan, Plan, predicted
from ..plan.forecast import Forecast
from ..theory import Choice, Propagation
from ..treatments import Statistics
from .methods import DENSE, method
from .noisy import statistics_of
from .nonfinite import NonFiniteLoss, refuse_nonfinite
from .optimizer import Goal, Measurements, PlanProblem, Restriction, plan_problem
from .planner import keep_patterns, kept_layers
from .records import LayerProfile


def problem_of(
    found: Measurements, keep: str | Iterable[str], allowed: Restriction, loss: NonFiniteLoss | None = None
) -> PlanProblem:
    """Return the problem of a profile's linear layers and convolutions.

    Args:
        found: what the profile has measured.
        keep: layers that are left alone, as for `Profile.plan`.
        allowed: the methods that may be used.
        loss: the first NaN or infinite loss of the profile.
    """
    layers = _supported(found.layers)
    kept = kept_layers(layers, keep_patterns(keep))
    refuse_nonfinite(layers, [name for name in layers if name not in kept], loss)
    for name in layers:
        if name not in found.menus.layers:
            kept.setdefault(name, "it was not timed")
    return plan_problem(found, kept, allowed)


def build(found: Measurements, task: PlanProblem, goal: Goal) -> Plan:
    """Return the plan that reaches a goal, with the predictions of `Plan.expected` and `Plan.growth`.

    A plan that leaves all layers alone says why: nothing is faster, or the noise is not worth it.
    """
    layers = _supported(found.layers)
    choice = task.choose(goal)
    statistics = {name: one for name, layer in layers.items() if (one := statistics_of(layer)) is not None}
    chosen = {name: used for name, used in task.methods(choice).items() if used != DENSE}
    plans = {name: _layer(chosen[name], layers[name], statistics.get(name)) for name in layers if name in chosen}
    reasons = task.reasons(choice)
    growth = _growth(task, choice)
    if growth is not None and growth.explodes:
        warnings.warn(growth.warning(), LogradWarning, stacklevel=3)
    return Plan(
        plans,
        {name: reasons[name] for name in layers if name in reasons},
        work={name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in layers.items()},
        statistics=statistics,
        growth=growth,
        normalization=task.normalization > 0 and bool(plans),
        expected=_expected(found, task, choice if plans else replace(choice, seconds=task.dense), goal),
    )


def _supported(layers: Mapping[str, LayerProfile]) -> dict[str, LayerProfile]:
    return {name: layer for name, layer in layers.items() if layer.flops_weight is not None}


def _layer(name: str, layer: LayerProfile, statistics: Statistics | None) -> LayerPlan:
    """Return a method's plan with what theory predicts of the layer's gradient."""
    plan = method(name).plan
    dX, dW = plan.input_gradient.gradient, plan.weight_gradient.gradient
    return replace(
        plan,
        elements=layer.elements,
        masked=statistics.masked if statistics is not None else 0.0,
        predicted_input_gradient=predicted(dX, statistics) if dX else None,
        predicted_weight_gradient=predicted(dW, statistics) if dW else None,
    )


def _growth(task: PlanProblem, choice: Choice) -> Forecast | None:
    """Return the growth of the gradient that noise multiplies most; None where no layer hands noise on."""
    noise = [menu[place].input_noise for menu, place in zip(task.problem.menus, choice.places, strict=True)]
    handing_on = sum(one > 0 for one in noise)
    if not handing_on:
        return None
    growth = 1 + task.problem.levels(choice.places)
    worst = int(np.argmax(growth))
    return Forecast(task.names[worst], _digits(max(float(growth[worst]), 1.0)), True, handing_on)


def _expected(found: Measurements, task: PlanProblem, choice: Choice, goal: Goal) -> Expected:
    # Up to this noise a faster step gains more than noise takes, which is what a plan without a budget is meant for.
    speed = task.dense / choice.seconds if choice.seconds > 0 else 1.0
    budget = goal.noise if goal.noise is not None else max(speed - 1, 2 * choice.total)
    rho, unit, penalty, seconds, dense = (
        _digits(min(value, 1e300)) for value in (choice.noise, found.unit, choice.penalty, choice.seconds, task.dense)
    )
    energies = found.energies
    return Expected(
        rho,
        unit,
        penalty=penalty,
        seconds=seconds,
        dense_seconds=dense,
        budget=_digits(min(budget, 1e300)),
        layers=found.names,
        energies=Propagation(*(_four_digits(one) for one in (energies.own, energies.passed, energies.transfer))),
    )


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _four_digits(values: Values) -> Values:
    """Return numbers as short as a file should have them; what they are factors of is known no better."""
    return np.array([float(f"{value:.4g}") for value in values.ravel().tolist()]).reshape(values.shape)
