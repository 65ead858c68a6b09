"""The plans that are compared: all of a plan, its forward alone, and one layer's backward at a time.

The exact gradient is the derivative of the forward that the plan computes, rounded operands included, taken straight
through: StatQuant calls it the QAT gradient.  So each product of the exact backward takes weights and activations as
the output takes them, and the gradient as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from ..engine.layers import candidates
from ..plan import LayerPlan, Plan
from ..treatments import PRODUCTS
from ..treatments.products import ProductPlan

SAVED = "(saved activations)"
"""The row of contributions for activations that are kept as codes (`Plan.saved`), which no one layer has."""


def layer_plans(plan: Plan, model: nn.Module, names: Mapping[str, object]) -> dict[str, LayerPlan]:
    """Return the plan of each of these layers, which the plan may know by another of their names, or by `every`."""
    modules = candidates(model)
    planned = {id(modules[name]): layer for name, layer in plan.layers.items()}
    found = {name: planned.get(id(modules[name]), plan.every) for name in names}
    return {name: layer for name, layer in found.items() if layer is not None}


def exact(layer: LayerPlan) -> LayerPlan:
    """Return the plan of a layer with its forward as it is, and a backward that adds nothing."""
    output = layer.output
    return replace(
        layer,
        input_gradient=ProductPlan(weights=output.weights, backend=layer.input_gradient.backend),
        weight_gradient=ProductPlan(activations=output.activations, backend=layer.weight_gradient.backend),
        predicted_input_gradient=None,
        predicted_weight_gradient=None,
    )


def treats_forward(plan: Plan, layers: Mapping[str, LayerPlan]) -> bool:
    """Return True if the plan changes what the model computes in its forward."""
    return plan.attention is not None or any(layer.output.treats for layer in layers.values())


def whole(plan: Plan, layers: Mapping[str, LayerPlan]) -> Plan:
    """Return the plan with its layers by name."""
    return Plan(layers, attention=plan.attention, saved=plan.saved)


def forward_only(plan: Plan, layers: Mapping[str, LayerPlan]) -> Plan:
    """Return the plan whose gradient is the exact one."""
    return Plan({name: exact(layer) for name, layer in layers.items()}, attention=plan.attention)


def one_at_a_time(plan: Plan, layers: Mapping[str, LayerPlan]) -> dict[str, Plan]:
    """Return, for each layer whose backward the plan treats, the plan that treats this one and no other."""
    base = forward_only(plan, layers)
    found = {
        name: replace(base, layers={**base.layers, name: layer})
        for name, layer in layers.items()
        if not same_products(layer, exact(layer))
    }
    if plan.saved is not None:
        found[SAVED] = replace(base, saved=plan.saved)
    return found


def same_products(one: LayerPlan, other: LayerPlan) -> bool:
    """Return True if two layers treat all operands of all products alike."""
    return all(getattr(one, name) == getattr(other, name) for name in PRODUCTS)
