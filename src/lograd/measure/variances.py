"""`lograd.variance`: measures the variance and the bias that a plan adds to the gradients of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import nn

from ..engine.layers import candidates
from ..errors import InvalidType, InvalidValue, sentence
from ..formats.values import check_width
from ..plan import Plan
from ..report.progress import progress as steps_shown
from ..report.progress import shown
from . import arrivals, sites, variants
from .bench import Bench, Gradients
from .contributions import Contributions as Factors
from .estimates import LEAST_REPEATS, Draws, bias_of, noise_of
from .gradients import Groups, Minibatches
from .loss import LossFunction
from .measured import Measured, Values, mean_of
from .minibatch import LEAST_BATCHES
from .noise import check_plain, learned_weights
from .profiler import check_kinds, restored
from .result import Variance
from .values import Contributions, ForwardChange, SiteVariance, TensorVariance
from .variance_table import listed


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
    with shown(progress), restored(model), torch.enable_grad(), eager():
        found = _Measurement(Bench(model, plan, loss_fn, seed), treated, repeats, contributions)
        found.run(islice(batches, steps), _length(batches, steps))
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


def _length(batches: Iterable[Any], steps: int) -> int:
    try:
        return min(steps, len(batches))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # also a loader with a __len__ over a dataset that has none
        return steps


class _Measurement:
    """Sums over batches, from which the result follows."""

    def __init__(self, bench: Bench, treated: int, repeats: int, contributions: bool) -> None:
        self.bench, self.treated, self.repeats = bench, treated, repeats
        self.with_contributions = contributions
        self.groups = Groups(bench.parameters)
        self.minibatches = Minibatches(self.groups)
        self.energies: list[Values] = []
        """|g|^2 of the exact gradient in each treated batch."""
        self.plain: list[Values] = []
        """<g, h>, |g|^2 and |h|^2 of the exact gradient g and the float32 gradient h in each treated batch."""
        self.draws: list[Draws] = []
        self.single: dict[str, list[tuple[Values, Values]]] = {}
        """Noise and its error in each treated batch with one layer treated, by layer."""
        self.sites: list[SiteVariance] = []
        self.factors: Factors | None = None

    def run(self, batches: Iterator[Any], count: int) -> None:
        """Run all passes of all batches, of which there are `count` or less."""
        bench = self.bench
        for first in batches:  # once: the plan is warmed up, so that the layers are known, and then all are run
            bench.begin(first)
            self._run(chain([first], batches), count)

    def _run(self, batches: Iterator[Any], count: int) -> None:
        bench, plan = self.bench, variants.whole(self.bench.plan, self.bench.layers)
        singles = variants.one_at_a_time(bench.plan, bench.layers) if self.with_contributions else {}
        rows = min(self.treated, count)
        total = count + 1 + rows * (self.repeats * (1 + len(singles)) + bench.treats_forward)
        with steps_shown("measuring variance", total, "measurement") as advance:
            bench.advance = lambda: advance(1)
            for step, batch in enumerate(batches):
                if step:
                    bench.begin(batch)
                exact = bench.exact(batch)
                energies = self.groups.energies(exact)
                self._check(step, energies)
                self.minibatches.add(exact)
                if step < self.treated:
                    self.energies.append(energies)
                    self._compare(step, batch, exact, plan, singles)
                if step == 0:
                    self._look_at_sites(batch, plan)

    def _check(self, step: int, energies: Values, how: str = "") -> None:
        """Refuse gradients with NaN or infinite elements, and say where they are and how they came about."""
        names = [name for name, one in zip(self.groups.names[:-1], energies, strict=False) if not np.isfinite(one)]
        if names:
            raise InvalidValue(
                f"batch {step} has NaN or infinite gradients in {listed(names)}{how}, so its gradient has no variance."
            )

    def _compare(self, step: int, batch: Any, exact: Gradients, plan: Plan, singles: dict[str, Plan]) -> None:
        """Run a batch with the plan, with one layer of it at a time, and without any."""
        bench, groups = self.bench, self.groups
        if bench.treats_forward:
            plain = bench.plain(batch)
            self._check(step, groups.energies(plain), " without the plan")
            self.plain.append(np.array([groups.products(exact, plain), groups.energies(exact), groups.energies(plain)]))
        gram = groups.gram(list(bench.draws(batch, plan, self.repeats, exact)))
        self._check(step, np.trace(gram, axis1=1, axis2=2), " under the plan")
        self.draws.append(Draws.of(gram))
        for name, single in singles.items():
            samples = np.array([groups.energies(one) for one in bench.draws(batch, single, self.repeats, exact)])
            self._check(step, samples.sum(0), f" with {name} alone treated")
            self.single.setdefault(name, []).append(mean_of(samples.T))

    def _look_at_sites(self, batch: Any, plan: Plan) -> None:
        """Measure the noise of the quantizers alone, and how far noise travels."""
        bench = self.bench
        gradients = sites.arriving(bench, batch)
        with bench.under(plan) as handle:
            if handle is not None:
                self.sites = sites.measure(bench, handle, gradients)
        if self.with_contributions:
            self.factors = arrivals.factors_of(bench.model, batch, bench.loss_fn)

    def result(self) -> Variance:
        """Return all estimates."""
        every = self._tensors()
        return Variance(
            plan=_words(self.bench),
            tensors=tuple(every[:-1]),
            total=every[-1],
            sites=tuple(self.sites),
            contributions=self._contributions() if self.single else None,
            batches=self.minibatches.count,
            treated=len(self.draws),
            repeats=self.repeats,
            seed=self.bench.seed,
        )

    def _tensors(self) -> list[TensorVariance]:
        groups, energies = self.groups, np.mean(self.energies, axis=0)
        noise, noise_error = noise_of(self.draws)
        bias = bias_of(self.draws, energies)
        columns = zip(
            groups.names, groups.elements, energies.tolist(), self.minibatches.signal().tolist(),
            self.minibatches.variance(), _measured(noise, noise_error), _measured(bias.squared, bias.error),
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
        return [
            ForwardChange(float(c), float(n)) if there else None
            for c, n, there in zip(cosine, norm, known, strict=True)
        ]

    def _contributions(self) -> Contributions:
        names = self.groups.names
        noise = np.array([np.mean([mean for mean, _ in several], axis=0) for several in self.single.values()])
        errors = np.array(
            [np.hypot.reduce([error for _, error in several]) / len(several) for several in self.single.values()]
        )
        layers = tuple(self.single)
        expected = arrivals.predicted(layers, self.sites, self.factors)
        weights = self._weights_of_layers()
        energies = np.mean(self.energies, axis=0)[weights]
        relative = np.where(energies > 0, 1 / np.where(energies > 0, energies, 1.0), 0.0)
        together, _ = noise_of(self.draws)
        return Contributions(
            layers, names, noise, errors, noise[:, weights] @ relative, expected.by_layer,
            float(together[weights] @ relative), expected.together,
        )  # fmt: skip

    def _weights_of_layers(self) -> list[int]:
        """Return the places of the tensors among which arrivals are counted: the weights of layers."""
        modules = candidates(self.bench.model)
        layers = self.bench.layers if self.factors is None else self.factors.layers
        weights = {id(weight) for layer in layers for weight in learned_weights(modules[layer])}
        owners = {name for name, one in self.bench.parameters.items() if id(one) in weights}
        return [place for place, name in enumerate(self.groups.names) if name in owners]


def _measured(means: Values, errors: Values) -> list[Measured]:
    return [Measured(mean, error) for mean, error in zip(means.tolist(), errors.tolist(), strict=True)]


def _words(bench: Bench) -> str:
    """Return the plan in words: what is done to each layer, once where it is the same for all, and beside layers."""
    found = list(dict.fromkeys(layer.words() for layer in bench.layers.values() if layer.treats))
    parts = found if len(found) < 2 else [f"{len(found)} different layer plans"]
    if bench.plan.attention is not None:
        parts.append(f"attention in {bench.plan.attention}-bit integers")
    if bench.plan.saved is not None:
        parts.append(f"saved activations in {bench.plan.saved}-bit codes")
    return ", ".join(parts)
