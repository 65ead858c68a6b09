"""The parts of a model that no plan treats, as they are neither linear layers nor convolutions, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList

from ..engine.layers import kind_of, plain_name, unwrapped
from ..plan import StepWork, Untreated

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
