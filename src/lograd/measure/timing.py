"""The menu of each layer: what each method costs there and how much noise it brings, measured inside the user's model.

A method has a name, and the layer's plan with the backend of each product: backends are named rather than left to
"auto", so that a plan made from measured times is carried out as it was timed, and gives the same bits in every run.

Each method runs in every layer in turn, timed layer by layer inside steps of the whole model.  A layer's time thus has
in it what its neighbours leave in the caches and how they lay out their results.  Whole steps are timed apart, as the
stopwatch itself takes time: a fifth of a millisecond for each layer.  Each time is the least of several; other work on
the machine only ever adds to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..attachment import Handle
from ..engine.layer import LayerEngine
from ..engine.layers import candidates, reason_not_supported
from ..engine.site import STRIDE, Site
from ..engine.stopwatch import LayerSeconds, Stopwatch, seconds
from ..errors import InvalidType, InvalidValue, sentence
from ..ops.sparse_products import release_workspace
from ..plan import LayerPlan, Plan
from ..progress import progress
from ..text import TextTable, text_table
from ..treatments import BACKWARD, Prune, coder, recipe, with_backends
from .passes import Arrived, Passes, arriving, attached, energy, settling
from .prediction import MOST_NOISE, ratio_over, steps_over_last
from .records import LayerProfile

# -- methods --

DENSE = "dense"
"""The layer as it is, untreated."""
DEFAULT_METHODS = (
    DENSE, "int8-full", "int6-full", "int4-full", "int8wa", "prune80", "prune90", "prune95", "identity/prune90",
    "int8wa+prune90",
)  # fmt: skip
"""The methods that are timed by default: the layer as it is, and recipes."""


class Method(NamedTuple):
    """A method by its name, with what it does to a layer."""

    name: str
    plan: LayerPlan
    bits: int | None
    """The width of the forward's operands, the narrower if they differ; None where these are no levels."""
    sparsity: float | None
    """The share of zeros in the pruned gradient; None where nothing is pruned."""


def method(name: str) -> Method:
    """Return the method of a name: "dense", or a recipe whose products have the backends that it is made for.

    "int8-full" has integer products throughout, "int8wa" for Y alone; "prune90" prunes for both products of the
    backward, and "identity/prune90" for dW alone, so that no noise travels to other layers.

    >>> method("int8wa+prune90").bits, method("int8wa+prune90").sparsity
    (8, 0.9)
    """
    plan = LayerPlan.of(with_backends(recipe("identity" if name == DENSE else name)))
    coders = (coder(plan.output.activations), coder(plan.output.weights))
    bits = min((one.level_bits for one in coders if one is not None), default=0)
    pruned = [one.sparsity for one in plan.weight_gradient.gradient if isinstance(one, Prune)]
    return Method(name, plan, bits or None, pruned[0] if pruned else None)


