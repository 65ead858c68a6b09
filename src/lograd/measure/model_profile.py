"""`Profile`, the profile of a whole model: its records, and the table, page, plan and file that are made from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import InvalidType, InvalidValue, nearest_name, plural, sentence
from ..files.archives import TooLarge
from ..files.atomic import check_folder, read_file, replace_file
from ..plan import Expected, Plan, StepWork
from ..report import TextTable
from ..treatments.prune import PruningLaw
from . import file, page, planner, table
from .contributions import Contributions, mean_of
from .expectation import expected_of, planned_layers
from .goals import Goal, Measurements, Restriction, plan_for, problem_of
from .menus import Menus
from .minibatch import LEAST_BATCHES, Minibatch, mean_of_minibatches
from .nonfinite import NonFiniteLoss, nonfinite_words
from .records import LayerProfile, Record, by_level, sum_of

MOST_STEPS = 256
"""The most observed steps that an observer keeps; when there are more, every second one is dropped."""


@dataclass(repr=False)
class Profile:
    """Histograms of a model's gradients over some steps, layer by layer in the order of execution.

    `lograd.profile` and `lograd.observe` make one.

    Attributes:
        layers: the observed layers, by name.
        missed: layers without an observation, each with the reason.
        steps: backward passes, observed or not.
        every: one of so many steps was observed.
        noise: how noise in each layer's gradient reaches the weight gradients; None where that was not measured.
        work: operations of the whole training step, and the part that no plan treats; None where they were not counted.
        loss: the first NaN or infinite loss that `lograd.profile` met; None if all were finite.
        uncounted: the reason why `work` is None.
        minibatch: the variance of the gradient over the batches, the unit of noise; None where it was not measured.
        menus: what each method costs in each layer, and the noise that it brings; None where that was not measured.
    """

    layers: dict[str, LayerProfile] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    every: int = 1
    noise: Contributions | None = None
    work: StepWork | None = None
    loss: NonFiniteLoss | None = None
    uncounted: str = ""
    minibatch: Minibatch | None = None
    menus: Menus | None = None

    @property
    def broken(self) -> str | None:
        """A sentence that names layers and steps of NaN and infinite gradients; None where all were finite."""
        return nonfinite_words(self.layers, self.loss)

    def __getitem__(self, name: str) -> LayerProfile:
        if name not in self.layers:
            known = list(self.layers)
            shown = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
            reason = f" It was missed: {self.missed[name]}." if name in self.missed else nearest_name(name, known)
            raise InvalidValue(f"the profile has no layer {name!r}; it has {shown or 'none'}.{reason}")
        return self.layers[name]

    def thin(self, most: int) -> int:
        """Drop every second observed step while there are more than `most`, and return the resulting `every`.

        An observer can thus run for weeks in bounded memory, and its steps stay evenly spaced.
        """
        while any(len(layer.records) > most for layer in self.layers.values()):
            self.every *= 2
            for layer in self.layers.values():
                layer.thin(self.every)
        return self.every

    # -- file --

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile to an .npz file without pickle; a failure leaves an existing file as it was."""
        return replace_file(
            path,
            file.pack(
                self.layers,
                self.missed,
                self.steps,
                self.every,
                self.noise,
                self.work,
                self.loss,
                self.uncounted,
                self.minibatch,
                self.menus,
            ),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limit: int = file.LIMIT) -> Profile:
        """Return the profile that `save` wrote; InvalidValue says in one sentence what is wrong with a file.

        Args:
            limit: bytes that the profile may take in memory.  A file that claims more is refused before it is loaded.
        """
        content = read_file(path, limit)
        try:
            return cls(*file.unpack(content, limit))
        except InvalidValue as error:
            hint = " Profile.load(path, limit=...) allows more." if isinstance(error, TooLarge) else ""
            raise InvalidValue(f"Cannot read the profile {path}: {error}{hint}") from None

    @classmethod
    def merge(cls, profiles: Sequence[Profile]) -> Profile:
        """Return one profile from those of several ranks, which observed the same layers at the same steps.

        The histograms of a step are added.  For the neural gradient this gives the histogram of the whole batch.  The
        weight gradients are counted as the ranks have them, before they are averaged over the ranks.  Measured noise is
        averaged, if all ranks have measured it, and so is the variance of a rank's minibatches.  Menus are those of the
        first.
        """
        profiles = list(profiles)
        if not profiles or not all(isinstance(one, Profile) for one in profiles):
            raise InvalidType(sentence("what is merged", profiles, "a list of at least one Profile"))
        first = profiles[0]
        for number, other in enumerate(profiles[1:], start=2):
            _check_alike(first, other, number)
        layers = {name: _merge_layers([one.layers[name] for one in profiles]) for name in first.layers}
        measured = [one.noise for one in profiles if one.noise is not None]
        alike = len(measured) == len(profiles) and len({one.layers for one in measured}) == 1
        noise = mean_of(measured) if alike else None
        works = [one.work for one in profiles if one.work is not None]
        work = StepWork.sum(works) if len(works) == len(profiles) else None
        loss = next((one.loss for one in profiles if one.loss is not None), None)
        minibatch = mean_of_minibatches([one.minibatch for one in profiles])
        step = (dict(first.missed), first.steps, first.every)
        return cls(layers, *step, noise, work, loss, minibatch=minibatch, menus=first.menus)

    # -- plan --

    def plan(
        self,
        bits: planner.Bits | None = None,
        sparsity: float | None = None,
        *,
        noise: float | None = None,
        objective: Literal["progress"] | None = None,
        methods: str | Iterable[str] | None = None,
        backends: str | Iterable[str] | None = None,
        allocation: planner.Allocation | None = None,
        floors: Mapping[str, float] | None = None,
        law: PruningLaw = "empirical",
        keep: str | Iterable[str] | None = None,
        scale: str = "max",
        rounding: Literal["stochastic", "nearest"] = "stochastic",
        products: str | Iterable[str] = ("input_gradient", "weight_gradient"),
        split: bool = False,
        everywhere: bool = False,
    ) -> Plan:
        """Return a plan: the best methods for a goal, or the gradient of each layer with fewer bits or more zeros.

        With a goal, noise= or objective=, a method is chosen for each layer from those that
        `lograd.profile(noise=2, times=True)` has timed, and sparsities between them.  Without one, bits= and sparsity=
        say what is done to the gradient, by the last observed step.

        Args:
            noise: the fastest plan that adds at most this much variance, in units of the minibatch's own.
            objective: "progress": the plan with the most progress per second, speed / (1 + noise).
            methods, backends: with a goal, what to choose from, such as ["int8", "prune*"] and "integer".
            bits: round to a float of so many bits, in the split of exponent and mantissa with the least relative error
                for the layer's histogram.  "recommended" takes the fewest with a predicted cosine of 0.98.
            sparsity: prune stochastically, before rounding, so that this share of the work in the pruned products is
                skipped.  Layers in which zeros save no time are not pruned, unless `everywhere` is True.
            allocation: how the sparsity is split over layers (`planner.Allocation`).  None means "noise" where that was
                measured, else "uniform".  With `split` the two products of a layer may differ.
            floors: the smallest cosine by pattern of layer names, such as {"layer3.*": 0.98}, for "floors".
            law: the law from which thresholds are computed, "empirical", "lognormal" or "normal" (`treatments.Prune`).
                "lognormal" also chooses formats as the paper does, for the fitted law and at the scale "mean".
            keep: layers that are left alone: "first", "last" (in order of execution), or patterns of layer names; by
                default the last one, which is small and suffers most, and none with a goal, which weighs that itself.
            scale, rounding: the rule of `theory.scale`, and "stochastic" or "nearest".
            products: treat the gradient for dX ("input_gradient"), for dW ("weight_gradient"), or for both.

        Predictions are in it (`plan.evidence`); a LogradWarning tells if noise explodes.
        """
        others = (bits, sparsity, allocation, floors, law, scale, rounding, products, split, everywhere)
        if planner.has_goal((noise, objective), (methods, backends), others):
            goal = Goal(noise, objective)
            found = Measurements.of(self.layers, self.noise, self.minibatch, self.menus)
            task = problem_of(found, () if keep is None else keep, Restriction.of(methods, backends), self.loss)
            return self._with_work(plan_for(found, task, goal))
        keep = ("last",) if keep is None else keep
        usual: planner.Allocation = "uniform" if self.noise is None or sparsity is None else "noise"
        chosen = usual if allocation is None else allocation
        budget = planner.Budget(sparsity, chosen, floors, split, self.noise, everywhere)
        made = planner.build(self.layers, bits, budget, law, keep, scale, rounding, products, self.loss)
        return self._with_work(made, expected=expected_of(made.layers, self.layers, self.noise, self.minibatch))

    def _with_work(self, plan: Plan, **more: Any) -> Plan:
        return replace(plan, evidence=replace(plan.evidence, step=self.work, **more))

    def expected(self, plan: Plan) -> Expected:
        """Return the noise that a plan would add here, in units of the minibatch's own variance.

        The profile must have measured both, by `lograd.profile(..., noise=2)` on 3 batches at least; one that lacks
        something is refused with what it is.  Noise is predicted of unbiased treatments of gradients that the law of
        their magnitudes decides.  For others `rho` of the result is None and `unknown` the reason, and
        `lograd.variance` measures them.

        Args:
            plan: any plan for this model, such as `Plan.uniform("fp6")`.
        """
        if not isinstance(plan, Plan):
            raise InvalidType(sentence("plan", plan, "a Plan"))
        found = expected_of(planned_layers(plan, self.layers), self.layers, self.noise, self.minibatch, plan)
        if found is None:
            raise InvalidValue(f"the noise of a plan is not predicted by this profile: {self._unmeasured}")
        return found

    @property
    def _unmeasured(self) -> str:
        """What a prediction of noise lacks in this profile, and how to get it."""
        again = f"profile again with noise=2 on at least {LEAST_BATCHES} batches"
        if self.noise is None:
            lacking = (self.broken or "it was not measured how noise travels").rstrip(".")
        elif self.minibatch is not None and not self.minibatch.unit > 0:
            lacking, again = "the gradient was the same in all of its batches, so noise has no unit", "give it others"
        else:
            words = self.unitless or (
                "The energies of noise are not in this profile: it is of an older lograd, or not all gradients of "
                "parameters were finite."
            )
            lacking = words[0].lower() + words[1:].rstrip(".")
        return f"{lacking}; {again}."

    # -- table and page --

    def table(self) -> TextTable:
        """Return a table for the terminal with one row for each layer."""
        return table.profile_table(
            self.layers, self.missed, self.steps, self.work, self.uncounted, self.broken, self.minibatch, self.unitless
        )

    @property
    def unitless(self) -> str | None:
        """A sentence on why noise was measured and its unit, the minibatch's variance, was not; None where both were.

        Also None where neither was.
        """
        if self.noise is None or self.minibatch is not None:
            return None
        if self.steps < LEAST_BATCHES:
            return (
                "The minibatch's own variance, the unit of noise, was not estimated: it takes "
                f"{LEAST_BATCHES} batches, and the profile has {self.steps}."
            )
        return (
            "The minibatch's own variance, the unit of noise, is not in this profile: it is of an older lograd, or not "
            "all gradients of parameters were finite, or those of several ranks differ."
        )

    def __repr__(self) -> str:
        seen = "each" if self.every == 1 else f"one of {self.every}"
        noise = "" if self.noise is None else ", with noise"
        return f"Profile({plural(len(self.layers), 'layer')}, {plural(self.steps, 'step')}, {seen} observed{noise})"

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self, path: str | os.PathLike[str], title: str = "Profile of the gradients") -> Path:
        """Write a self-contained HTML page with sparsity, laws and formats of each layer, over depth and over time."""
        check_folder(path)  # fails before the page is computed
        built = page.build(
            self.layers,
            self.missed,
            self.steps,
            title,
            self.work,
            self.uncounted,
            self.broken,
            self.noise,
            self.minibatch,
            self.unitless,
        )
        return built.save(path)


