"""The engine of one layer: three operands, three products, and the backend of each.

A gradient that arrives is observed, treated for each product, and multiplied with what it meets there.  Where both
products take one treated copy, one call of a backend computes them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..ops.registry import call
from ..plan import LayerPlan
from ..treatments import BACKWARD, OPERANDS, PRODUCTS, Backend
from .autograd import Form, Gradients, Need, Treated
from .backends.choice import Choice
from .operand import Operand
from .site import Site
from .slots import all_counters

OPERAND_NAMES = ("gradient", "weights", "activations")


class Owner(Protocol):
    """The object that the layers of one handle share."""

    def copied(self) -> None:
        """Say once that a copy of the model is plain."""


class LayerEngine:
    """The sites, operands and backends of one attached layer.

    Args:
        plan: what is done for each product.
        device: where the layer's parameters are.
        owner: told when the layer is copied.
    """

    def __init__(self, plan: LayerPlan, device: torch.device, owner: Owner | None) -> None:
        self.owner = owner
        self.operands = {name: self._operand(name, plan, device) for name in OPERAND_NAMES}
        self.gradient, self.weights, self.activations = (self.operands[name] for name in OPERAND_NAMES)
        self.choices: dict[str, Choice] = {}
        """The backend of the products that a site of the gradient enters, by the site's name; without one, dense."""
        self.why_dense = ""
        """The reason why products of pruned gradients are dense; empty if they need not be."""
        self.begin()

    @staticmethod
    def _operand(name: str, plan: LayerPlan, device: torch.device) -> Operand:
        sentences = {product: plan.site(product, name) for product in PRODUCTS if name in OPERANDS[product]}
        return Operand(name, sentences, plan.shares(name), device)

    @property
    def sites(self) -> dict[str, Site]:
        """The distinct sites of all operands, by name."""
        return {name: site for operand in self.operands.values() for name, site in operand.sites.items()}

    @property
    def treats_output(self) -> bool:
        """True if the output takes treated operands."""
        return self.activations.at["output"] is not None or self.weights.at["output"] is not None

    def begin(self) -> None:
        """Treat what needs no statistics; the rest is treated once it has them."""
        for operand in self.operands.values():
            operand.begin()

    def wait(self) -> None:
        """Let everything pass until `begin`."""
        for operand in self.operands.values():
            operand.wait()

    # -- backends --

    def choose(self, backend: Backend, asked: dict[str, Backend], why_dense: str | None) -> None:
        """Let the products of gradients that are made sparse take the faster backend, or a given one, if it serves.

        Args:
            backend: for all products whose plan says "auto".
            asked: by product, what the plan says.
            why_dense: why sparse kernels do not serve this layer; None if they do.
        """
        for name, site in self.gradient.sites.items():
            products = BACKWARD if self.gradient.shared else (name.partition(".")[0],)
            wanted = next((asked[product] for product in products if asked[product] != "auto"), backend)
            if not site.makes_zeros:
                continue
            if wanted == "dense" or why_dense:
                self.why_dense = why_dense or "asked for"
            else:
                self.choices[name] = Choice(wanted)

    def reconsider(self) -> None:
        """Time the products again where the share of zeros has changed since."""
        for name, choice in self.choices.items():
            if (zeros := self.gradient.sites[name].recent_zeros()) is not None:
                choice.reconsider(zeros)

    # -- the three products --

    def for_output(self, x: Tensor, weight: Tensor, form: Form) -> tuple[Tensor | None, Tensor | None]:
        """Return activations and weights as the output takes them; None for one that it takes as it is."""
        if not self.treats_output:
            return None, None
        return (
            self._for_output(self.activations, x, (1,)),
            self._for_output(self.weights, weight, form.summed("output")),
        )

    @staticmethod
    def _for_output(operand: Operand, x: Tensor, contracted: tuple[int, ...]) -> Tensor | None:
        if operand.at["output"] is None:
            return None
        x = x.detach()
        if operand.has_statistics and torch.is_grad_enabled():
            operand.observe(x)
        return operand.treated(x, "output", contracted)

    def kept(self, x: Tensor, weight: Tensor, treated: Treated) -> tuple[Tensor, Tensor]:
        """Return activations and weights for the backward to read: those of the output where it shares them."""
        treated_x, treated_weight = treated
        return (
            treated_x if self.activations.shared and treated_x is not None else x,
            treated_weight if self.weights.shared and treated_weight is not None else weight,
        )

    def backward(self, form: Form, g: Tensor, x: Any, weight: Any, need: Need) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output; anything where one is not needed."""
        gradient = self.gradient
        gradient.observe(g)
        if need[1]:
            x = self._met(self.activations, x, "weight_gradient", _all_but_channels(x))
        if need[0]:
            weight = self._met(self.weights, weight, "input_gradient", form.summed("input_gradient"))
        found: list[Tensor | None] = [None, None, None]
        for name, site, contracted, wanted in self._passes(g, need):
            choice, threshold = self.choices.get(name), None if site is None else site.threshold
            treated = g
            if site is not None and (choice is None or threshold is None):
                treated = call("treat", g, site.text, contracted, site.numbers, gradient.control, *site.changing)
            if site is None or choice is None:
                results = form.products(treated, x, weight, wanted)
            else:
                d_x, d_weight, d_bias = call(
                    "multiply", treated, *form.operands(g, x, weight), *form.geometry, threshold, gradient.control,
                    site.key, site.counters, choice.tensor, *wanted,
                )  # fmt: skip
                results = d_x, form.as_stored(d_weight) if wanted[1] else d_weight, d_bias
            found = [new if is_wanted else old for old, new, is_wanted in zip(found, results, wanted, strict=True)]
        return tuple(found)

    def _passes(self, g: Tensor, need: Need) -> list[tuple[str, Site | None, tuple[int, ...], Need]]:
        """Return the sites that the gradient goes through: name, site, summed dimensions, and what is computed there.

        Both products are computed at once where they take one copy.
        """
        at = self.gradient.at
        if at["input_gradient"] is at["weight_gradient"]:
            return [("gradient", at["input_gradient"], (), need)]
        sides = [
            ("input_gradient.gradient", at["input_gradient"], (1,), (need[0], False, False)),
            ("weight_gradient.gradient", at["weight_gradient"], _all_but_channels(g), (False, need[1], need[2])),
        ]
        return [side for side in sides if any(side[3])]

    @staticmethod
    def _met(operand: Operand, x: Tensor, product: str, contracted: tuple[int, ...]) -> Tensor:
        """Return the operand that the gradient meets in a product; a copy shared with the output is there already."""
        if operand.shared or operand.at[product] is None:
            return x
        if operand.has_statistics and operand.at["output"] is None:
            operand.observe(x)
        return operand.treated(x, product, contracted)

    # -- tensors --

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes as tensors pass, by name."""
        named = {name: tensor for operand in self.operands.values() for name, tensor in operand.tensors().items()}
        return named | {f"{name}.choice": one.tensor for name, one in self.choices.items() if not one.fixed}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the `tensors` of another layer engine; products without a saved choice are timed again."""
        for name, tensor in self.tensors().items():
            if name in tensors:
                given = tensors[name].detach()
                if name.endswith(".choice"):
                    self.choices[name.removesuffix(".choice")].load(given)
                else:
                    tensor.copy_(all_counters(given) if name.endswith(".counters") else given)
        for site in self.sites.values():
            site.recent_zeros()  # what was counted before is not recent

    def move_to(self, device: torch.device) -> None:
        """Follow the layer to another device."""
        if device.type != "meta" and device != self.gradient.histogram.device:
            for operand in self.operands.values():
                operand.move_to(device)

    def copied(self) -> None:
        """Say that the copy of the layer that is being made is plain."""
        if self.owner is not None:
            self.owner.copied()

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """Return None: a copy of the layer that takes all its attributes along has no engine."""
        self.copied()


def _all_but_channels(x: Tensor) -> tuple[int, ...]:
    """Return the dimensions that the product for dW sums over: samples and pixels."""
    return (0, *range(2, x.dim()))
