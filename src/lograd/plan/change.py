"""A change to the plan of one layer, and the differences between two plans of a layer."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

from ..errors import InvalidValue
from ..formats import Format, parse_format
from ..theory import best_format
from ..treatments import BACKWARD, OPERANDS, PRODUCTS, SYMBOLS, Prune, Quantize, Sentence, Statistics, describe
from ..treatments.prune import PruningLaw
from .layer import LayerPlan, check_bits, predicted


@final
@dataclass(frozen=True)
class Change:
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


def changes(before: LayerPlan, after: LayerPlan) -> list[str]:
    """Return one line for each field that differs; one for both, where the products for dX and dW change alike."""
    sides = [_differences(before, after, product) for product in BACKWARD]
    lines = sides[0]
    if sides[0] != sides[1]:
        labels = (SYMBOLS[product] for product in BACKWARD)
        lines = [f"{label} {line}" for label, side in zip(labels, sides, strict=True) for line in side]
    for product in PRODUCTS:
        for operand in OPERANDS[product]:
            if operand != "gradient":
                sites = (describe(layer.site(product, operand)) for layer in (before, after))
                lines += _difference(f"{operand} of {SYMBOLS[product]}", *sites)
        backends = (getattr(layer, product).backend for layer in (before, after))
        lines += _difference(f"backend of {SYMBOLS[product]}", *backends)
    for name in ("elements", "masked"):
        lines += _difference(name, getattr(before, name), getattr(after, name))
    return lines


def _differences(before: LayerPlan, after: LayerPlan, product: str) -> list[str]:
    old, new = before.site(product, "gradient"), after.site(product, "gradient")
    lines = []
    if [one.kind for one in old] == [one.kind for one in new]:
        for one, other in zip(old, new, strict=True):
            for field in fields(one):
                lines += _difference(f"{one.kind} {field.name}", getattr(one, field.name), getattr(other, field.name))
    else:
        lines += _difference("treatment", describe(old), describe(new))
    expected = [layer.prediction(product) for layer in (before, after)]
    if None in expected:
        return lines + _difference("prediction", *("none" if one is None else "made" for one in expected))
    for name in ("sparsity", "cosine", "relative_error"):
        lines += _difference(f"predicted {name}", *(f"{getattr(one, name):.4g}" for one in expected))
    return lines


def _difference(what: str, before: Any, after: Any) -> list[str]:
    return [] if before == after else [f"{what} {before} -> {after}"]


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
