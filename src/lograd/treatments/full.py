"""Recipes of whole methods: sentences for all operands of all three products, that of the output included."""

from __future__ import annotations

from typing import Literal

from .integers import Integers
from .luq import Luq
from .products import ProductPlan, Treated
from .sentence import Sentence
from .statquant import StatQuant


def integers(bits: str) -> Treated:
    """Return all operands as levels: weights per channel, activations in hindsight, gradients stochastic.

    Each operand is coded once for the two products that it enters.
    """
    # Eight bits around the middle are signed bytes as they are; elsewhere in 0 to 255 they would need a correction.
    gradient = (Integers(int(bits), symmetric=bits == "8", rounding="stochastic"),)
    return _levels(int(bits), gradient)


def luq4() -> Treated:
    """Return LUQ of [chmiel2023]: INT4 weights and activations to nearest, gradients in unbiased powers of two.

    The paper clips weights and activations by SAWB; here weights have the range of each channel and activations one in
    hindsight.  Its mean of several gradients for dW (SMP) is not part of it.
    """
    return _levels(4, (Luq(4),))


def _levels(bits: int, gradient: Sentence) -> Treated:
    activations = (Integers(bits, ranges="hindsight"),)
    weights = (Integers(bits, "channel", symmetric=True),)
    return _shared(activations, weights, gradient, gradient)


def statquant(bits: str, method: Literal["ptq", "psq", "bhq"]) -> Treated:
    """Return fully quantized training of [chen2020]: 8-bit weights and activations per tensor, gradients twice.

    The gradient has `bits` by the method in the product for dX, and 8 bits per tensor in that for dW.  The paper treats
    all layers: `Plan.uniform(name, keep=())`.
    """
    operand = (Integers(8),)
    return _shared(operand, operand, (StatQuant(int(bits), method),), (StatQuant(8, "ptq"),))


def _shared(activations: Sentence, weights: Sentence, for_input: Sentence, for_weight: Sentence) -> Treated:
    """Return the recipe whose weights and activations are the same in the output and in the backward."""
    return Treated(
        ProductPlan(activations=activations, weights=weights),
        ProductPlan(for_input, weights=weights),
        ProductPlan(for_weight, activations=activations),
    )
