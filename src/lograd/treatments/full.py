"""Recipes of whole methods: sentences for all operands of all three products, that of the output included."""

from __future__ import annotations

from typing import Literal

from ..formats import BlockFormat, parse_format
from .blocks import Blocks
from .hadamard import Hadamard
from .integers import Integers, Ranges
from .interval import Interval
from .learned import Learned
from .luq import Luq
from .products import ProductPlan, Treated
from .quantize import Rounding
from .sawb import Sawb
from .sentence import Sentence
from .statquant import StatQuant


def integers(bits: str, po2: str | None = None, activations: Integers | None = None) -> Treated:
    """Return all operands as levels: weights per channel, activations in hindsight, gradients stochastic.

    The gradient is coded twice.  dX sums over outputs, so it needs one range, with the weights' steps in the gradient;
    dW sums over samples, so each output has a range of its own there.  A BatchNorm behind outputs without weights gives
    these gradients hundreds of times larger than others, which would else have no codes left.

    Args:
        po2: given, steps of all operands are powers of two.
        activations: how activations are rounded; without, to as many bits, with one range in hindsight.
    """
    # Eight bits around the middle are signed bytes as they are; elsewhere in 0 to 255 they would need a correction.
    gradient = (Integers(int(bits), symmetric=bits == "8", rounding="stochastic", power_of_two=bool(po2)),)
    by_output = gradient if po2 else (Integers(int(bits), "column", symmetric=True, rounding="stochastic"),)
    return _levels(int(bits), gradient, by_output, bool(po2), activations)


def integers_by_row(bits: str) -> Treated:
    """Return `integers` with a range for each row of the activations of linear layers, that of the tensor itself.

    Activations of pre-trained transformers reach 17 to 95 standard deviations in a few tokens, and one range for all
    tokens leaves the others few levels.  The steps of rows are in the gradient before it is rounded for dW.  Patches of
    convolutions meet several rows, so activations of those have one range.
    """
    return integers(bits, activations=Integers(int(bits), "row"))


def mixed_integers(activations: str, bits: str, rows: str | None = None) -> Treated:
    """Return `integers`, or `integers_by_row`, with activations of another width than weights and gradients."""
    operand = Integers(int(activations), "row") if rows else Integers(int(activations), ranges="hindsight")
    return integers(bits, activations=operand)


def luq4(samples: str | None = None, hindsight: str | None = None) -> Treated:
    """Return LUQ of [chmiel2023]: INT4 weights and activations by SAWB, gradients in unbiased powers of two.

    Args:
        samples: SMP, so many draws of the gradient, whose mean enters the product for dW; dX has one draw.  (The
            released code hands the mean to both.)
        hindsight: given, the largest magnitude is that of earlier gradients.
    """
    ranges: Ranges = "hindsight" if hindsight else "current"
    operand, one = (Sawb(4),), (Luq(4, ranges=ranges),)
    mean = (Luq(4, samples=int(samples), ranges=ranges),) if samples else one
    return _shared(operand, operand, one, mean)


def interval(bits: str) -> Treated:
    """Return the method of [kim2024]: learned clips of weights and activations, gradients in an interval that follows.

    The paper's values are in units of the clip, which a BatchNorm behind the layer undoes; here they keep their size.
    """
    operand, gradient = (Learned(int(bits)),), (Interval(int(bits)),)
    return _shared(operand, operand, gradient, gradient)


def weights_and_activations(bits: str, method: str | None = None) -> Treated:
    """Return activations and weights as levels, and gradients as they are.

    Args:
        method: "clips" or "lsq" learns the ranges; without, weights have that of each channel and activations one in
            hindsight.
    """
    if method is None:
        return _levels(int(bits), (), ())
    operand = (Learned(int(bits), "lsq" if method == "lsq" else "clip"),)
    return _shared(operand, operand, (), ())


def _levels(
    bits: int, gradient: Sentence, by_output: Sentence, power_of_two: bool = False, activations: Integers | None = None
) -> Treated:
    operand = activations or Integers(bits, ranges="hindsight", power_of_two=power_of_two)
    weights = (Integers(bits, "channel", symmetric=True, power_of_two=power_of_two),)
    return _shared((operand,), weights, gradient, by_output)


def statquant(bits: str, method: Literal["ptq", "psq", "bhq"]) -> Treated:
    """Return fully quantized training of [chen2020]: 8-bit weights and activations per tensor, gradients twice.

    The gradient has `bits` by the method in the product for dX, and 8 bits per tensor in that for dW.  The paper treats
    all layers: `Plan.uniform(name, keep=())`.
    """
    operand = (Integers(8),)
    return _shared(operand, operand, (StatQuant(int(bits), method),), (StatQuant(8, "ptq"),))


def mxfp4() -> Treated:
    """Return MXFP4 in all products: the output to nearest, the backward as [tseng2025].

    There both operands are rounded stochastically and without bias, under one random Hadamard transform.  (The paper
    leaves the output in higher precision.)
    """
    nearest, unbiased = (_blocks("mxfp4", "nearest"),), (Hadamard(_blocks("mxfp4", "stochastic")),)
    return Treated(
        ProductPlan(activations=nearest, weights=nearest),
        ProductPlan(unbiased, weights=unbiased),
        ProductPlan(unbiased, activations=unbiased),
    )


def nvfp4() -> Treated:
    """Return NVFP4 in all products as [nvidia2025]: gradients stochastic, all else to nearest.

    Both operands of dW are under a random Hadamard transform of 16 neighbours.  The paper's scales for squares of
    weights, which it has in order to use one copy in Y and dX, are not part of it: each product rounds its own.
    """
    nearest, stochastic = _blocks("nvfp4", "nearest"), _blocks("nvfp4", "stochastic")
    return Treated(
        ProductPlan(activations=(nearest,), weights=(nearest,)),
        ProductPlan((stochastic,), weights=(nearest,)),
        ProductPlan((Hadamard(stochastic, 16),), activations=(Hadamard(nearest, 16),)),
    )


def _blocks(name: str, rounding: Rounding) -> Blocks:
    format = parse_format(name)
    assert isinstance(format, BlockFormat)
    return Blocks(format, rounding)


def _shared(activations: Sentence, weights: Sentence, for_input: Sentence, for_weight: Sentence) -> Treated:
    """Return the recipe whose weights and activations are the same in the output and in the backward."""
    return Treated(
        ProductPlan(activations=activations, weights=weights),
        ProductPlan(for_input, weights=weights),
        ProductPlan(for_weight, activations=activations),
    )
