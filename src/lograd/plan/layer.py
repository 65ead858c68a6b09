"""The plan of one layer: for each of its three products a sentence per operand and a backend; and changes to it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

from ..errors import InvalidType, InvalidValue, sentence
from ..files import check_number, check_object, check_whole
from ..formats import Format, parse_format
from ..formats.values import check_width
from ..theory import best_format
from ..treatments import (
    AS_IS,
    BACKWARD,
    OPERANDS,
    PRODUCTS,
    SYMBOLS,
    Prediction,
    ProductPlan,
    Prune,
    Quantize,
    Sentence,
    Statistics,
    Treated,
    both,
    can_take_rows,
    coder,
    describe,
    from_json,
    meet_as_levels,
    predict,
    to_json,
)
from ..treatments.prune import PruningLaw

BOTH = "both"
"""In a file: the products for dX and dW alike."""


@final
@dataclass(frozen=True)
class LayerPlan:
    """The plan of one layer, for each of its three products.

    Args:
        output: the product that gives the layer's output.  Its operands are treated straight through: the gradient
            passes as if they were not.
        input_gradient: the product that gives dX, the gradient of the layer's input.
        weight_gradient: the product that gives dW, the gradient of the weight (and of the bias).
        elements: elements of the layer's gradient per step in the profile; 0 if not known.
        masked: the share of zeros in the gradient at the output of the BatchNorm that the layer feeds, in the profile.
        predicted_input_gradient, predicted_weight_gradient: what the sentences of the gradient do to the gradient in
            the profile, by theory.

    >>> from lograd.treatments import recipe
    >>> LayerPlan.of(recipe("prune85")).words()
    'prune 0.85'
    """

    output: ProductPlan = AS_IS
    input_gradient: ProductPlan = AS_IS
    weight_gradient: ProductPlan = AS_IS
    elements: int = 0
    masked: float = 0.0
    predicted_input_gradient: Prediction | None = None
    predicted_weight_gradient: Prediction | None = None

    def __post_init__(self) -> None:
        for name in PRODUCTS:
            product = getattr(self, name)
            if not isinstance(product, ProductPlan):
                raise InvalidType(sentence(f"{name} of a LayerPlan", product, "a ProductPlan"))
            for operand in ("gradient", "weights", "activations"):
                if operand not in OPERANDS[name] and getattr(product, operand):
                    expected = " and ".join(OPERANDS[name])
                    raise InvalidValue(f"the operands of {name} are {expected}; {operand} cannot be treated there.")
        for name in BACKWARD:
            for one in getattr(self, name).gradient[1:]:
                if one.shared_sparsity is not None:
                    raise InvalidValue(
                        f"{one} is solved for the gradients as they arrive, so nothing may stand before it."
                    )
        others = (getattr(self, name) for name in PRODUCTS)
        for one in (one for product in others for one in (*product.weights, *product.activations)):
            if one.shared_sparsity is not None:
                raise InvalidValue(f"{one} is split by the work of gradients; it cannot treat weights or activations.")

    @classmethod
    def of(cls, treatments: Sentence | Treated, predicted: Prediction | None = None, **other: Any) -> LayerPlan:
        """Return the plan of a recipe, or of a sentence for the gradient in both products."""
        treated = treatments if isinstance(treatments, Treated) else both(*treatments)
        return cls(*treated, predicted_input_gradient=predicted, predicted_weight_gradient=predicted, **other)

    def site(self, product: str, operand: str) -> Sentence:
        """Return the sentence of one operand in one product."""
        found: Sentence = getattr(getattr(self, product), operand)
        return found

    def shares(self, operand: str) -> bool:
        """Return True if the two products that an operand enters take one treated copy of it.

        A gradient that is multiplied by the weight's steps for dX is rounded once more for dW: there the factors would
        only coarsen the channels of small weights.  The steps of activations by row belong into dW alone, too.
        """
        first, second = (self.site(name, operand) for name in PRODUCTS if operand in OPERANDS[name])
        alike = first == second and not any(one.per_product for one in first)
        return alike and not (operand == "gradient" and (self.folds or self.folds_rows))

    @property
    def folds(self) -> bool:
        """True if the gradient is multiplied by the weight's steps, channel by channel, before it is rounded for dX.

        dX sums over the outputs, so a weight with a step for each output needs it.
        """
        gradient, weights = self.input_gradient.gradient, self.input_gradient.weights
        one, other = coder(gradient), coder(weights)
        if one is None or other is None or not other.levels or other.scales != "channel":
            return False
        return (one.levels or one.scales == "sample") and one.can_fold

    @property
    def folds_rows(self) -> bool:
        """True if the gradient of a linear layer is multiplied by the activations' steps, row by row, before it is
        rounded for dW.

        dW sums over the rows, so activations with a step for each row need it.
        """
        gradient, activations = self.weight_gradient.gradient, self.weight_gradient.activations
        one, other = coder(gradient), coder(activations)
        if one is None or other is None or not other.levels or other.scales != "row":
            return False
        return can_take_rows(one)

    @property
    def treats(self) -> bool:
        """True if anything is treated."""
        return any(getattr(self, name).treats for name in PRODUCTS)

    def has_levels(self, product: str) -> bool:
        """Return True if both operands of a product end up as levels, which integer products take."""
        first, second = (self.site(product, operand) for operand in OPERANDS[product])
        return meet_as_levels(product, first, second)

    def prediction(self, product: str) -> Prediction | None:
        """Return the prediction for the gradient in a product of the backward; None where there is none."""
        found: Prediction | None = getattr(self, f"predicted_{product}")
        return found

    def skipped(self, work: tuple[int, int]) -> float:
        """Return the operations that predicted zeros save, of those of the products for dX and dW.

        Integer products save none, where the plan asks for them.
        """
        return sum(
            count * found.sparsity
            for count, name in zip(work, BACKWARD, strict=True)
            if (found := self.prediction(name)) is not None and getattr(self, name).backend != "integer"
        )

    def words(self) -> str:
        """Return all treatments in words, on one line."""
        gradients = [describe(self.site(name, "gradient")) for name in BACKWARD]
        parts = gradients[:1]
        if gradients[0] != gradients[1]:
            parts = [f"{SYMBOLS[name]} {text}" for name, text in zip(BACKWARD, gradients, strict=True)]
        parts += [
            f"{operand} {'' if name in BACKWARD else 'of Y '}{describe(found)}"
            for name in (*BACKWARD, "output")
            for operand in OPERANDS[name]
            if operand != "gradient" and (found := self.site(name, operand))
        ]
        backends = {name: getattr(self, name).backend for name in PRODUCTS}
        parts += [f"{SYMBOLS[name]} {backend}" for name, backend in backends.items() if backend != "auto"]
        return "; ".join(parts)

    # -- the file --

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, of which `from_dict` makes this plan again."""
        products = {name: self.product_to_dict(name) for name in PRODUCTS}
        dX, dW = (products[name] for name in BACKWARD)
        sides = {BOTH: dX} if dX == dW else dict(zip(BACKWARD, (dX, dW), strict=True))
        output = {"output": products["output"]} if products["output"] else {}
        return {**output, **sides, "elements": self.elements, "masked": self.masked}

    def product_to_dict(self, name: str) -> dict[str, Any]:
        """Return one product as plain values: the treatments of its operands, its backend and its prediction."""
        product: ProductPlan = getattr(self, name)
        found: dict[str, Any] = {
            operand: to_json(treatments) for operand in OPERANDS[name] if (treatments := getattr(product, operand))
        }
        if product.backend != "auto":
            found["backend"] = product.backend
        predicted = self.prediction(name) if name in BACKWARD else None
        return found if predicted is None else {**found, "predicted": predicted.to_json()}

    @classmethod
    def from_dict(cls, data: Any) -> LayerPlan:
        """Return the plan that `to_dict` was given; the exact inverse."""
        check_object("a layer of a plan", data, (), (BOTH, *PRODUCTS, "elements", "masked"))
        if BOTH in data and any(name in data for name in BACKWARD):
            raise InvalidValue(
                sentence("a layer of a plan", data, 'given as "both", or as "input_gradient" and "weight_gradient"')
            )
        both = data.get(BOTH, {})
        output, _ = _product_from_json("output", data.get("output", {}))
        input_gradient, predicted_dX = _product_from_json("input_gradient", data.get("input_gradient", both))
        weight_gradient, predicted_dW = _product_from_json("weight_gradient", data.get("weight_gradient", both))
        return cls(
            output,
            input_gradient,
            weight_gradient,
            check_whole("elements of a layer", data.get("elements", 0)),
            check_number("masked of a layer", data.get("masked", 0.0), 0, 1),
            predicted_dX,
            predicted_dW,
        )


