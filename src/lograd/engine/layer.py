"""The engine of one layer: three operands, three products, and the backend of each.

A gradient that arrives is observed, treated for each product, and multiplied with what it meets there.  Where both
products take one treated copy, one call of a backend computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..errors import InvalidValue
from ..ops.contracts import FLOAT_TYPES, Takes
from ..ops.layouts import dense
from ..ops.registry import direct, register
from ..plan import LayerPlan
from ..treatments import BACKWARD, OPERANDS, PRODUCTS, SYMBOLS, Backend, Learned, describe
from .autograd import CODES, PLAIN, VALUES, Call
from .backends import integer, sparse
from .backends.blocks import BlockProducts, reason_not_blocks
from .backends.choice import INTEGER, SPARSE, Choice
from .backends.integer import CodedProducts, reason_not_coded, reason_not_levels, reason_not_served
from .forms import Form, Gradients, Need, empty, form_of, laid_out
from .rows import backward_of_rows, without_zeros
from .site import CPU, PASSES, READY, Levels, Operand, Site, zeros

OPERAND_NAMES = ("gradient", "weights", "activations")
_numbers = count(1)
_engines: WeakValueDictionary[int, LayerEngine] = WeakValueDictionary()
"""The engines of all layers, by the number in their `state`: so the operators find them."""


class Owner(Protocol):
    """The object that the layers of one handle share."""

    def copied(self) -> None:
        """Say once that a copy of the model is plain."""

    def observed(self, gradients: int) -> None:
        """Be told how many gradients of a layer have come by."""


class LayerEngine:
    """The sites, operands and backends of one attached layer.

    Args:
        plan: what is done for each product.
        device: where the layer's parameters are.
        owner: told when the layer is copied.
        units: what may be left out of its products (`row_units`).
    """

    def __init__(
        self, plan: LayerPlan, device: torch.device, owner: Owner | None, units: tuple[str, ...] = ("row", "sample")
    ) -> None:
        self.owner = owner
        self.state = zeros(1, torch.int64, CPU)
        """The number of the engine, in a tensor: one compiled graph serves layers that are alike.  Operators say that
        they change it, so that a compiler neither joins nor drops them."""
        number = next(_numbers)
        self.state[0] = number
        _engines[number] = self
        self.operands = {name: self._operand(name, plan, device, units) for name in OPERAND_NAMES}
        self.gradient, self.weights, self.activations = (self.operands[name] for name in OPERAND_NAMES)
        self.choices: dict[str, Choice] = {}
        """The backend of the products that a site of the gradient enters, by the site's name, and that of the output,
        by "output"; without one, dense."""
        self.why_dense = ""
        """The reason why products of pruned gradients are dense; empty if they need not be."""
        self._why_simulated = "dense products asked for"
        self._coder: CodedProducts | BlockProducts | None = None
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
        rules = [site.rows for site in self.gradient.sites.values() if site.rows is not None]
        self.drops_rows = bool(rules)
        """True if rows of the gradient are left out in front of the products."""
        self.by_sample = any(rule.of == "sample" for rule in rules)
        """True if something is decided for all rows of a sample together."""
        self.skips_zeros = plan.treats
        """True if rows of zeros are left out of the products: where nothing is treated, every bit stays as it is."""
        self.treats_output = self.activations.at["output"] is not None or self.weights.at["output"] is not None
        """True if the output takes treated operands."""
        self.output_error: float | None = None
        """The relative squared error of the first output that took rounded operands; None before it."""
        self._check_learning()
        self._learns = bool(self.learned)
        self.begin()

    @staticmethod
    def _operand(name: str, plan: LayerPlan, device: torch.device, units: tuple[str, ...]) -> Operand:
        sentences = {product: plan.site(product, name) for product in PRODUCTS if name in OPERANDS[product]}
        return Operand(name, sentences, plan.shares(name), device, units if name == "gradient" else ())

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
                if not isinstance(site.treatments[0], Learned):
                    raise InvalidValue(f"{describe(site.treatments)}: what learns must come first in its sentence.")

    @property
    def sites(self) -> dict[str, Site]:
        """The distinct sites of all operands, by name."""
        return {name: site for operand in self.operands.values() for name, site in operand.sites.items()}

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
        reasons = {name: reason_not_levels(self, name) for name in groups}
        in_blocks = any(site.block_levels for site in self.sites.values())
        reason = why_not_integer or (reason_not_blocks(self) if in_blocks else reason_not_coded(self))
        tried = [name for name in groups if reasons[name] is None and wanted[name] in ("auto", "integer")]
        if reason is None and in_blocks and any(one in ("auto", "integer") for one in wanted.values()):
            self._coder, self._why_simulated = BlockProducts(self), ""
            self.choices = {name: Choice(_serving(one, (INTEGER,)), (INTEGER,)) for name, one in wanted.items()}
            return
        if reason is None and tried and not in_blocks:
            self._coder = CodedProducts(self)
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
        return isinstance(self._coder, CodedProducts) and self.coded

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

    def learned_ranges(self, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the parameters of ranges that are learned, of activations and of weights."""
        if not self._learns:
            return None, None
        return self._learned(self.activations, x), self._learned(self.weights, weight)

    @staticmethod
    def _learned(operand: Operand, x: Tensor) -> Tensor | None:
        site = operand.at["output"]
        return site.learned if site is not None and operand.ready and x.dtype in FLOAT_TYPES else None

    def mode(self, x: Tensor, weight: Tensor) -> int:
        """Return how the operands of the output are treated now."""
        if self._coder is not None and self._coder.serves(x, weight):
            return self._coder.mode
        return VALUES if self.treats_output else PLAIN

    def output(
        self, call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, held: bool
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return Y, and the tensors that `backward` reads."""
        if call.mode == PLAIN:
            return call.form.output(x, weight, bias), call.form.saved(x, weight, call.need)
        if direct(x, weight):
            y, *made = self.compute_output(call, x, weight, bias, held)
            assert y is not None
        else:
            y, *made = torch.ops.lograd.layer_forward.default(
                x, weight, bias, self.state, call.mode, call.form.numbers, _flags(call), self._promise(call), held
            )
        return y, self._kept(call, x, weight, made)

    def compute_output(
        self, call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, held: bool
    ) -> Sequence[Tensor | None]:
        """Return Y and what was made of the operands for it: their codes, or treated copies and factors."""
        x, weight = x.detach(), weight.detach()
        if held:
            self.hold(True)
        try:
            for operand, tensor in ((self.activations, x), (self.weights, weight)):
                if operand.has_statistics and operand.at["output"] is not None and not held:
                    operand.observe(tensor)
                if self._learns and (site := operand.at["output"]) is not None and operand.ready:
                    site.follow(tensor)
            made: Sequence[Tensor | None]
            if call.mode != VALUES:
                assert self._coder is not None
                y, made = (found := self._coder.output(call, x, weight, bias))[0], found[1:]
            else:
                made = self._values(x, weight, call.form)
                taken = x if made[0] is None else made[0], weight if made[1] is None else made[1]
                y = call.form.output(*taken, bias)
            if self.output_error is None and not held:
                self._compare(y, call, x, weight, bias)
            return y, *made
        finally:
            if held:
                self.hold(False)

    def _compare(self, y: Tensor | None, call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Compare an output with the plain one, once all its operands are treated."""
        operands = (one for one in (self.activations, self.weights) if one.at["output"] is not None)
        if y is None or y.is_meta or not all(one.ready for one in operands):
            return
        plain = call.form.output(x, weight, bias)
        error, energy = (float(torch.linalg.vector_norm(one, dtype=torch.float64)) ** 2 for one in (y - plain, plain))
        self.output_error = error / energy if energy else 0.0

    def _values(self, x: Tensor, weight: Tensor, form: Form) -> tuple[Tensor | None, ...]:
        """Return activations and weights as the output takes them, None for one that it takes as it is; and factors.

        The factors are the steps of weights that have one for each output, which belong into dX, and of activations
        that have one for each row, which belong into dW: the gradient is multiplied by them before it is rounded, and
        divided afterwards (`Setting.fold`).
        """
        has_x, has_weight, has_fold, has_rows = self._made(form)
        treated_x = treated = steps = rows = None
        site = self.weights.at["output"]
        if site is not None and site.per_channel:
            treated, steps = self._by_channel(site, weight, form)
        elif has_weight:
            treated = self.weights.treated(weight, "output", form.summed("output"), self.signs("output"))
        site = self.activations.at["output"]
        if site is not None and _has_rows(site, form):
            treated_x, rows = site.treat_channels(x, self.activations.control)
        elif has_x:
            treated_x = self.activations.treated(x, "output", (1,))
        return treated_x, treated, steps if has_fold else None, rows if has_rows else None

    def _made(self, form: Form) -> list[bool]:
        """Return which of activations, weights, factors of channels and of rows `_values` gives."""
        activations, weights = self.activations.at["output"], self.weights.at["output"]
        folds = self.folds and self.weights.shared and not form.transposed
        by_row = activations is not None and _has_rows(activations, form) and self.activations.shared
        return [
            activations is not None, weights is not None, folds and weights is not None and weights.per_channel,
            by_row and self.folds_rows,
        ]  # fmt: skip

    def _promise(self, call: Call) -> list[int]:
        """Return what the fake of the operator has to know beside the tensors."""
        if call.mode != VALUES and self._coder is not None:
            return self._coder.promise(call)
        return [int(made) for made in self._made(call.form)]

    def _kept(self, call: Call, x: Tensor, weight: Tensor, made: Sequence[Any]) -> tuple[Tensor | None, ...]:
        """Return what the backward reads: of codes that it does not need, the shape alone."""
        if call.mode == CODES:
            x_codes, of_x, weight_codes, of_weight = made
            if not call.need[1]:
                x_codes = x_codes.new_empty(()).expand(x_codes.shape)
            if not call.need[0]:
                weight_codes = weight_codes.new_empty(()).expand(weight_codes.shape)
            return x_codes, of_x, weight_codes, of_weight
        if call.mode != VALUES:
            return x if call.need[1] else None, weight if call.need[0] else None
        treated_x, treated, fold, rows = made
        has_x, has_weight, has_fold, has_rows = self._made(call.form)
        met_x = treated_x if self.activations.shared and has_x else x
        met = treated if self.weights.shared and has_weight else weight
        kept = call.form.saved(met_x, met, call.need)
        return *kept, fold if has_fold else None, rows if has_rows else None

    def _by_channel(self, site: Site, weight: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Return weights with a scale for each output, as a product takes them, and the step of each output."""
        values, steps = site.treat_channels(form.oriented(weight), self.weights.control)
        return form.oriented(values), steps

    def traced_backward(self, call: Call, g: Tensor, saved: Sequence[Any]) -> Gradients:
        """Return what `compute_backward` does, by an operator that tracers do not look into."""
        given = [g.new_empty(0) if tensor is None else tensor for tensor in saved]
        found: Gradients = torch.ops.lograd.layer_backward.default(
            g, given, self.state, call.mode, call.form.numbers, _flags(call), call.x_shape, call.weight_shape
        )
        return found

    def compute_backward(self, call: Call, g: Tensor, saved: Sequence[Any]) -> Gradients:
        """Return dX, dW, dbias and the gradients of learned ranges."""
        self.gradient.observe(g)
        if self.owner is not None:
            self.owner.observed(int(self.gradient.seen.numpy()[PASSES]))
        count = len(saved) - sum(call.learns)
        operands, learning = tuple(saved[:count]), list(saved[count:])
        # Here the gradient and what was saved of the operands meet, before any of it is rounded or multiplied.
        if self.drops_rows and self.gradient.ready and g.dtype in FLOAT_TYPES and g.numel() > 0:
            d_x, d_weight, d_bias = backward_of_rows(self, call, g, operands)
        elif self._coder is not None and call.mode >= CODES:
            d_x, d_weight, d_bias = self._coder.backward(call, g, operands)
        else:
            d_x, d_weight, d_bias = self.products_of_values(call, g, *operands)
        d_ranges: list[Tensor | None] = [None, None]
        if learning:
            if call.learns[0]:
                d_x, d_ranges[0] = self._cut(self.activations, d_x, learning.pop(0))
            if call.learns[1]:
                d_weight, d_ranges[1] = self._cut(self.weights, d_weight, learning.pop(0))
        return d_x, d_weight, d_bias, *d_ranges

    def by_mode(self, call: Call, g: Tensor, operands: tuple[Any, ...]) -> Gradients:
        """Return dX, dW and dbias from a gradient and the operands that the layer has saved."""
        if self._coder is None or call.mode < CODES:
            return self.products_of_values(call, g, *operands)
        return self._coder.backward(call, g, operands)

    def activations_of(self, call: Call, operands: tuple[Any, ...]) -> Tensor:
        """Return the activations that the layer has saved, as numbers."""
        if call.mode != CODES:
            found: Tensor = operands[0]
            return found
        channels = call.form.geometry.groups * operands[2].shape[1]
        return Levels(integer.in_bytes(operands[0], channels), operands[1]).decode()

    @staticmethod
    def _cut(operand: Operand, d: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of an operand whose range is learned, and of the range."""
        site = operand.at["output"]
        assert site is not None
        assert d is not None
        return site.learn(d, x)

    def products_of_values(
        self, call: Call, g: Tensor, x: Any, weight: Any, fold: Tensor | None = None, rows: Tensor | None = None
    ) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and operands that are tensors.

        Args:
            fold: factors of the gradient's channels, where the weights are those of the output.
            rows: factors of the gradient's rows, where the activations are those of the output.
        """
        form, need, gradient = call.form, call.need, self.gradient
        site = self.activations.at["weight_gradient"]
        if need[1] and site is not None and _has_rows(site, form) and not self.activations.shared:
            if self.activations.has_statistics and self.activations.at["output"] is None:
                self.activations.observe(x)
            x, steps = site.treat_channels(x, self.activations.control)
            rows = steps if self.folds_rows else None
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
            choice, now, treated = self.choices.get(name), call._replace(need=wanted), g
            if site is not None and (choice is None or site.threshold is None):
                factors, dim = (rows, 0) if name == "weight_gradient.gradient" else (fold, 1)
                treated = site.treat(g, contracted, gradient.control, factors, None, dim)
            if site is None or choice is None or SPARSE not in choice.serving:
                results = without_zeros(now, treated, x, weight, self.skips_zeros)
            else:
                results = sparse.multiply(now, treated, x, weight, gradient, site, choice)
            if rows is not None and wanted[2]:  # rows of zeros have no part in dW, and are lost there; not so in dbias
                results = *results[:2], g.sum(0)
            found = [new if is_wanted else old for old, new, is_wanted in zip(found, results, wanted, strict=True)]
        return tuple(found)

    def passes(self, g: Tensor, need: Need) -> list[tuple[str, Site | None, tuple[int, ...], Need]]:
        """Return the sites that the gradient goes through: name, site, summed dimensions, and what is computed there.

        Both products are computed at once where they take one copy.
        """
        # A site may have nothing left to treat behind its rows.
        at = {name: site if site is not None and site.treatments else None for name, site in self.gradient.at.items()}
        if self.gradient.shared or at["input_gradient"] is at["weight_gradient"]:
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
                    tensor.copy_(given)
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


# --------------------------------------------------------------------------------------------- for torch.compile


def _flags(call: Call) -> list[bool]:
    """Return the part of a call that is neither its form nor a shape."""
    return [*call.need, call.x_turned, call.weight_turned, *call.learns]


def _call_of(mode: int, form: Sequence[int], flags: Sequence[bool], x: Sequence[int], weight: Sequence[int]) -> Call:
    need, (x_turned, weight_turned), learns = flags[:3], flags[3:5], flags[5:]
    shapes = torch.Size(x), torch.Size(weight)
    known = form_of(tuple(form))
    return Call(mode, known, (need[0], need[1], need[2]), *shapes, x_turned, weight_turned, (learns[0], learns[1]))


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, mode: int, form: Sequence[int],
    flags: Sequence[bool], promise: Sequence[int], held: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    call = _call_of(mode, form, flags, x.shape, weight.shape)
    y, *made = _engines[int(state)].compute_output(call, x, weight, bias, held)
    assert y is not None
    if mode == VALUES:
        y = laid_out(y, _turned_output(call))
    made = [*made, *(None,) * (4 - len(made))]
    return y, *(x.new_empty(0) if one is None else one for one in made)


def _turned_output(call: Call) -> bool:
    return len(call.x_shape) == 4 and (call.x_turned or call.weight_turned)


def _fake_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, mode: int, form: Sequence[int],
    flags: Sequence[bool], promise: Sequence[int], held: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    known = form_of(tuple(form))
    if mode == CODES:
        return integer.fake_output(x, weight, known, promise)
    outputs = known.oriented(weight).shape[0]
    if mode != VALUES:
        return x.new_empty(x.shape[0], outputs), *(x.new_empty(0) for _ in range(4))
    y = known.output(x, weight, bias)
    y = empty(y, y.shape, y.dim() == 4 and (flags[3] or flags[4]))
    has_x, has_weight, has_fold, has_rows = promise
    return (
        y,
        torch.empty_like(dense(x)) if has_x else x.new_empty(0),
        torch.empty_like(dense(weight)) if has_weight else x.new_empty(0),
        x.new_empty(outputs if has_fold else 0, dtype=torch.float32 if has_fold else x.dtype),
        x.new_empty(x.shape[0] if has_rows else 0, dtype=torch.float32 if has_rows else x.dtype),
    )


def _backward(
    g: Tensor, saved: Sequence[Tensor], state: Tensor, mode: int, form: Sequence[int], flags: Sequence[bool],
    x_shape: Sequence[int], weight_shape: Sequence[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    call = _call_of(mode, form, flags, x_shape, weight_shape)
    given = [None if tensor.shape == (0,) else tensor for tensor in saved]
    found = _engines[int(state)].compute_backward(call, g, given)
    d_x, d_weight, *others = (
        one if wanted and one is not None else g.new_empty(0)
        for one, wanted in zip(found, (*call.need, *call.learns), strict=True)
    )
    return (
        laid_out(d_x, call.x_turned) if call.need[0] else d_x,
        laid_out(d_weight, call.weight_turned) if call.need[1] else d_weight,
        *others,
    )


def _fake_backward(
    g: Tensor, saved: Sequence[Tensor], state: Tensor, mode: int, form: Sequence[int], flags: Sequence[bool],
    x_shape: Sequence[int], weight_shape: Sequence[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    outputs = g.shape[1]
    return (
        empty(g, x_shape, flags[3]) if flags[0] else g.new_empty(0),
        empty(g, weight_shape, flags[4]) if flags[1] else g.new_empty(0),
        g.new_empty(outputs) if flags[2] else g.new_empty(0),
        *(g.new_empty(1, dtype=torch.float32) if learns else g.new_empty(0) for learns in flags[5:]),
    )


def _check(x: Tensor, *rest: Any) -> None:
    state = next(one for one in rest if isinstance(one, Tensor) and one.dtype == torch.int64)
    if int(state) not in _engines:
        raise InvalidValue(f"state must hold the number of a layer's engine; got {int(state)}.")


_TAKES = {"state": Takes((torch.int64,), 1, anywhere=True), "bias": Takes()}
register(
    "layer_forward(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, int kind, int[] form, bool[] flags,"
    " int[] promise, bool held) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward,
    _fake_forward,
    _check,
    {"x": Takes(), "weight": Takes(), **_TAKES},
)
register(
    "layer_backward(Tensor g, Tensor[] saved, Tensor(a!) state, int kind, int[] form, bool[] flags, SymInt[] x_shape,"
    " SymInt[] weight_shape) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward,
    _fake_backward,
    _check,
    {"g": Takes(), "saved": Takes(), **_TAKES},
)
