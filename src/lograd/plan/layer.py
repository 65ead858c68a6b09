"""What is done to the gradient of one layer, for each of the two products that it enters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..files.checks import check_number, check_object, check_whole
from ..formats.values import check_width
from ..treatments import (
    Prediction,
    Prune,
    Sentence,
    Statistics,
    Treated,
    Treatment,
    describe,
    from_json,
    predict,
    to_json,
)

PRODUCTS = ("input", "weight")
"""The products that a gradient enters: dX, the gradient of the layer's input, and dW, that of its weight."""
OPERANDS = ("weights", "activations")
"""What the gradient meets in the two products, in the same order."""


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
        weights: treatments of the weights that the gradient meets in the product for dX; the forward is not touched.
        activations: treatments of the layer's input that it meets in the product for dW.
    """

    input: Sentence = ()
    weight: Sentence = ()
    elements: int = 0
    masked: float = 0.0
    predicted_input: Prediction | None = None
    predicted_weight: Prediction | None = None
    weights: Sentence = ()
    activations: Sentence = ()

    def __post_init__(self) -> None:
        for name in (*PRODUCTS, *OPERANDS):
            treatments = getattr(self, name)
            if not isinstance(treatments, tuple) or not all(isinstance(one, Treatment) for one in treatments):
                raise InvalidType(sentence(f"{name} of a LayerPlan", treatments, "a tuple of treatments"))
        for one in (*self.input[1:], *self.weight[1:]):
            if isinstance(one, Prune) and one.allocation != "uniform":
                raise InvalidValue(f"{one} is solved for the gradients as they arrive, so nothing may stand before it.")
        for name in OPERANDS:
            for one in getattr(self, name):
                if one.number_names:
                    raise InvalidValue(
                        f"{name} have no statistics, so they cannot be treated by {one}, whose numbers follow from "
                        "them; use a treatment that looks at the tensor itself, such as topk80, int8-ptq or mxfp4."
                    )

    @classmethod
    def of(cls, treatments: Sentence | Treated, predicted: Prediction | None = None, **other: Any) -> LayerPlan:
        """The same for both products, or what a recipe says."""
        if isinstance(treatments, Treated):
            return cls(**treatments._asdict(), predicted_input=predicted, predicted_weight=predicted, **other)
        return cls(treatments, treatments, predicted_input=predicted, predicted_weight=predicted, **other)

    @property
    def shared(self) -> bool:
        """Both products take the same treated gradient."""
        return self.input == self.weight and not any(one.per_product for one in self.input)

    @property
    def treats(self) -> bool:
        """Whether anything is done."""
        return any(getattr(self, name) for name in (*PRODUCTS, *OPERANDS))

    def skipped(self, work: tuple[int, int]) -> float:
        """Operations that predicted zeros save, of those of the products for dX and dW."""
        sides = zip(work, (self.predicted_input, self.predicted_weight), strict=True)
        return sum(count * prediction.sparsity for count, prediction in sides if prediction is not None)

    def words(self) -> str:
        """What is done, on one line."""
        input, weight = describe(self.input), describe(self.weight)
        operands = [f"{name} {describe(getattr(self, name))}" for name in OPERANDS if getattr(self, name)]
        return "; ".join([input if self.input == self.weight else f"dX {input}; dW {weight}", *operands])

    def to_json(self) -> dict[str, Any]:
        input, weight = _side(self.input, self.predicted_input), _side(self.weight, self.predicted_weight)
        sides = {"both": input} if input == weight else {"input": input, "weight": weight}
        operands = {name: to_json(getattr(self, name)) for name in OPERANDS if getattr(self, name)}
        return {**sides, "elements": self.elements, "masked": self.masked, **operands}

    @classmethod
    def from_json(cls, data: Any) -> LayerPlan:
        """The exact inverse of `to_json`."""
        check_fields("a layer of a plan", data, ("both", "input", "weight", "elements", "masked", *OPERANDS))
        if [name in data for name in ("both", "input", "weight")] not in ([True, False, False], [False, True, True]):
            raise InvalidValue(sentence("a layer of a plan", data, 'given as "both", or as "input" and "weight"'))
        elements = check_whole("elements of a layer", data.get("elements", 0))
        masked = check_number("masked of a layer", data.get("masked", 0.0), 0, 1)
        (input, predicted_input), (weight, predicted_weight) = (
            _side_from_json(data.get("both", data.get(name))) for name in ("input", "weight")
        )
        operands = {name: from_json(data.get(name, [])) for name in OPERANDS}
        return cls(input, weight, elements, masked, predicted_input, predicted_weight, **operands)


def _side(treatments: Sentence, predicted: Prediction | None) -> dict[str, Any]:
    side: dict[str, Any] = {"treatments": to_json(treatments)}
    return side if predicted is None else {**side, "predicted": predicted.to_json()}


def _side_from_json(data: Any) -> tuple[Sentence, Prediction | None]:
    check_fields("a product of a plan", data, ("treatments", "predicted"))
    predicted = data.get("predicted")
    return from_json(data.get("treatments", [])), None if predicted is None else Prediction.from_json(predicted)


def check_fields(what: str, data: Any, valid: tuple[str, ...]) -> None:
    """Refuse what is not an object, and a field that nobody would read."""
    check_object(what, data, (), valid)


def check_bits(bits: Any) -> int:
    """The width of a float that gradients are rounded to, the same wherever a plan is asked for one."""
    return check_width("bits", bits, 2, 8)


def check_products(products: str | Iterable[str]) -> tuple[str, ...]:
    """One or both names of products."""
    if not isinstance(products, Iterable):
        raise InvalidType(sentence("products", products, "'input', 'weight' or both"))
    names = (products,) if isinstance(products, str) else tuple(products)
    for name in names:
        if name not in PRODUCTS:
            raise InvalidValue(
                sentence("products", name, "'input', 'weight' or both") + nearest_name(str(name), PRODUCTS)
            )
    if not names:
        raise InvalidValue("products must be 'input', 'weight' or both; got none.")
    return names


def predicted(treatments: Sentence, statistics: Statistics | None) -> Prediction | None:
    """What theory expects, to six digits: a plan is read by people; None where the law is not known, or not enough."""
    exact = None if statistics is None else predict(treatments, statistics)
    if exact is None:
        return None
    return Prediction(**{name: float(f"{value:.6g}") for name, value in exact.to_json().items()})
