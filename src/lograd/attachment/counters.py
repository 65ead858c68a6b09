"""Counters of attached layers: exact numbers of elements, not estimates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import final

from ..engine.layer import LayerEngine
from ..engine.site import COUNTERS, PASSES, Site
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
    """Copies that were to be treated, and came before there were statistics, or were kept as they are by the guard."""
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
    fell_back: int = 0
    """Copies that were not finite, so that their products were dense where integer ones were in force."""

    rows: int = 0
    """Rows of gradients that came to products which may skip rows; the two below are of these."""
    rows_zero: int = 0
    """Rows that were zero as they came."""
    rows_kept: int = 0
    """Rows that were multiplied."""

    @property
    def sparsity(self) -> float:
        """The share of exact zeros in what was handed to the products."""
        return self.zeros_after / self.elements if self.elements else 0.0

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> dict[str, int]:
        """Return the counts as plain values, by name; `fell_back` and rows only where there are any."""
        seldom = ("fell_back", "rows", "rows_zero", "rows_kept")
        return {name: value for name, value in asdict(self).items() if value or name not in seldom}


@final
@dataclass(frozen=True, repr=False)
class Counters:
    """All that was counted: in total, by layer, and by layer and site.

    A site is named by product and operand, as in "weight_gradient.gradient"; "gradient" alone where one treated copy
    serves both products.  Sums are of gradients: treated weights and activations are in `sites` only.
    """

    total: Count
    layers: dict[str, Count]
    sites: dict[str, dict[str, Count]]

    def __repr__(self) -> str:
        treated = f"{plural(self.total.treated, 'gradient')} treated, {self.total.sparsity:.1%} zeros"
        return f"Counters({plural(len(self.layers), 'layer')}, {treated})"

    def gradients(self, layer: str) -> dict[str, Count]:
        """Return the counts of a layer's sites of the gradient."""
        return {name: count for name, count in self.sites[layer].items() if name.endswith("gradient")}


def read_counters(layers: dict[str, LayerEngine]) -> Counters:
    """Return the counters of attached layers."""
    by_layer, by_site = {}, {}
    for name, layer in layers.items():
        by_site[name] = {site: _count(found) for site, found in layer.sites.items()}
        gradients = [by_site[name][site] for site in layer.gradient.sites]
        by_layer[name] = _sum([Count(passes=int(layer.gradient.seen[PASSES])), *gradients])
    return Counters(_sum(by_layer.values()), by_layer, by_site)


def _count(site: Site) -> Count:
    value = dict(zip(COUNTERS, site.counters.tolist(), strict=True))
    # Zeros stay zeros under every treatment of single elements, so the new ones are the difference; a treatment of rows
    # or blocks may fill some of them.
    new = max(value["zeros_after"] - value["zeros_before"], 0)
    if not mixes(site.sentence):
        value["pruned"] = new if any(one.makes_zeros for one in site.sentence) else 0
    return Count(**value, underflowed=max(new - value["pruned"], 0))


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())
