"""The layers of a model that a plan treats, and the reasons for all others."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..engine.layers import candidates, reason_not_supported
from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..plan import LayerPlan, Plan
from .swap import engine_of

Chosen = list[tuple[str, nn.Module, LayerPlan]]


def fitting_modules(model: nn.Module, plan: Plan) -> dict[str, nn.Module]:
    """Return linear layers and convolutions by name; refuse a model with a plan, and a plan for another model."""
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    if not isinstance(plan, Plan):
        raise InvalidType(sentence("plan", plan, "a Plan; make one with Plan.load(path) or Plan.uniform('fp6')"))
    modules = candidates(model)
    if any(engine_of(module) is not None for module in modules.values()):
        raise InvalidValue("the model has a plan attached already; call remove() of that handle first.")
    for name in (*plan.layers, *plan.kept):
        if name not in modules:
            raise InvalidValue(
                f"the plan names the layer {name!r}, and the model has no linear layer or convolution of that name."
                f"{nearest_name(name, modules)}"
            )
    return modules


def chosen_layers(plan: Plan, modules: dict[str, nn.Module]) -> tuple[Chosen, dict[str, str]]:
    """Return the layers to swap, and why each of the others is left alone.

    Args:
        modules: linear layers and convolutions by name; one that is used twice has several names and one entry.
    """
    planned = {id(modules[name]): layer for name, layer in plan.layers.items()}
    kept = kept_by_place(plan, modules) | {id(modules[name]): reason for name, reason in plan.kept.items()}
    names: dict[int, str] = {}
    for name, module in modules.items():
        names.setdefault(id(module), name)
    chosen, skipped = [], {}
    for key, name in names.items():
        module, layer = modules[name], planned.get(key, plan.every)
        reason = reason_not_supported(module)
        if key in kept:
            skipped[name] = f"kept: {kept[key]}"
        elif layer is None:
            skipped[name] = "not in the plan"
        elif reason is not None:
            skipped[name] = f"not supported: {reason}"
        else:
            chosen.append((name, module, layer))
    return chosen, skipped


def kept_by_place(plan: Plan, modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return the layers that a plan keeps for their place in the model, by identity, with the reason.

    The order is that of `model.modules()`.  None is kept where the plan would have no other layer to treat.
    """
    layers = list({id(module): module for module in modules.values()}.values())
    named = {id(modules[name]) for name in plan.layers}
    found = {}
    if "first" in plan.keep and layers and isinstance(layers[0], _ConvNd):
        found[id(layers[0])] = "the first convolution"
    linear = [module for module in layers if not isinstance(module, _ConvNd)]
    if "last" in plan.keep and linear:
        found[id(linear[-1])] = "the last linear layer"
    found = {key: reason for key, reason in found.items() if key not in named}
    return found if len(found) < len(layers) else {}
