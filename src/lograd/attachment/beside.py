"""The part of a plan beside layers: attention in integers, BatchNorm with its ReLU, activations kept as codes."""

from __future__ import annotations

from torch import nn

from ..nn import (
    AttentionHandle,
    NormalizationHandle,
    SavedHandle,
    attention,
    normalization,
    saved_activations,
)
from ..plan import Plan

Beside = dict[str, AttentionHandle | NormalizationHandle | SavedHandle]
"""The handles of what is in force, by a name for people."""


def carried_out_beside(model: nn.Module, plan: Plan, seed: int) -> Beside:
    """Return what the plan asks for beside layers, in force from now on."""
    found: Beside = {}
    if plan.attention is not None:
        found["scaled_dot_product_attention"] = attention(model, plan.attention)
    if plan.normalization:
        found["BatchNorm and ReLU"] = normalization(model)
    if plan.saved is not None:
        found["kept for the backward"] = saved_activations(model, plan.saved, seed)
    return found
