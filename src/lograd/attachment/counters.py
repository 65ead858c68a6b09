"""What attached layers have counted: exact numbers of elements, not estimates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import final

from ..engine.site import Product, TreatedLayer
from ..engine.slots import COUNTERS, PASSES
from ..errors import plural
from ..treatments import mixes


@final
@dataclass(frozen=True)
class Count:
    """Sums over all treated gradients of a layer, or of a model."""

    passes: int = 0
    """Gradients that came by."""
    treated: int = 0
    """Treated copies: one for each gradient, or two where the two products differ."""
    passed_through: int = 0
    """Copies that were to be treated, and came before there were statistics."""
    elements: int = 0
    """Elements of the treated copies; all counts below are of these."""
    zeros_before: int = 0
    zeros_after: int = 0
    clipped: int = 0
    """Elements beyond the largest value of a format; under a Hadamard transform, of the transformed and padded rows."""
    pruned: int = 0
    """Elements that pruning has made zero."""
    underflowed: int = 0
    """Elements that were not zero before a format rounded them, and are: too small for it.

    Treatments of rows and blocks may fill zeros in as well; then it is the difference, and never below 0.
    """
    nan: int = 0
    """NaN in the result."""

    @property
    def sparsity(self) -> float:
        """The share of exact zeros in what was handed to the products."""
        return self.zeros_after / self.elements if self.elements else 0.0

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@final
@dataclass(frozen=True, repr=False)
class Counters:
    """By layer, by layer and product ("input", "weight", or "both" where the same copy serves), and in total.

    `operands` counts the treated "weights" and "activations" that gradients meet; they are in no sum.
    """

    total: Count
    layers: dict[str, Count]
    products: dict[str, dict[str, Count]]
    operands: dict[str, dict[str, Count]]

    def __repr__(self) -> str:
        treated = f"{plural(self.total.treated, 'gradient')} treated, {self.total.sparsity:.1%} zeros"
        return f"Counters({plural(len(self.layers), 'layer')}, {treated})"


def read_counters(layers: dict[str, TreatedLayer]) -> Counters:
    products = {name: _of_products(layer.products) for name, layer in layers.items()}
    operands = {name: _of_products(layer.operands_by_name) for name, layer in layers.items()}
    passes = {name: Count(passes=int(layer.seen[PASSES])) for name, layer in layers.items()}
    by_layer = {name: _sum([passes[name], *products[name].values()]) for name in layers}
    return Counters(_sum(by_layer.values()), by_layer, products, operands)


def _of_products(products: dict[str, Product]) -> dict[str, Count]:
    return {name: _of_product(product) for name, product in products.items()}


def _of_product(product: Product) -> Count:
    value = dict(zip(COUNTERS, product.counters.tolist(), strict=True))
    # Zeros stay zeros under every treatment of single elements, so the new ones are the difference; a treatment of rows
    # or blocks may fill some of them.
    new = max(value["zeros_after"] - value["zeros_before"], 0)
    if not mixes(product.treatments):
        value["pruned"] = new if product.makes_zeros else 0
    return Count(**value, underflowed=max(new - value["pruned"], 0))


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())
