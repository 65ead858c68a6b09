"""The layers of a model that a plan treats, and the reasons for all other layers and parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import ParametrizationList

from ..engine.layers import candidates, kind_of, plain_name, reason_not_supported, unwrapped
from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..plan import LayerPlan, Plan, StepWork, Untreated
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


# -- parts that no plan treats --

PARAMETER = "used without a layer, as in F.linear, matmul or einsum"
FUNCTION = "products without a layer or parameter, such as those of attention"

_REASONS: dict[tuple[type[nn.Module], ...], str] = {
    (nn.RNNBase, nn.RNNCellBase): "recurrent layers are not treated",
    (nn.Embedding, nn.EmbeddingBag): "an embedding looks up and multiplies nothing",
    (nn.MultiheadAttention,): "its projections and products are not layers",
    (nn.Bilinear,): "a product of three tensors",
}
_OTHER_OWNERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, ParametrizationList)
"""Their parameters are not multiplied with activations, or make the weight of a layer."""


def reason_of(module: nn.Module) -> str | None:
    """Return why a module that multiplies or learns is not treated; None for layers, and where nothing is to treat."""
    if kind_of(module) is not None:
        return None
    for kinds, reason in _REASONS.items():
        if isinstance(module, kinds):
            return reason
    if ".quantized" in type(module).__module__ and type(module).__module__.startswith("torch."):
        return "quantized modules are not trained"
    return None


def known_parts(model: nn.Module) -> dict[str, Untreated]:
    """Return the modules of a kind that is not treated, by name."""
    named = unwrapped(model).named_modules()
    return {
        plain_name(name): Untreated(plain_name(name), type(module).__name__, reason)
        for name, module in named
        if (reason := reason_of(module)) is not None
    }


def bare_parameters(model: nn.Module) -> Iterator[Untreated]:
    """Yield parameters of two or more dimensions that belong to no layer, no norm and no module of a known kind.

    Only a step of the model can tell which of them are multiplied; a profile looks.
    """
    for name, module in unwrapped(model).named_modules():
        if kind_of(module) is not None or reason_of(module) is not None or isinstance(module, _OTHER_OWNERS):
            continue
        for own, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1 and parameter.requires_grad:
                full = plain_name(f"{name}.{own}" if name else own)
                yield Untreated(full, "parameter", "it belongs to no layer")


def untreated_parts(model: nn.Module, step: StepWork | None) -> dict[str, list[Untreated]]:
    """Return the parts that are not treated, by the name of their module.

    With a counted step, these are the parts that the step has multiplied.

    Names that the model does not have, such as that of the loss, stand for themselves.
    """
    found = list(known_parts(model).values())
    if step is None:
        found += bare_parameters(model)
    else:
        counted = {part.name for part in step.untreated}
        layers = {plain_name(name) for name, one in unwrapped(model).named_modules() if kind_of(one) is not None}
        # A layer that the profile did not observe has a line of its own.
        found = [part for part in found if part.name not in counted]
        found += [part for part in step.untreated if part.name not in layers]
    parts: dict[str, list[Untreated]] = {}
    for part in found:
        owner = part.name.rpartition(".")[0] if part.kind == "parameter" else part.name
        parts.setdefault(owner, []).append(part)
    return parts
