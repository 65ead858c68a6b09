"""The outcome of a trained plan: a plain model with rounded weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from ..engine.layer import LayerEngine
from ..engine.layers import reason_converted, unwrapped, works_transposed
from ..nn.running import take_off
from ..ops.coded import CodedTensor


class Exported(NamedTuple):
    """A plain model whose weights are those that its trained forward multiplied, with the codes and ranges of them."""

    model: nn.Module
    """A copy of the model, in eval mode, without a plan."""
    weights: dict[str, CodedTensor]
    """By layer, codes, scale and zero of each weight that was rounded to levels; decode() is the model's weight, as
    (outputs, inputs, ...).  A weight that was shared is the layer's own in the copy."""
    activations: dict[str, dict[str, float]]
    """By layer, the numbers by which its input was rounded, such as low and high, or a clip."""
    left_alone: dict[str, str]
    """Layers with a rounded forward whose weight could not be written, and why."""


def export(model: nn.Module, layers: Mapping[str, LayerEngine]) -> Exported:
    """Return a plain copy of a model with its rounded weights, and the codes and ranges."""
    plain = copy.deepcopy(unwrapped(model)).eval()
    take_off(plain)
    found = Exported(plain, {}, {}, {})
    for name, layer in layers.items():
        if (site := layer.activations.at["output"]) is not None:
            numbers = site.numbers_and_memory()
            found.activations[name] = {key: value for one in numbers for key, value in one.items()}
        if layer.weights.at["output"] is not None:
            _write(found, name, layer)
    return found


def _write(found: Exported, name: str, layer: LayerEngine) -> None:
    """Round the weight of a layer as its forward does, and change nothing else."""
    module, site = found.model.get_submodule(name), layer.weights.at["output"]
    assert site is not None
    weight = module._parameters.get("weight")
    if weight is None:
        found.left_alone[name] = "its weight is computed from other parameters"
        return
    if (reason := reason_converted(module)) is not None:
        found.left_alone[name] = reason
        return
    if not layer.weights.ready:
        found.left_alone[name] = "its weight was not treated yet"
        return
    turned = works_transposed(module)
    oriented = weight.detach().t() if turned else weight.detach()
    layer.hold(True)
    try:
        if site.levels:
            found.weights[name] = coded = site.codes(oriented).coded
            values = coded.decode()
        else:
            inputs = 0 if isinstance(module, _ConvTransposeNd) else 1
            summed = () if layer.weights.shared else (inputs,)
            values = site.treat(oriented, summed, layer.weights.control, None, layer.signs("output"))
    finally:
        layer.hold(False)
    # A parameter of its own: others that share the weight are not rounded by this layer.
    own = torch.empty_like(weight.detach()).copy_(values.t() if turned else values)
    module.weight = nn.Parameter(own, weight.requires_grad)