def _check_alike(first: Profile, other: Profile, number: int) -> None:
    what = f"profile {number} must look at the same layers and steps as profile 1"
    for name in [*first.layers, *other.layers]:
        here, there = first.layers.get(name), other.layers.get(name)
        if here is None or there is None:
            raise InvalidValue(f"{what}; layer {name!r} is only in profile {number if here is None else 1}.")
        for side in ("records", "weight_records"):
            steps = [[record.step for record in getattr(layer, side)] for layer in (here, there)]
            if steps[0] != steps[1]:
                raise InvalidValue(
                    f"{what}; of layer {name!r} it has {plural(len(steps[1]), 'observed step')}, and profile 1 has "
                    f"{len(steps[0])} or others."
                )
        if (here.kind, here.weight_shape) != (there.kind, there.weight_shape):
            raise InvalidValue(f"{what}; layer {name!r} is {_what(there)} there and {_what(here)} in profile 1.")


def _what(layer: LayerProfile) -> str:
    return f"a {layer.kind} with a weight of shape {layer.weight_shape}"


def _merge_layers(layers: Sequence[LayerProfile]) -> LayerProfile:
    def sums(name: str) -> int | None:
        counts = [getattr(layer, name) for layer in layers]
        return None if None in counts else sum(counts)

    def add(side: str) -> list[Record]:
        return [sum_of(column) for column in zip(*(getattr(layer, side) for layer in layers), strict=True)]

    first = layers[0]
    noisy = [layer.noisy for layer in layers]
    return LayerProfile(
        first.name,
        first.kind,
        first.weight_shape,
        sums("flops_input"),
        sums("flops_weight"),
        add("records"),
        add("weight_records"),
        np.concatenate([layer.sample for layer in layers])[:: len(layers)],
        sums("flops_forward"),
        first.groups,
        first.transposed,
        first.range,
        by_level(noisy) if len({len(one) for one in noisy}) == 1 else (),
    )
