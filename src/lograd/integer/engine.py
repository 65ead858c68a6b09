"""The engine of a layer with integer products: the recipe of its operands, and the random numbers of its gradient."""

from __future__ import annotations

import numpy as np
import torch

from ..engine.coder import reason_not_coded
from ..engine.layer import LayerEngine
from ..errors import InvalidValue
from ..formats.values import check_width
from ..plan import LayerPlan
from ..treatments import PRODUCTS, Backend, Treated, recipe
from ..treatments.products import check_backend

NOT_PRUNED = "layers of lograd.integer take no lists"


def treated_by(bits: int | str) -> Treated:
    """Return the recipe of so many bits, "intN-full", or that of a name."""
    if isinstance(bits, str):
        return recipe(bits)
    return recipe(f"int{check_width('bits', bits, 2, 8)}-full")


def make_engine(
    treated: Treated, why_dense: str | None, device: torch.device, seed: int, backend: Backend = "integer"
) -> LayerEngine:
    """Return an engine whose operands are levels; a recipe that has other operands is refused.

    Args:
        why_dense: why the layer has no integer products; its operands are then rounded, and its products dense.
        seed: of the random numbers of all its sites.
        backend: "integer", or "auto" to take the faster of dense and integer products.
    """
    engine = LayerEngine(LayerPlan.of(treated), device, None)
    if (reason := reason_not_coded(engine)) is not None:
        raise InvalidValue(f"integer products take operands that are levels, as in 'int6-full': {reason}.")
    if any(operand.has_statistics for operand in engine.operands.values()):
        raise InvalidValue("this recipe takes statistics of earlier steps; attach a plan with it instead.")
    engine.choose(check_backend(backend), dict.fromkeys(PRODUCTS, "auto"), NOT_PRUNED, why_dense)
    seeds = np.random.SeedSequence(seed % 2**64).generate_state(len(engine.sites), np.uint64)
    for site, one in zip(engine.sites.values(), seeds.astype(np.int64).tolist(), strict=True):
        site.key[0] = one
    return engine
