"""Plan files of version 1, which knew the backward alone: read as they are, and known again by their hash.

A layer had "both", or "input" and "weight", for the gradient in the products for dX and dW, and "weights" and
"activations" for the operands that it meets there.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..errors import InvalidValue, sentence
from ..files.checks import check_object
from ..treatments import PRODUCTS, to_json
from .layer import BOTH, LayerPlan

VERSION = 1
_SIDES = {"input": ("input_gradient", "weights"), "weight": ("weight_gradient", "activations")}
"""The products by their name of then, as they are called now, and the operand that the gradient meets in each."""


def upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """Return a plan of version 1 as plain values of the present version; what is wrong with it stays wrong."""
    layers = data.get("layers", {})
    found = (
        data | {"layers": {name: _upgraded_layer(layer) for name, layer in layers.items()}}
        if isinstance(layers, dict)
        else dict(data)
    )
    return found | {"every": _upgraded_layer(data["every"])} if "every" in data else found


def _upgraded_layer(layer: Any) -> Any:
    check_object("a layer of a plan", layer, (), (BOTH, *_SIDES, "weights", "activations", "elements", "masked"))
    if [name in layer for name in (BOTH, *_SIDES)] not in ([True, False, False], [False, True, True]):
        raise InvalidValue(sentence("a layer of a plan", layer, 'given as "both", or as "input" and "weight"'))
    if BOTH in layer and not any(name in layer for name in ("weights", "activations")):
        return {**layer, BOTH: _upgraded_product(layer[BOTH])}
    found = {name: layer[name] for name in ("elements", "masked") if name in layer}
    for side, (product, operand) in _SIDES.items():
        found[product] = _upgraded_product(layer.get(side, layer.get(BOTH, {})))
        if operand in layer:
            found[product][operand] = layer[operand]
    return found


def _upgraded_product(side: Any) -> dict[str, Any]:
    check_object("a product of a plan", side, (), ("treatments", "predicted"))
    gradient = {"gradient": side["treatments"]} if side.get("treatments") != [] and "treatments" in side else {}
    return gradient | ({"predicted": side["predicted"]} if side.get("predicted") is not None else {})


def hash_of(data: dict[str, Any], layers: dict[str, LayerPlan], every: LayerPlan | None) -> str | None:
    """Return the hash that the plan had in version 1; None for what that version could not say.

    Args:
        data: the plan as plain values of the present version.
        layers, every: its layers, which replace those of `data`.
    """
    found = {name: _downgraded(layer) for name, layer in layers.items()}
    rest = None if every is None else _downgraded(every)
    if None in found.values() or (every is not None and rest is None):
        return None
    old = data | {"lograd_plan": VERSION, "layers": found} | ({} if rest is None else {"every": rest})
    return digits(old)


def digits(data: dict[str, Any]) -> str:
    """Return hexadecimal digits that change with anything in a plan but what does not change the training.

    That is the work of the whole step, and the noise that is expected.
    """
    content = {name: value for name, value in data.items() if name not in ("step", "expected")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _downgraded(layer: LayerPlan) -> dict[str, Any] | None:
    if layer.output.treats or any(getattr(layer, name).backend != "auto" for name in PRODUCTS):
        return None
    sides = {}
    for side, (product, _) in _SIDES.items():
        predicted = layer.prediction(product)
        sides[side] = {"treatments": to_json(layer.site(product, "gradient"))} | (
            {} if predicted is None else {"predicted": predicted.to_json()}
        )
    operands = {
        operand: to_json(found) for product, operand in _SIDES.values() if (found := layer.site(product, operand))
    }
    both = {BOTH: sides["input"]} if sides["input"] == sides["weight"] else sides
    return {**both, "elements": layer.elements, "masked": layer.masked, **operands}
