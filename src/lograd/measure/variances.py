"""`lograd.variance`: measures the variance and the bias that a plan adds to the gradients of a model.

The exact gradient is the derivative of the forward that the plan computes, rounded operands included, taken straight
through: StatQuant calls it the QAT gradient.  So each product of the exact backward takes weights and activations as
the output takes them, and the gradient as it is.  `_Bench` runs a batch under the plan, its forward alone, and one
layer's backward at a time, always from the same state; only the random numbers of the backward differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..attachment import Handle
from ..attachment.refresh import set_keys
from ..engine.layer import LayerEngine
from ..engine.layers import candidates
from ..engine.site import STRIDE, Operand, Site
from ..errors import InvalidType, InvalidValue, sentence
from ..formats.values import check_width
from ..laws import Empirical
from ..plan import LayerPlan, Plan, listed
from ..progress import progress as showing_progress
from ..progress import progress_shown
from ..treatments import BACKWARD, PRODUCTS, SYMBOLS, Statistics, describe, predict
from ..treatments.products import ProductPlan
from ..treatments.verdicts import noise_of
from .estimates import LEAST_REPEATS, Draws, bias_of, mean_noise
from .passes import (
    Arrived,
    LossFunction,
    Minibatches,
    ParameterGroups,
    Passes,
    arriving,
    attached,
    check_kinds,
    check_plain,
    energy,
    length_of,
    restored,
    settling,
)
from .timing import folded, gradient_fold, noise_at
from .values import LEAST_BATCHES, Measured, Values, mean_of
from .variance_result import MOST_NAMES, Contributions, ForwardChange, SiteVariance, TensorVariance, Variance

WARM_UP = 4
"""Steps in which treatments take their statistics: the first without noise, the others with their own.  In the last one
numbers follow the noise that arrives in it, as they do after many steps."""
SITE_DRAWS = 16
"""Random numbers for the noise of each quantizer alone."""
SAVED = "(saved activations)"
"""The row of contributions for activations that are kept as codes (`Plan.saved`), which no one layer has."""

Gradients = list[Tensor]


def variance(
    model: nn.Module,
    batches: Iterable[Any],
    plan: Plan,
    loss_fn: LossFunction | None = None,
    *,
    steps: int = 16,
    treated: int = 2,
    repeats: int = 12,
    seed: int = 0,
    contributions: bool = True,
    progress: bool | None = None,
) -> Variance:
    """Measure the variance that a plan adds to each weight gradient, and its bias, at the weights of now.

    The unit of noise is V, the variance of the gradient over minibatches, which training lives with anyway.  W is the
    variance that the plan adds: E|g_q - g|^2 over its random numbers, with g the exact gradient of the same minibatch.
    Without a bias, a step with rho = W / V costs as much as one with 1 / (1 + rho) of the samples.  The exact gradient
    is the derivative of the plan's own forward, so a quantized forward does not count as noise of the backward; its
    change of the gradient is reported apart.

    There is no optimizer step.  Model, `.grad`, buffers, modes and the random state are restored bit for bit, also when
    `loss_fn` raises or Ctrl-C ends it.  Treatments that take their numbers from statistics take them in a few passes of
    the first batch and keep them.

    Args:
        model: a plain model, without an attached plan, in the mode in which it trains.
        batches: any iterable; at most `steps` batches are taken, and 3 are needed.
        plan: such as `Plan.uniform("int5-bhq")`.
        loss_fn: as for `lograd.profile`.
        steps: minibatches from which V is estimated.
        treated: the first so many of them are also run with the plan.
        repeats: draws of random numbers for each of these, 4 at least.  It takes the memory of so many gradients.
        seed: of the random numbers.
        contributions: also treat one layer at a time, to see what each adds to each weight gradient.  That takes
            `repeats` passes more for each layer.
        progress: as for `lograd.profile`.

    >>> import lograd
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> batches = [(torch.randn(16, 4), torch.randn(16, 2)) for _ in range(8)]
    >>> found = variance(model, batches, lograd.Plan.uniform("int8-ptq"), torch.nn.functional.mse_loss)
    >>> found.total.rho.mean < 0.1
    True
    """
    check_kinds(batches, loss_fn, progress)
    _check(model, plan, steps, treated, repeats, contributions)
    eager = partial(torch.compiler.set_stance, "force_eager")  # compiled code would not call the hooks
    with progress_shown(progress), restored(model), torch.enable_grad(), eager():
        found = _Measurement(_Bench(model, plan, loss_fn, seed), treated, repeats, contributions)
        found.run(islice(batches, steps), length_of(batches, steps))
        if found.minibatches.count < LEAST_BATCHES:
            raise InvalidValue(
                f"batches must hold at least {LEAST_BATCHES} batches for their variance; got {found.minibatches.count}."
            )
        return found.result()


def _check(model: object, plan: object, steps: int, treated: int, repeats: int, contributions: object) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    if not isinstance(plan, Plan):
        raise InvalidType(sentence("plan", plan, "a Plan; make one with Plan.load(path) or Plan.uniform('int8-ptq')"))
    if not isinstance(contributions, bool):
        raise InvalidType(sentence("contributions", contributions, "True or False"))
    check_plain(model)
    check_width("steps", steps, LEAST_BATCHES, 2**31)
    check_width("treated", treated, 1, steps)
    check_width("repeats", repeats, LEAST_REPEATS, 2**16)


# -- the plans that are compared --


def _exact(layer: LayerPlan) -> LayerPlan:
    """Return the plan of a layer with its forward as it is, and a backward that adds nothing."""
    output = layer.output
    return replace(
        layer,
        input_gradient=ProductPlan(weights=output.weights, backend=layer.input_gradient.backend),
        weight_gradient=ProductPlan(activations=output.activations, backend=layer.weight_gradient.backend),
        predicted_input_gradient=None,
        predicted_weight_gradient=None,
    )


def _forward_only(plan: Plan, layers: Mapping[str, LayerPlan]) -> Plan:
    """Return the plan whose gradient is the exact one."""
    return Plan({name: _exact(layer) for name, layer in layers.items()}, attention=plan.attention)


def _one_at_a_time(plan: Plan, layers: Mapping[str, LayerPlan]) -> dict[str, Plan]:
    """Return, for each layer whose backward the plan treats, the plan that treats this one and no other."""
    base = _forward_only(plan, layers)
    found = {
        name: replace(base, layers={**base.layers, name: layer})
        for name, layer in layers.items()
        if any(getattr(layer, product) != getattr(_exact(layer), product) for product in PRODUCTS)
    }
    if plan.saved is not None:
        found[SAVED] = replace(base, saved=plan.saved)
    return found


# -- passes under plans --


class _Settled(NamedTuple):
    """An operand after the warm-up."""

    ready: bool
    sites: dict[str, Site]
    """By product."""
    tensors: dict[str, dict[str, Tensor]]
    """Copies of numbers, memory and key, by product."""

    @classmethod
    def of(cls, operand: Operand) -> _Settled:
        sites = {product: site for product, site in operand.at.items() if site is not None}
        copies = {
            product: {name: tensor.clone() for name, tensor in site.tensors().items()}
            for product, site in sites.items()
        }
        return cls(operand.ready, sites, copies)

    def write(self, operand: Operand) -> None:
        """Write numbers and memory to an operand of the same layer in another plan; keys only where Y takes it."""
        for product, site in operand.at.items():
            for source in (product, "output"):  # the exact backward takes what the output takes
                known = self.sites.get(source)
                if site is not None and known is not None and known.treatments == site.treatments:
                    copies = self.tensors[source]
                    site.numbers.copy_(copies["numbers"])
                    site.memory.copy_(copies["memory"])
                    if site is operand.at.get("output"):
                        site.key.copy_(self.tensors["output"]["key"])
                    break
        operand.set_ready(self.ready)
        operand.control[STRIDE] = 0  # no histogram


class _Bench:
    """Gradients of a model under a plan, its parts, and without it, always from the same state.

    The numbers and memories of treatments are those after a few steps of warm-up, and stay so.  Only the random numbers
    of the backward differ from draw to draw.
    """

    def __init__(self, model: nn.Module, plan: Plan, loss_fn: LossFunction | None, seed: int) -> None:
        self.model, self.plan, self.seed = model, plan, seed
        self.passes = Passes(model, loss_fn)
        self.layers: dict[str, LayerPlan] = {}
        """The treated layers, in the order of the model, and their plans."""
        self._settled: dict[str, dict[str, _Settled]] = {}
        self._draws = 0

    def begin(self, batch: Any) -> None:
        """Take the random state of now for all passes of this batch, and warm the plan up if it is the first one."""
        self.passes.take_random_state()
        if not self._settled:
            self._warm_up(batch)

    def _warm_up(self, batch: Any) -> None:
        with attached(self.model, self.plan, "dense", seed=self.seed, silent=False) as handle:
            modules = candidates(self.model)
            for place in range(WARM_UP):
                with settling(handle.layers, modules) if place == WARM_UP - 1 else nullcontext():
                    self.passes.run(batch)
                handle.step()
            planned = {id(modules[name]): layer for name, layer in self.plan.layers.items()}  # names may be others
            found = {name: planned.get(id(modules[name]), self.plan.every) for name in handle.layers}
            self.layers = {name: layer for name, layer in found.items() if layer is not None}
            self._settled = {
                name: {key: _Settled.of(operand) for key, operand in engine.operands.items()}
                for name, engine in handle.layers.items()
            }
        if not any(layer.treats for layer in self.layers.values()) and self.plan.saved is None:
            raise InvalidValue("the plan treats no layer of this model, so there is no variance to measure.")

    @contextmanager
    def under(self, plan: Plan) -> Iterator[Handle]:
        """Attach a variant of the plan, with the numbers and memories of the warm-up."""
        with attached(self.model, plan, "dense", seed=self.seed) as handle:
            self._settle(handle, 0)
            yield handle

    def draw(self, handle: Handle) -> None:
        """Give the backward fresh random numbers; the forward keeps its own."""
        self._draws += 1
        self._settle(handle, self._draws)

    def _settle(self, handle: Handle, number: int) -> None:
        set_keys(handle.layers.values(), self.seed, WARM_UP + number)
        for name, engine in handle.layers.items():
            for key, operand in engine.operands.items():
                self._settled[name][key].write(operand)

    @property
    def whole(self) -> Plan:
        """The plan with its layers by name."""
        return Plan(self.layers, attention=self.plan.attention, saved=self.plan.saved)

    @property
    def treats_forward(self) -> bool:
        """True if the plan changes what the model computes in its forward."""
        return self.plan.attention is not None or any(layer.output.treats for layer in self.layers.values())

    def exact(self, batch: Any) -> Gradients:
        """Return the exact gradient of a batch; that of the plain model, where the plan leaves the forward alone."""
        with self.under(_forward_only(self.plan, self.layers)) if self.treats_forward else nullcontext():
            return self.passes.gradients(batch)

    def draws(self, batch: Any, plan: Plan, repeats: int, clean: Gradients) -> Iterator[Gradients]:
        """Yield the difference to the exact gradient, again and again with fresh random numbers."""
        with self.under(plan) as handle:
            for _ in range(repeats):
                self.draw(handle)
                noisy = self.passes.gradients(batch)
                yield [one.sub_(exact) for one, exact in zip(noisy, clean, strict=True)]


# -- the measurement --


class _Measurement:
    """Sums over batches, from which the result follows."""

    def __init__(self, bench: _Bench, treated: int, repeats: int, contributions: bool) -> None:
        self.bench, self.treated, self.repeats = bench, treated, repeats
        self.with_contributions = contributions
        self.groups = ParameterGroups(bench.passes.parameters)
        self.minibatches = Minibatches(self.groups)
        self.energies: list[Values] = []
        """|g|^2 of the exact gradient in each treated batch."""
        self.plain: list[Values] = []
        """<g, h>, |g|^2 and |h|^2 of the exact gradient g and the float32 gradient h in each treated batch."""
        self.draws: list[Draws] = []
        self.single: dict[str, list[tuple[Values, Values]]] = {}
        """Noise and its error in each treated batch with one layer treated, by layer."""
        self.sites: list[SiteVariance] = []

    def run(self, batches: Iterator[Any], count: int) -> None:
        """Run all passes of all batches, of which there are `count` or less."""
        for first in batches:  # once: the plan is warmed up, so that the layers are known, and then all are run
            self.bench.begin(first)
            self._run(chain([first], batches), count)

    def _run(self, batches: Iterator[Any], count: int) -> None:
        bench = self.bench
        singles = _one_at_a_time(bench.plan, bench.layers) if self.with_contributions else {}
        rows = min(self.treated, count)
        total = count + 1 + rows * (self.repeats * (1 + len(singles)) + bench.treats_forward)
        with showing_progress("measuring variance", total, "measurement") as advance:
            bench.passes.advance = advance
            for step, batch in enumerate(batches):
                if step:
                    bench.begin(batch)
                exact = bench.exact(batch)
                energies = self.groups.energies(exact)
                self._check(step, energies)
                self.minibatches.add(exact)
                if step < self.treated:
                    self.energies.append(energies)
                    self._compare(step, batch, exact, singles)
                if step == 0:
                    self._look_at_sites(batch)

    def _check(self, step: int, energies: Values, how: str = "") -> None:
        """Refuse gradients with NaN or infinite elements, and say where they are and how they came about."""
        names = [name for name, one in zip(self.groups.names[:-1], energies, strict=False) if not np.isfinite(one)]
        if names:
            where = f"{listed(names, MOST_NAMES)}{how}"
            raise InvalidValue(f"batch {step} has NaN or infinite gradients in {where}, so it has no variance.")

    def _compare(self, step: int, batch: Any, exact: Gradients, singles: dict[str, Plan]) -> None:
        """Run a batch with the plan, with one layer of it at a time, and without any."""
        bench, groups = self.bench, self.groups
        if bench.treats_forward:
            plain = bench.passes.gradients(batch)
            self._check(step, groups.energies(plain), " without the plan")
            self.plain.append(np.array([groups.products(exact, plain), groups.energies(exact), groups.energies(plain)]))
        gram = groups.gram(list(bench.draws(batch, bench.whole, self.repeats, exact)))
        self._check(step, np.trace(gram, axis1=1, axis2=2), " under the plan")
        self.draws.append(Draws.of(gram))
        for name, single in singles.items():
            samples = np.array([groups.energies(one) for one in bench.draws(batch, single, self.repeats, exact)])
            self._check(step, samples.sum(0), f" with {name} alone treated")
            self.single.setdefault(name, []).append(mean_of(samples.T))

    def _look_at_sites(self, batch: Any) -> None:
        """Measure the noise of the quantizers alone."""
        bench, modules = self.bench, candidates(self.bench.model)
        arrived = arriving({name: modules[name] for name in bench.layers}, lambda: bench.exact(batch))
        with bench.under(bench.whole) as handle:
            self.sites = list(_site_variances(bench, handle, arrived))

    # -- the result --

    def result(self) -> Variance:
        """Return all estimates."""
        *tensors, total = self._tensors()
        return Variance(
            plan=_words(self.bench),
            tensors=tuple(tensors),
            total=total,
            sites=tuple(self.sites),
            contributions=self._contributions() if self.single else None,
            batches=self.minibatches.count,
            treated=len(self.draws),
            repeats=self.repeats,
            seed=self.bench.seed,
        )

    def _tensors(self) -> list[TensorVariance]:
        groups, energies = self.groups, np.mean(self.energies, axis=0)
        bias = bias_of(self.draws, energies)
        columns = zip(
            groups.names, groups.elements, energies.tolist(), self.minibatches.signal().tolist(),
            self.minibatches.variance(), _measured(*mean_noise(self.draws)), _measured(bias.squared, bias.error),
            bias.band.tolist(), self._forward(), strict=True,
        )  # fmt: skip
        return [TensorVariance(*column) for column in columns]

    def _forward(self) -> list[ForwardChange | None]:
        if not self.plain:
            return [None] * len(self.groups.names)
        both, exact, plain = np.sum(self.plain, axis=0)
        known = (exact > 0) & (plain > 0)
        exact, plain = np.where(known, exact, 1.0), np.where(known, plain, 1.0)
        cosine, norm = np.clip(both / np.sqrt(exact * plain), -1, 1), np.sqrt(exact / plain)
        columns = zip(cosine.tolist(), norm.tolist(), known, strict=True)
        return [ForwardChange(c, n) if there else None for c, n, there in columns]

    def _contributions(self) -> Contributions:
        noise = np.array([np.mean([mean for mean, _ in several], axis=0) for several in self.single.values()])
        errors = np.array(
            [np.hypot.reduce([error for _, error in several]) / len(several) for several in self.single.values()]
        )
        return Contributions(tuple(self.single), self.groups.names, noise, errors)


def _measured(means: Values, errors: Values) -> list[Measured]:
    return [Measured(mean, error) for mean, error in zip(means.tolist(), errors.tolist(), strict=True)]


def _words(bench: _Bench) -> str:
    """Return the plan in words: what is done to each layer, once where it is the same for all, and beside layers."""
    found = list(dict.fromkeys(layer.words() for layer in bench.layers.values() if layer.treats))
    parts = found if len(found) < 2 else [f"{len(found)} different layer plans"]
    if bench.plan.attention is not None:
        parts.append(f"attention in {bench.plan.attention}-bit integers")
    if bench.plan.saved is not None:
        parts.append(f"saved activations in {bench.plan.saved}-bit codes")
    return ", ".join(parts)


# -- the quantizers themselves --


def _site_variances(bench: _Bench, handle: Handle, arrived: Mapping[str, Arrived]) -> Iterator[SiteVariance]:
    """Yield the noise that each site adds to the gradients that arrive at it, before any product.

    Args:
        handle: the whole plan, attached.
        arrived: by layer; a layer at which no gradient arrives is left out.
    """
    modules = candidates(bench.model)
    for name, own in arrived.items():
        engine = handle.layers[name]
        if not engine.gradient.ready or not any(bool(g.any()) for g in own.gradients):
            continue
        fold = gradient_fold(engine, modules[name])
        for site in engine.gradient.sites.values():
            products = [
                one for one in BACKWARD if engine.gradient.at[one] is site and (own.passed_on or one != BACKWARD[0])
            ]
            if products:
                draw = partial(bench.draw, handle)
                yield _site_variance(name, engine, site, own.gradients, products, fold, draw)
                bench.draw(handle)  # memories as they were, for the next one


def _site_variance(
    name: str,
    engine: LayerEngine,
    site: Site,
    gradients: Sequence[Tensor],
    products: Sequence[str],
    fold: Tensor | None,
    draw: Callable[[], None],
) -> SiteVariance:
    factors = fold if BACKWARD[0] in products else None
    samples = []
    for _ in range(SITE_DRAWS):
        draw()
        samples.append(noise_at(engine, site, gradients, products, factors))
    draw()  # memories as they were, for the prediction
    mean, error = mean_of(np.array(samples))
    return SiteVariance(
        name,
        ", ".join(SYMBOLS[product] for product in products),
        describe(site.treatments),
        sum(map(energy, gradients)),
        Measured(float(mean), float(error)),
        _sum([_predicted_noise(site, g, factors) for g in gradients]),
    )


def _predicted_noise(site: Site, g: Tensor, factors: Tensor | None) -> float | None:
    """Return the noise that the law of |g| predicts, by the cosine c of unbiased noise: |g|^2 (1 / c^2 - 1)."""
    if not all(one.unbiased for one in site.treatments):
        return None
    seen = g if factors is None else folded(g, factors)
    if not bool(seen.any()):
        return 0.0
    low, high = torch.aminmax(seen)
    statistics = Statistics(Empirical.fit(seen), range=(float(low), float(high)))
    found = predict(site.treatments, statistics, site.numbers_and_memory())
    return None if found is None or not found.cosine else energy(g) * noise_of(found.cosine)


def _sum(numbers: Sequence[float | None]) -> float | None:
    """Return the sum; None where there is no number, or one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
