"""The engine of one layer: three operands, three products, and the backend of each.

A gradient that arrives is observed, treated for each product, and multiplied with what it meets there.  Where both
products take one treated copy, one call of a backend computes them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import InvalidValue
from ..ops.contracts import FLOAT_TYPES
from ..ops.registry import call
from ..plan import LayerPlan
from ..treatments import BACKWARD, OPERANDS, PRODUCTS, SYMBOLS, Backend, describe
from .autograd import Form, Gradients, Need, Treated
from .backends.choice import INTEGER, SPARSE, Choice
from .block_coder import BlockCoder, reason_not_blocks
from .coder import LayerCoder, reason_not_coded, reason_not_integer, reason_not_served
from .learning import learning
from .operand import Operand
from .site import Site
from .slots import READY, all_counters

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
        """The backend of the products that a site of the gradient enters, by the site's name, and that of the output,
        by "output"; without one, dense."""
        self.why_dense = ""
        """The reason why products of pruned gradients are dense; empty if they need not be."""
        self._why_simulated = "dense products asked for"
        self._coder: LayerCoder | BlockCoder | None = None
        self.aligned = {product: self._is_aligned(product) for product in PRODUCTS}
        """By product, True if both operands are under one Hadamard transform, so that they have the same signs."""
        self.folds = plan.folds
        """True if the gradient is multiplied by the weight's steps, channel by channel, before it is rounded."""
        self.folds_rows = plan.folds_rows
        """True if the gradient of a linear layer is multiplied by the activations' steps, row by row, before it is
        rounded for dW."""
        self.turns = False
        """True if images leave an integer convolution channels-last, whatever the layout of its operands."""
        self.packs = False
        """True if saved codes of at most 4 bits share bytes, which takes a little time."""
        self._check_learning()
        self._learns = bool(self.learned)
        self.begin()

    @staticmethod
    def _operand(name: str, plan: LayerPlan, device: torch.device) -> Operand:
        sentences = {product: plan.site(product, name) for product in PRODUCTS if name in OPERANDS[product]}
        return Operand(name, sentences, plan.shares(name), device)

    def _is_aligned(self, product: str) -> bool:
        first, second = (self.operands[name].at[product] for name in OPERANDS[product])
        return bool(first and second and first.rotation is not None and first.rotation == second.rotation)

    def signs(self, product: str) -> Tensor | None:
        """Return the key that names the signs of the second operand of a product; None for its own."""
        first = self.operands[OPERANDS[product][0]].at[product]
        return first.key if first is not None and self.aligned[product] else None

    def _check_learning(self) -> None:
        """Refuse treatments that learn where no gradient would reach them."""
        for operand in self.operands.values():
            for product, site in operand.at.items():
                if site is None or site.learned is None:
                    continue
                if operand.at.get("output") is not site:
                    raise InvalidValue(
                        f"{describe(site.treatments)}: ranges are learned for activations and weights of the output, "
                        f"not for {operand.name} of {SYMBOLS[product]} alone; take Integers there."
                    )
                if not site.treatments[0].learns:
                    raise InvalidValue(f"{describe(site.treatments)}: what learns must come first in its sentence.")

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

    def choose(
        self, backend: Backend, asked: dict[str, Backend], why_not_sparse: str | None, why_not_integer: str | None
    ) -> None:
        """Let each product take the fastest backend that serves, or a given one, if it serves.

        Args:
            backend: for all products whose plan says "auto".
            asked: by product, what the plan says.
            why_not_sparse, why_not_integer: why these kernels do not serve this layer; None if they do.
        """
        groups = {"output": ("output",)} | {
            name: BACKWARD if self.gradient.shared else (name.partition(".")[0],) for name in self.gradient.sites
        }
        wanted = {
            name: next((asked[product] for product in products if asked[product] != "auto"), backend)
            for name, products in groups.items()
        }
        reasons = {name: reason_not_integer(self, name) for name in groups}
        in_blocks = any(site.block_levels for site in self.sites.values())
        reason = why_not_integer or (reason_not_blocks(self) if in_blocks else reason_not_coded(self))
        tried = [name for name in groups if reasons[name] is None and wanted[name] in ("auto", "integer")]
        if reason is None and in_blocks and any(one in ("auto", "integer") for one in wanted.values()):
            self._coder, self._why_simulated = BlockCoder(self), ""
            self.choices = {name: Choice(_serving(one, (INTEGER,)), (INTEGER,)) for name, one in wanted.items()}
            return
        if reason is None and tried and not in_blocks:
            self._coder = LayerCoder(self)
        for name in groups:
            serving = (INTEGER,) if self._coder is not None and reasons[name] is None else ()
            makes_zeros = name != "output" and self.gradient.sites[name].makes_zeros
            if makes_zeros and (wanted[name] == "dense" or why_not_sparse):
                self.why_dense = why_not_sparse or "asked for"
            elif makes_zeros:
                serving = (SPARSE, *serving)
            if serving or self._coder is not None:
                self.choices[name] = Choice(_serving(wanted[name], serving), serving)
        if reason is not None or tried:
            self._why_simulated = reason or "; ".join(dict.fromkeys(filter(None, reasons.values())))

    def reconsider(self) -> None:
        """Time the products again where the share of zeros has changed since."""
        for name, site in self.gradient.sites.items():
            if name in self.choices and (zeros := site.recent_zeros()) is not None:
                self.choices[name].reconsider(zeros)

    @property
    def coded(self) -> bool:
        """True if operands are coded for integer products, as far as the tensors that came allow it."""
        return self._coder is not None and not self._coder.refused

    @property
    def saves_codes(self) -> bool:
        """True if activations and weights are kept as codes for the backward."""
        return isinstance(self._coder, LayerCoder) and self.coded

    @property
    def why_simulated(self) -> str:
        """The reason why operands are rounded and not all products are integer ones; empty where all may be."""
        return (self._coder.refused if self._coder is not None else "") or self._why_simulated

    # -- the three products --

    def hold(self, held: bool) -> None:
        """Let operands of the output change nothing, or let them again."""
        for operand in (self.activations, self.weights):
            if (site := operand.at["output"]) is not None:
                site.held = held

    @property
    def learned(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are learned, by site."""
        return {name: site.learned for name, site in self.sites.items() if site.learned is not None}

    def follow(self) -> None:
        """Bring all that is learned up to its parameters, which an optimizer has moved."""
        for site in self.sites.values():
            site.follow()

    def learning(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the operands, with the ranges that are learned in front of the layer."""
        if not self._learns:
            return x, weight
        found = []
        for operand, tensor in ((self.activations, x), (self.weights, weight)):
            site = operand.at["output"]
            learns = site is not None and site.learned is not None and operand.ready and tensor.dtype in FLOAT_TYPES
            found.append(learning(tensor, site) if site is not None and learns else tensor)
        return found[0], found[1]

    def coder(self, x: Tensor, weight: Tensor) -> LayerCoder | BlockCoder | None:
        """Return what computes the layer from codes of these operands; None where they stay tensors."""
        coder = self._coder
        if coder is None or not coder.serves(x, weight):
            return None
        if torch.is_grad_enabled():
            for operand, tensor in ((self.activations, x), (self.weights, weight)):
                if operand.has_statistics:
                    operand.observe(tensor.detach())
        return coder

    def for_output(self, x: Tensor, weight: Tensor, form: Form) -> Treated:
        """Return activations and weights as the output takes them, None for one that it takes as it is; and factors."""
        if not self.treats_output:
            return None, None, None, None
        site = self.weights.at["output"]
        if site is None or not site.per_channel:
            treated, steps = self._for_output(self.weights, weight, form.summed("output"), self.signs("output")), None
        else:
            treated, steps = self._by_channel(site, weight.detach(), form)
        shared = self.folds and self.weights.shared and not form.transposed
        by_row = self.activations.at["output"]
        if by_row is None or not _has_rows(by_row, form):
            treated_x, rows = self._for_output(self.activations, x, (1,)), None
        else:
            treated_x, rows = self._by_row(by_row, x.detach())
        return treated_x, treated, steps if shared else None, rows if self.activations.shared else None

    @staticmethod
    def _for_output(
        operand: Operand, x: Tensor, contracted: tuple[int, ...], signs: Tensor | None = None
    ) -> Tensor | None:
        if operand.at["output"] is None:
            return None
        x = x.detach()
        if operand.has_statistics and torch.is_grad_enabled():
            operand.observe(x)
        return operand.treated(x, "output", contracted, signs)

    def _by_channel(self, site: Site, weight: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Return weights with a scale for each output, as a product takes them, and the step of each output."""
        if self.weights.has_statistics and torch.is_grad_enabled():
            self.weights.observe(weight)
        values, steps = site.treat_channels(form.oriented(weight), self.weights.control)
        return form.as_stored(values), steps

    def _by_row(self, site: Site, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return activations with a scale for each row, and the factors of the gradient's rows; None without any."""
        if self.activations.has_statistics and torch.is_grad_enabled():
            self.activations.observe(x)
        values, steps = site.treat_channels(x, self.activations.control)
        return values, steps if self.folds_rows else None

    def kept(self, x: Tensor, weight: Tensor, treated: Treated) -> tuple[Tensor, Tensor]:
        """Return activations and weights for the backward to read: those of the output where it shares them."""
        treated_x, treated_weight, *_ = treated
        return (
            treated_x if self.activations.shared and treated_x is not None else x,
            treated_weight if self.weights.shared and treated_weight is not None else weight,
        )

    def backward(
        self, form: Form, g: Tensor, x: Any, weight: Any, need: Need, fold: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Gradients:  # fmt: skip
        """Return dX, dW and dbias from the gradient of the output; anything where one is not needed.

        Args:
            fold: factors of the gradient's channels, where the weights are those of the output.
            rows: factors of the gradient's rows, where the activations are those of the output.
        """
        gradient = self.gradient
        gradient.observe(g)
        site = self.activations.at["weight_gradient"]
        if need[1] and site is not None and _has_rows(site, form) and not self.activations.shared:
            x, rows = self._by_row(site, x)
        elif need[1]:
            x = self._met(self.activations, x, "weight_gradient", _all_but_channels(x))
        if need[0]:
            site = self.weights.at["input_gradient"]
            if site is not None and site.per_channel and not self.weights.shared:
                weight, steps = self._by_channel(site, weight, form)
                fold = steps if self.folds and not form.transposed else None
            else:
                weight = self._met(self.weights, weight, "input_gradient", form.summed("input_gradient"))
        found: list[Tensor | None] = [None, None, None]
        for name, site, contracted, wanted in self.passes(g, need):
            choice, threshold = self.choices.get(name), None if site is None else site.threshold
            treated = g
            if site is not None and (choice is None or threshold is None):
                factors, dim = (rows, 0) if name == "weight_gradient.gradient" else (fold, 1)
                treated = call(
                    "treat", g, site.text, contracted, site.numbers, gradient.control, *site.changing, factors, None,
                    dim,
                )  # fmt: skip
            if site is None or choice is None or SPARSE not in choice.serving:
                results = form.products(treated, x, weight, wanted)
            else:
                d_x, d_weight, d_bias = call(
                    "multiply", treated, *form.operands(g, x, weight), *form.geometry, threshold, gradient.control,
                    site.key, site.counters, choice.tensor, *wanted,
                )  # fmt: skip
                results = d_x, form.as_stored(d_weight) if wanted[1] else d_weight, d_bias
            if rows is not None and wanted[2]:  # rows of zeros have no part in dW, and are lost there; not so in dbias
                results = *results[:2], g.sum(0)
            found = [new if is_wanted else old for old, new, is_wanted in zip(found, results, wanted, strict=True)]
        return tuple(found)

    def passes(self, g: Tensor, need: Need) -> list[tuple[str, Site | None, tuple[int, ...], Need]]:
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

    def _met(self, operand: Operand, x: Tensor, product: str, contracted: tuple[int, ...]) -> Tensor:
        """Return the operand that the gradient meets in a product; a copy shared with the output is there already."""
        if operand.shared or operand.at[product] is None:
            return x
        if operand.has_statistics and operand.at["output"] is None:
            operand.observe(x)
        return operand.treated(x, product, contracted, self.signs(product))

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
        for operand in self.operands.values():
            operand.set_ready(bool(operand.control[READY]))
        for site in self.sites.values():
            site.recent_zeros()  # what was counted before is not recent

    def move_to(self, device: torch.device) -> None:
        """Follow the layer to another device."""
        if device.type != "meta" and device != self.gradient.histogram.device:
            for operand in self.operands.values():
                operand.move_to(device)

    def converted(self, parameter: Tensor) -> None:
        """Follow the layer to the device and type of its parameters."""
        self.move_to(parameter.device)
        if self._coder is not None and (reason := reason_not_served(parameter, parameter)):
            self._coder.refused = reason  # until the next tensors come, which may be those of another type again

    def copied(self) -> None:
        """Say that the copy of the layer that is being made is plain."""
        if self.owner is not None:
            self.owner.copied()

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """Return None: a copy of the layer that takes all its attributes along has no engine."""
        self.copied()


def _serving(wanted: Backend, serving: tuple[int, ...]) -> Backend:
    """Return the backend that was asked for where it serves, else "dense"; "auto" needs one that serves."""
    serves = {"auto": bool(serving), "sparse": SPARSE in serving, "integer": INTEGER in serving}
    return wanted if serves.get(wanted) else "dense"


def _has_rows(site: Site, form: Form) -> bool:
    """Return True if a site gives activations a scale for each row, as it does in linear layers."""
    return site.per_row and not form.geometry.stride


def _all_but_channels(x: Tensor) -> tuple[int, ...]:
    """Return the dimensions that the product for dW sums over: samples and pixels."""
    return (0, *range(2, x.dim()))
