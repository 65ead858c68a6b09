"""The layers of a model that a plan treats, and the reasons for all others."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..engine.layers import reason_not_supported
from ..plan import LayerPlan, Plan

Chosen = list[tuple[str, nn.Module, LayerPlan]]


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