def check_methods(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of methods to be timed, "dense" first; None stands for `DEFAULT_METHODS`."""
    if names is None:
        return DEFAULT_METHODS
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidType(sentence("methods", names, "a list of names such as ['int8-full', 'prune90']"))
    return tuple(dict.fromkeys([DENSE, *(method(name).name for name in names)]))


# -- menus --


@final
@dataclass(frozen=True)
class Candidate:
    """One method in one layer.

    Args:
        method: its name.
        forward, backward: seconds in a step, summed over the times that the layer runs.
        input_noise, weight_noise: the noise-to-signal ratio of the treated gradient in the products for dX and dW: of
            rounding measured on the gradient of one batch, of pruning predicted by the law.
        penalty: the layer's part of |g_q - g|^2 over all learned parameters: the change of the exact gradient of one
            batch where the forward of all layers is rounded; 0 where the forward is exact.
    """

    method: str
    forward: float
    backward: float
    input_noise: float = 0.0
    weight_noise: float = 0.0
    penalty: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward + self.backward


@final
@dataclass(frozen=True)
class Menus:
    """The candidates of each layer, and the times of whole steps.

    Args:
        layers: by layer in the order of execution, and by method; each layer has "dense".
        step: seconds of a plain step, forward and backward.
        uniform: seconds of a step with one method in every layer.
        threads: threads that PyTorch had.
    """

    layers: Mapping[str, Mapping[str, Candidate]]
    step: float
    uniform: Mapping[str, float] = field(default_factory=dict)
    threads: int = 1

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that were timed, "dense" first."""
        return tuple(dict.fromkeys([DENSE, *(name for menu in self.layers.values() for name in menu)]))

    @property
    def rest(self) -> float:
        """Seconds of a plain step outside of these layers: normalization, attention, the loss, and so on."""
        return max(self.step - sum(menu[DENSE].seconds for menu in self.layers.values()), 0.0)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each method in each layer: its times and its noise."""
        return [{"layer": name, **asdict(one)} for name, menu in self.layers.items() for one in menu.values()]

    def table(self) -> TextTable:
        """Return a table for the terminal: milliseconds of each layer by each method, the fastest marked by a star."""
        methods = self.methods
        rows = [[name, *_cells(menu, methods)] for name, menu in self.layers.items()]
        rows.append(["rest of the plain step", f"{1e3 * self.rest:.2f}", *("" for _ in methods[1:])])
        whole = {DENSE: self.step} | dict(self.uniform)
        rows.append(["whole step", *(f"{1e3 * whole[name]:.1f}" if name in whole else "–" for name in methods)])
        caption = (
            "Milliseconds of forward and backward in a step; * marks the fastest method of a layer.\n"
            "The whole step was timed with the method in every layer."
        )
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        title = f"Times of {len(self.layers)} layers with {threads}"
        return text_table(title, ("layer", *methods), rows, caption, droppable=methods[:0:-1])


def _cells(menu: Mapping[str, Candidate], methods: tuple[str, ...]) -> list[str]:
    """Return the milliseconds of each method, with a star at the least."""
    fastest = min(menu.values(), key=lambda candidate: candidate.seconds).method
    return [
        f"{'*' if name == fastest else ''}{1e3 * menu[name].seconds:.2f}" if name in menu else "–" for name in methods
    ]


# -- times --

WARM_UP = 1
"""Steps before a method is timed, in which it runs for the first time.  Pruning takes its statistics in one before; in
the second its thresholds follow the noise that arrives, or there would be fewer zeros than asked for (`settling`)."""
TIMED = 3
"""Steps of each method that are timed layer by layer."""
WHOLE = 2
"""Steps of each method that are timed as a whole."""
DRAWS = 2
"""Random numbers for the noise of rounding."""
NOT_FINITE = 1e60
"""Stands for a change to NaN or infinity: more than any budget, and finite, so that a file can hold it."""


def measure_menus(
    passes: Passes, batch: Any, loss: Callable[[], Tensor], profiles: Mapping[str, LayerProfile], names: Sequence[str]
) -> Menus | None:
    """Measure what each method costs in each layer; None if no layer can be treated.

    Args:
        passes: of a plain model, whose state must be restored by the caller.
        batch: on which all is measured.
        loss: runs the forward of this batch and returns the loss.
        profiles: the observed layers.
        names: of methods, "dense" first.
    """
    found = treatable(passes.model)
    modules = {name: found[name] for name in profiles if name in found}
    if not modules:
        return None
    methods = [method(name) for name in names]
    bits = sorted({one.bits for one in methods if one.bits is not None})
    treated = [one for one in methods if one.name != DENSE]
    plain = max((len(treated) + 1) // 2 + 1, TIMED)  # before every second method, and one at the end
    total = 2 + 2 * plain + sum(warm_up(one) + TIMED + WHOLE for one in treated)
    total += len(bits) + len(modules) * bool(bits)
    with progress("timing methods", total, "step") as advance, torch.compiler.set_stance("force_eager"):
        passes.advance = advance
        arrived = arriving(modules, partial(passes.run, batch))
        clean = passes.gradients(batch)
        timer = Timer(passes.model, loss, modules, advance)
        noises: dict[str, dict[str, tuple[float, float]]] = {DENSE: {}}
        for place, one in enumerate(treated):
            if place % 2 == 0:  # so that plain steps share what the machine does
                timer.plain()
            with timer.timing(one.name, Plan(dict.fromkeys(modules, one.plan)), warm_up(one)) as handle:
                noises[one.name] = {
                    name: _noise(one, handle.layers[name], modules[name], arrived[name], profiles[name])
                    for name in modules
                }
        while timer.plain_steps < plain:
            timer.plain()
        penalties = _penalties(passes, batch, clean, list(modules), bits)
    times = timer.times
    menus: dict[str, dict[str, Candidate]] = {layer: {} for layer in modules}
    for one in methods:
        for layer, taken in times[one.name].layers.items():
            dX, dW = noises[one.name].get(layer, (0.0, 0.0))
            penalty = 0.0 if one.bits is None else penalties[one.bits][layer]
            menus[layer][one.name] = Candidate(one.name, taken.forward, taken.backward, dX, dW, penalty)
    uniform = {one.name: times[one.name].step for one in treated}
    return Menus(menus, times[DENSE].step, uniform, torch.get_num_threads())


def check_device(model: nn.Module) -> None:
    """Refuse a model that is not on the CPU, whose clock is read here and whose kernels are compared."""
    for parameter in model.parameters():
        if parameter.device.type != "cpu":
            raise InvalidValue(
                f"times of methods are measured on the CPU, and this model is on {parameter.device.type}."
            )


def treatable(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model that methods can be put into, by name."""
    return {name: module for name, module in candidates(model).items() if reason_not_supported(module) is None}


def warm_up(one: Method) -> int:
    """Return the steps of a method that are not timed."""
    return WARM_UP + (one.sparsity is not None)


class StepSeconds(NamedTuple):
    """The least seconds of a step and of each layer; infinity, or no layers, where these were not timed."""

    step: float
    layers: dict[str, LayerSeconds]

    def least(self, other: StepSeconds | None) -> StepSeconds:
        """Return the lesser times of two, step by step and layer by layer."""
        if other is None:
            return self
        pairs = ((name, one, other.layers.get(name, one)) for name, one in self.layers.items())
        layers = {
            name: LayerSeconds(min(one.forward, two.forward), min(one.backward, two.backward))
            for name, one, two in pairs
        }
        return StepSeconds(min(self.step, other.step), layers or other.layers)


@final
class Timer:
    """Steps of a model with one method after the other, and the least times of each."""

    def __init__(
        self, model: nn.Module, loss: Callable[[], Tensor], modules: Mapping[str, nn.Module],
        advance: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.model, self.loss, self.modules, self.advance = model, loss, modules, advance
        self.watch = Stopwatch(modules)
        self.times: dict[str, StepSeconds] = {}
        self.plain_steps = 0

    def plain(self) -> None:
        """Time a step of the plain model, and another layer by layer."""
        self.plain_steps += 1
        self._keep(DENSE, self._step())
        if self.modules:
            self._keep(DENSE, self._step(watched=True))

    def time(self, name: str, plan: Plan, warm_up: int, watched: int, whole: int) -> None:
        """Time steps under a plan; the arguments are those of `timing`."""
        with self.timing(name, plan, warm_up, watched, whole):
            pass

    @contextmanager
    def timing(self, name: str, plan: Plan, warm_up: int, watched: int = TIMED, whole: int = WHOLE) -> Iterator[Handle]:
        """Time steps under a plan after some others, and yield the handle while the plan is still attached.

        Args:
            warm_up: steps that are not timed.
            watched: steps that are timed layer by layer.
            whole: steps that are timed as a whole.
        """
        with attached(self.model, plan) as handle:
            modules = candidates(self.model)
            for place in range(warm_up):
                with settling(handle.layers, modules) if place else nullcontext():
                    self._step()
                handle.step()
            take_no_statistics(handle)
            for one in [True] * watched + [False] * whole:
                self._keep(name, self._step(one))
                release_workspace()  # as handle.step() does
            yield handle

    def _keep(self, name: str, times: StepSeconds) -> None:
        self.times[name] = times.least(self.times.get(name))

    def _step(self, watched: bool = False) -> StepSeconds:
        for parameter in self.model.parameters():
            parameter.grad = None
        with self.watch.running() if watched else nullcontext():
            start = seconds()
            self.loss().backward()  # type: ignore[no-untyped-call]
            taken = seconds() - start
        self.advance(1)
        return StepSeconds(math.inf, self.watch.read()) if watched else StepSeconds(taken, {})


def take_no_statistics(handle: Handle) -> None:
    """Turn histograms off while timing; in a long run they are rare."""
    for engine in handle.layers.values():
        for operand in engine.operands.values():
            operand.control[STRIDE] = 0


# -- noise of the backward, and what a rounded forward changes --


def _noise(
    one: Method, engine: LayerEngine, module: nn.Module, arrived: Arrived, profile: LayerProfile
) -> tuple[float, float]:
    """Return the noise-to-signal ratios of a method in a layer's dX and dW; 0 in a dX that is not computed.

    Pruning is predicted by the laws of all observed steps.  Rounding is measured on the gradients that have arrived,
    and scaled by what theory says of the other steps.
    """
    measured = {} if one.sparsity is not None else _measured_noise(engine, module, arrived.gradients)
    found = []
    for product in BACKWARD:
        treatments = one.plan.site(product, "gradient")
        if one.sparsity is not None:
            ratio = ratio_over(treatments, profile) or 0.0 if treatments else 0.0
        else:
            ratio = measured.get(product, 0.0) * steps_over_last(treatments, profile)
        found.append(min(ratio, MOST_NOISE) if arrived.passed_on or product != BACKWARD[0] else 0.0)
    return found[0], found[1]


def _measured_noise(engine: LayerEngine, module: nn.Module, gradients: Sequence[Tensor]) -> dict[str, float]:
    """Return what rounding adds to gradients over their energy, by product; mean of several draws."""
    signal = sum(map(energy, gradients))
    if not signal or not engine.gradient.ready:
        return {}
    found: dict[str, float] = {}
    fold = gradient_fold(engine, module)
    for site in engine.gradient.sites.values():
        products = [product for product in BACKWARD if engine.gradient.at[product] is site]
        draws = [noise_at(engine, site, gradients, products, fold) for _ in range(DRAWS)]
        found |= dict.fromkeys(products, sum(draws) / DRAWS / signal)
    return found


def gradient_fold(engine: LayerEngine, module: Any) -> Tensor | None:
    """Return the factors by which the gradient's channels are multiplied before they are rounded; None without."""
    site = engine.weights.at[BACKWARD[0]]
    if not engine.folds or site is None or isinstance(module, _ConvTransposeNd):
        return None
    weight = module.weight.detach()
    by_output = weight if isinstance(module, nn.Linear | _ConvNd) else weight.t()
    return site.treat_channels(by_output, engine.weights.control)[1]


def noise_at(
    engine: LayerEngine, site: Site, gradients: Iterable[Tensor], products: Iterable[str], fold: Tensor | None
) -> float:
    """Return |Q(g) - g|^2, summed over the gradients, with the random numbers that the site's key gives.

    Where channels have factors, each counts as much as in dX: an output without weights adds neither noise nor signal.

    Args:
        site: one of the gradient's, in these products.
        fold: factors of the gradient's channels; see `gradient_fold`.
    """
    operand, into_input, total = engine.gradient, BACKWARD[0] in products, 0.0
    for g in gradients:
        summed = () if operand.shared else (1,) if into_input else (0, *range(2, g.dim()))
        factors = fold if into_input else None
        error = site.treat(g, summed, operand.control, factors) - g
        if factors is None:
            total += energy(error)
        elif signal := energy(folded(g, factors)):
            total += energy(folded(error, factors)) / signal * energy(g)
    return total


def folded(g: Tensor, factors: Tensor) -> Tensor:
    """Return a gradient with its channels, dimension 1, multiplied by factors."""
    return g * factors.reshape(-1, *(1,) * (g.dim() - 2))


def _penalties(
    passes: Passes, batch: Any, clean: Sequence[Tensor], names: Sequence[str], widths: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Return |g_q - g|^2 with the forward of layers in integers, by bits and layer.

    The backward is exact: straight through, with operands as the output takes them.  So the difference to the gradient
    of the plain model is no noise that averages out over steps.  Each layer is rounded alone at the fewest bits, and
    all layers together at each number of bits, whose change is divided in the proportions of the single ones: these add
    up to more where there are kinks, as an input of a ReLU that two errors push over zero has changed sides once.

    Args:
        clean: the gradients of the plain model.
        widths: of the rounded operands.
    """

    def change(rounded: Sequence[str], width: int) -> float:
        plan = Plan(dict.fromkeys(rounded, method(f"int{width}wa").plan))
        with attached(passes.model, plan, "dense"):
            moved = passes.gradients(batch)
        return sum(energy(one - other) for one, other in zip(moved, clean, strict=True))

    if not widths:
        return {}
    alone = {name: change([name], min(widths)) for name in names}
    total = sum(one for one in alone.values() if math.isfinite(one))
    found = {}
    for width in widths:
        whole = change(names, width)
        scale = whole / total if total and math.isfinite(whole) else 1.0
        found[width] = {name: one * scale if math.isfinite(one) else NOT_FINITE for name, one in alone.items()}
    return found
