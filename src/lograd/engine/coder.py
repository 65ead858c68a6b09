"""The products of one layer from codes of its operands, and the reasons why a layer has none."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..ops.integer_operands import fold_by
from ..ops.registry import call
from ..treatments import SYMBOLS
from .autograd import Decoded, Engine, Form, Gradients, Need, Saved
from .backends.choice import Choice
from .coding import Codes, in_bytes
from .operand import Operand
from .site import Site


class Layer(Engine, Protocol):
    """The engine of a layer, as its coder sees it."""

    activations: Operand
    weights: Operand
    gradient: Operand
    choices: dict[str, Choice]
    folds: bool
    folds_rows: bool
    turns: bool
    packs: bool
    aligned: dict[str, bool]

    def passes(self, g: Tensor, need: Need) -> list[tuple[str, Site | None, tuple[int, ...], Need]]:
        """Return the sites that the gradient goes through; see `LayerEngine`."""


def reason_not_served(x: Tensor, weight: Tensor) -> str:
    """Return the type and device of tensors that integer products do not serve; empty for those that they do."""
    if x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu":
        return ""
    return f"the tensors are {str(x.dtype).removeprefix('torch.')} on {x.device.type}"


class LayerCoder:
    """Codes activations and weights for the output, and computes the backward from them: codes are all that is saved.

    Args:
        engine: of the layer; `reason_not_coded` has none.
    """

    def __init__(self, engine: Layer) -> None:
        self.engine = engine
        self.refused = ""
        """The type or device of the last tensors, where integer products do not serve it."""

    def serves(self, x: Tensor, weight: Tensor) -> bool:
        """Return True if these tensors can be coded now."""
        engine = self.engine
        if not (engine.activations.ready and engine.weights.ready):
            return False
        self.refused = reason_not_served(x, weight)
        return not self.refused and x.numel() > 0

    def output(self, form: Form, x: Tensor, weight: Tensor, bias: Tensor | None, need: Need) -> tuple[Tensor, ...]:
        """Return Y, and codes, scale and zero of activations and weights."""
        engine = self.engine
        sites = [site for site in (engine.activations.at["output"], engine.weights.at["output"]) if site is not None]
        y, *codes = call(
            "coded_output", x, form.oriented(weight), bias, *form.geometry,
            *(part for site in sites for part in (site.text, site.numbers, *site.changing)),
            engine.choices["output"].seen_by(sites[0].held), engine.turns,
            need[1] and engine.packs and sites[0].nibbles,
        )  # fmt: skip
        for place, needed in ((0, need[1]), (3, need[0])):
            if not needed:
                codes[place] = codes[place].new_empty(()).expand(codes[place].shape)
        return y, *codes

    def backward(self, form: Form, g: Tensor, saved: Saved, need: Need) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and the codes of its operands."""
        engine, gradient = self.engine, self.engine.gradient
        passes = engine.passes(g, need)
        if any(site is None for _, site, _, _ in passes):
            x, weight, *factors = self.decoded(form, saved)
            return engine.backward(form, g, x, weight, need, *factors)
        gradient.observe(g)
        found: list[Tensor | None] = [None, None, None]
        for name, site, contracted, wanted in passes:
            assert site is not None
            choice = engine.choices[name]
            d_x, d_weight, d_bias = call(
                "coded_products", g, *saved.tensors, *form.geometry, saved.x_turned, saved.weight_turned, site.text,
                contracted, site.numbers, gradient.control, *site.changing, choice.tensor, choice.serving,
                self._folds(name, form), *wanted,
            )  # fmt: skip
            results = d_x, form.as_stored(d_weight) if wanted[1] else d_weight, d_bias
            found = [new if is_wanted else old for old, new, is_wanted in zip(found, results, wanted, strict=True)]
        return tuple(found)

    def decoded(self, form: Form, saved: Saved) -> Decoded:
        """Return activations, weights and factors of the gradient, as the engine's `backward` takes them."""
        x_codes, x_scale, x_zero, weight_codes, weight_scale, weight_zero = saved.tensors
        x_codes = in_bytes(x_codes, form.geometry.groups * weight_codes.shape[1])
        x, weight = Codes(x_codes, x_scale, x_zero), Codes(weight_codes, weight_scale, weight_zero)
        values = [one.decode() for one in (x, weight)]
        if len(form.geometry.stride) == 1:
            values = [one.squeeze(2) for one in values]
        fold = fold_by(weight.step).factors if self.engine.folds else None
        rows = fold_by(x.step).factors if self.engine.folds_rows and not form.geometry.stride else None
        return values[0], form.as_stored(values[1]), fold, rows

    def _folds(self, name: str, form: Form) -> bool:
        """Return True if the gradient of a site is multiplied by the steps of the operand that it meets.

        These are the weight's, channel by channel, or in dW of a linear layer those of the activations, row by row.
        """
        if name == "weight_gradient.gradient":
            return self.engine.folds_rows and not form.geometry.stride
        return self.engine.folds


def reason_not_coded(engine: Layer) -> str | None:
    """Return why activations and weights of a layer are not kept as codes; None if they are."""
    for operand in (engine.activations, engine.weights):
        site = operand.at["output"]
        if site is None or not site.levels:
            return f"{operand.name} of Y are not rounded to levels"
        if not operand.shared:
            return f"{operand.name} are not the same in Y and in the backward"
        if site.per_column:
            return f"{operand.name} have a scale for each column, and Y sums over columns"
    site = engine.activations.at["output"]
    if site is not None and site.per_channel:
        return "activations have a scale and a zero point for each sample; per='row' has one zero point for all"
    return None


def reason_not_integer(engine: Layer, name: str) -> str | None:
    """Return why the products of a site of the gradient, or "output", are no integer ones; None if they may be.

    Activations and weights are taken to be codes.
    """
    if name == "output":
        return None
    site, product = engine.gradient.sites[name], name.rpartition(".")[0]
    where = f" in {SYMBOLS[product]}" if product else ""
    if site.per_sample and product != "input_gradient":
        return f"the gradient{where} has a range for each sample, and dW sums over samples"
    if not (site.levels or site.per_sample):
        return f"the gradient{where} is not rounded to levels"
    if site.per_channel:
        return f"the gradient{where} has a scale for each sample"
    if site.per_column and product != "weight_gradient":
        return f"the gradient{where} has a scale for each column, and dX sums over columns"
    activations = engine.activations.at["weight_gradient"]
    if product != "input_gradient" and activations is not None and activations.per_row and not engine.folds_rows:
        return f"dW sums over the scales of the activations, which the gradient{where} cannot be multiplied by"
    weights = engine.weights.at["input_gradient"]
    if product != "weight_gradient" and not site.can_fold and weights is not None and weights.per_channel:
        return f"dX sums over the scales of the weights, which the gradient{where} cannot be multiplied by"
    return None
