"""The plan: what is done to the gradient of each layer, as a JSON file that a person can review.

It is made from a profile or from a recipe, and `attach` carries it out.  `Plan.load` is the exact inverse of `save`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from .errors import InvalidType, InvalidValue, nearest_name, sentence
from .files import read_file, replace_file
from .treatments import Prediction, Sentence, Treatment, from_json, recipe, to_json

VERSION = 1


@final
@dataclass(frozen=True)
class LayerPlan:
    """What is done to one layer's gradient, for each of the two products that it enters.

    Args:
        input: treatments of the gradient in the product that gives dX, the gradient of the layer's input.
        weight: the same for dW, the gradient of the weight (and of the bias).  If equal, the gradient is treated once.
        elements: of the layer's gradient per step in the profile; 0 if not known.
        masked: the share of zeros in the gradient at the output of the BatchNorm that the layer feeds, in the profile.
        predicted_input, predicted_weight: what the treatments do, by theory, to the gradient in the profile.
    """

    input: Sentence = ()
    weight: Sentence = ()
    elements: int = 0
    masked: float = 0.0
    predicted_input: Prediction | None = None
    predicted_weight: Prediction | None = None

    def __post_init__(self) -> None:
        for name in ("input", "weight"):
            treatments = getattr(self, name)
            if not isinstance(treatments, tuple) or not all(isinstance(one, Treatment) for one in treatments):
                raise InvalidType(sentence(f"{name} of a LayerPlan", treatments, "a tuple of treatments"))

    @classmethod
    def of(cls, treatments: Sentence, predicted: Prediction | None = None, **other: Any) -> LayerPlan:
        """The same for both products."""
        return cls(treatments, treatments, predicted_input=predicted, predicted_weight=predicted, **other)

    @property
    def shared(self) -> bool:
        """Both products take the same treated gradient."""
        return self.input == self.weight

    def to_json(self) -> dict[str, Any]:
        input, weight = _side(self.input, self.predicted_input), _side(self.weight, self.predicted_weight)
        sides = {"both": input} if input == weight else {"input": input, "weight": weight}
        return {**sides, "elements": self.elements, "masked": self.masked}

    @classmethod
    def from_json(cls, data: Any) -> LayerPlan:
        """The exact inverse of `to_json`."""
        check_fields("a layer of a plan", data, ("both", "input", "weight", "elements", "masked"))
        if [name in data for name in ("both", "input", "weight")] not in ([True, False, False], [False, True, True]):
            raise InvalidValue(sentence("a layer of a plan", data, 'given as "both", or as "input" and "weight"'))
        elements, masked = data.get("elements", 0), data.get("masked", 0.0)
        if type(elements) is not int or type(masked) not in (int, float):
            raise InvalidValue(sentence("elements and masked of a layer", (elements, masked), "a count and a share"))
        (input, predicted_input), (weight, predicted_weight) = (
            _side_from_json(data.get("both", data.get(name))) for name in ("input", "weight")
        )
        return cls(input, weight, elements, float(masked), predicted_input, predicted_weight)


@final
@dataclass(frozen=True)
class Plan:
    """Treatments by layer name.

    Args:
        layers: a LayerPlan for each layer name, in the order in which the layers run.
        kept: layers left alone on purpose, and why.
        every: what is done to each supported layer that `layers` does not name; None leaves them alone.
    """

    layers: Mapping[str, LayerPlan] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    every: LayerPlan | None = None

    @classmethod
    def uniform(cls, name: str) -> Plan:
        """The same recipe for every supported layer of whatever model it is attached to: "fp6", "prune85", ...

        >>> Plan.uniform("prune85+fp6").every.input[0].sparsity
        0.85
        """
        return cls(every=LayerPlan.of(recipe(name)))

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"lograd_plan": VERSION}
        if self.every is not None:
            data["every"] = self.every.to_json()
        return data | {
            "layers": {name: layer.to_json() for name, layer in self.layers.items()},
            "kept": dict(self.kept),
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The exact inverse of `to_json`."""
        if not isinstance(data, dict) or "lograd_plan" not in data:
            raise InvalidValue('this is not a plan: a plan is a JSON object with "lograd_plan" and its version.')
        if data["lograd_plan"] != VERSION:
            raise InvalidValue(
                f"this plan has version {data['lograd_plan']!r}, and this lograd reads version {VERSION}; "
                "make the plan again, or use the lograd that wrote it."
            )
        check_fields("a plan", data, ("lograd_plan", "every", "layers", "kept"))
        layers, kept = data.get("layers", {}), data.get("kept", {})
        if not isinstance(layers, dict) or not isinstance(kept, dict):
            raise InvalidValue('"layers" and "kept" of a plan must be objects with layer names.')
        return cls(
            layers={name: LayerPlan.from_json(layer) for name, layer in layers.items()},
            kept={name: str(reason) for name, reason in kept.items()},
            every=LayerPlan.from_json(data["every"]) if "every" in data else None,
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        return replace_file(path, (json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """A plan from its file; what is wrong with the file is said in one sentence."""
        content = read_file(path)
        try:
            return cls.from_json(json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            reason = str(error) if isinstance(error, InvalidValue | InvalidType) else f"it is not JSON: {error}."
            raise InvalidValue(f"Cannot read the plan {path}: {reason}") from None

    def hash(self) -> str:
        """Hexadecimal digits that change with anything that changes the training."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def _side(treatments: Sentence, predicted: Prediction | None) -> dict[str, Any]:
    side: dict[str, Any] = {"treatments": to_json(treatments)}
    return side if predicted is None else {**side, "predicted": predicted.to_json()}


def _side_from_json(data: Any) -> tuple[Sentence, Prediction | None]:
    check_fields("a product of a plan", data, ("treatments", "predicted"))
    predicted = data.get("predicted")
    return from_json(data.get("treatments", [])), None if predicted is None else Prediction.from_json(predicted)


def check_fields(what: str, data: Any, valid: tuple[str, ...]) -> None:
    """Refuse what is not an object, and a field that nobody would read."""
    if not isinstance(data, dict):
        raise InvalidValue(sentence(what, data, "an object with " + ", ".join(valid)))
    for name in data:
        if name not in valid:
            raise InvalidValue(f"{what} has no field {name!r}; it has {', '.join(valid)}.{nearest_name(name, valid)}")
