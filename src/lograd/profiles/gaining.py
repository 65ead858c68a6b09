"""Which layers gain time from zeros: where they cannot, pruning costs accuracy and pays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..engine.backends import LEAST_WORK
from ..engine.backends.sparse import unserved
from ..treatments import BACKWARD
from .records import LayerProfile

NO_TIME = "zeros save no time here"


def why_no_gain(layer: LayerProfile, products: Iterable[str] = BACKWARD) -> str | None:
    """Why zeros in a layer's gradient save no time, at the batch of the profile; None where they may.

    The machine does not enter: a profile may come from another one than the plan is carried out on.

    Args:
        products: those that are pruned.
    """
    reason = None if layer.weight_shape is None else unserved(layer.weight_shape, layer.groups, layer.transposed)
    if reason:
        return f"{NO_TIME}: {reason}"
    counts = dict(zip(BACKWARD, (layer.flops_input or 0, layer.flops_weight or 0), strict=True))
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
