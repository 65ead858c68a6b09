"""Which layers gain time from zeros: where they cannot, pruning costs accuracy and pays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..engine.choice import unserved
from ..engine.multiply import LEAST_WORK
from ..plan import PRODUCTS
from .records import LayerProfile

NO_TIME = "zeros save no time here"


def why_no_gain(layer: LayerProfile, products: Iterable[str] = PRODUCTS) -> str | None:
    """Why zeros in a layer's gradient save no time, at the batch of the profile; None where they may.

    The machine does not enter: a profile may come from another one than the plan is carried out on.

    Args:
        products: those that are pruned.
    """
    reason = None if layer.weight_shape is None else unserved(layer.weight_shape, layer.groups, layer.transposed)
    if reason:
        return f"{NO_TIME}: {reason}"
    counts = {"input": layer.flops_input or 0, "weight": layer.flops_weight or 0}
    work = max((counts[product] for product in products), default=0) // 2
    if not work:
        return f"{NO_TIME}: nothing is computed from its gradient in the pruned product"
    if work < LEAST_WORK:
        return f"{NO_TIME}: {work:,} multiply-adds a product; sparse products are tried from {LEAST_WORK:,} on"
    return None


def without_gain(layers: Mapping[str, LayerProfile], products: Iterable[str]) -> dict[str, str]:
    """The layers whose zeros save no time, and why."""
    sides = tuple(products)
    return {name: reason for name, layer in layers.items() if (reason := why_no_gain(layer, sides)) is not None}