def _product_from_json(name: str, data: Any) -> tuple[ProductPlan, Prediction | None]:
    valid = (*OPERANDS[name], "backend", *(("predicted",) if name in BACKWARD else ()))
    check_object("a product of a plan", data, (), valid)
    sentences = {operand: from_json(data.get(operand, [])) for operand in OPERANDS[name]}
    predicted = data.get("predicted")
    return (
        ProductPlan(**sentences, backend=data.get("backend", "auto")),
        None if predicted is None else Prediction.from_json(predicted),
    )


def check_bits(bits: Any) -> int:
    """Return the width of a float that gradients are rounded to, or refuse it."""
    return check_width("bits", bits, 2, 8)


def predicted(treatments: Sentence, statistics: Statistics | None) -> Prediction | None:
    """Return the prediction to six digits, as a plan is read by people; None where the law does not tell."""
    exact = None if statistics is None else predict(treatments, statistics)
    if exact is None:
        return None
    return Prediction(**{name: float(f"{value:.6g}") for name, value in exact.to_json().items()})


@final
@dataclass(frozen=True)
class Override:
    """The changes that `Plan.override` makes; None leaves a field as it is."""

    sparsity: float | None = None
    law: PruningLaw | None = None
    bits: int | None = None
    format: str | Format | None = None
    scale: str | None = None
    rounding: Literal["stochastic", "nearest"] | None = None
    products: tuple[str, ...] = BACKWARD

    def __post_init__(self) -> None:
        if self.bits is not None:
            check_bits(self.bits)
        if self.bits is not None and self.format is not None:
            raise InvalidValue("override takes bits=, which chooses a format, or format= itself; got both.")

    @property
    def empty(self) -> bool:
        """True if nothing is changed."""
        return all(getattr(self, field.name) is None for field in fields(self) if field.name != "products")

    def apply(self, name: str, layer: LayerPlan, statistics: Statistics | None) -> LayerPlan:
        """Return the changed plan of a layer, with new predictions.

        Args:
            name: of the layer, for messages.
            statistics: those of its gradient; without, predictions are dropped.
        """
        values: dict[str, Any] = {}
        for product in self.products:
            changed = self._sentence(name, layer.site(product, "gradient"), statistics)
            values[product] = replace(getattr(layer, product), gradient=changed)
            values[f"predicted_{product}"] = predicted(changed, statistics)
        return replace(layer, **values)

    def _sentence(self, name: str, treatments: Sentence, statistics: Statistics | None) -> Sentence:
        prune, quantize = self._pruning(name, treatments), self._rounding(name, treatments, statistics)
        others = tuple(one for one in treatments if not {"sparsity", "format"} & one.changeable)
        return (*prune, *others, *quantize)

    def _pruning(self, name: str, treatments: Sentence) -> Sentence:
        given = _given(sparsity=self.sparsity, law=self.law)
        found = [one for one in treatments if "sparsity" in one.changeable]
        if "law" in given and any("law" not in one.changeable for one in found):
            raise InvalidValue(f"layer {name!r} is pruned without a law ({describe(tuple(found))}); leave law= out.")
        if given and any(one.makes_zeros and "sparsity" not in one.changeable for one in treatments):
            raise InvalidValue(
                f"layer {name!r} has a threshold of its own ({describe(treatments)}), so sparsity= cannot change it."
            )
        if not given or found:
            return tuple(replace(one, **given) for one in found)
        if "sparsity" not in given:
            raise InvalidValue(f"layer {name!r} is not pruned, so law= alone changes nothing; give sparsity= as well.")
        return (Prune(**given),)

    def _rounding(self, name: str, treatments: Sentence, statistics: Statistics | None) -> Sentence:
        given = _given(format=self._format(name, treatments, statistics), scale=self.scale, rounding=self.rounding)
        found = [one for one in treatments if "format" in one.changeable]
        if not given or found:
            return tuple(replace(one, **given) for one in found)
        if "format" not in given:
            what = " and ".join(f"{key}=" for key in given)
            raise InvalidValue(
                f"layer {name!r} is not rounded, so {what} alone changes nothing; give format= or bits=."
            )
        return (Quantize(**given),)

    def _scale(self, treatments: Sentence) -> str:
        """Return the rule of the scale after the change."""
        return self.scale or next((str(vars(one)["scale"]) for one in treatments if "scale" in one.changeable), "max")

    def _format(self, name: str, treatments: Sentence, statistics: Statistics | None) -> Any:
        if self.bits is not None:
            if statistics is None:
                raise InvalidValue(
                    f"bits= needs the law of layer {name!r}, which only a plan straight from a profile has; "
                    "give format=, such as '1-4-1'."
                )
            return best_format(statistics.law, self.bits, scale=self._scale(treatments))
        return parse_format(self.format) if isinstance(self.format, str) else self.format


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
