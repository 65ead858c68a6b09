"""The profile of a model's gradients: a table, a page, a plan and a file, all from the same records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ..errors import InvalidType, InvalidValue, nearest_name, plural, sentence
from ..files.archives import TooLarge
from ..files.whole import check_folder, read_file, replace_file
from ..plan import Plan, StepWork
from ..report import TextTable
from ..treatments.prune import PruningLaw
from . import archive, page, planning, tables
from .broken import BrokenLoss, broken_words
from .noise import Contributions, mean_of
from .records import LayerProfile, Record, sum_of

MOST_STEPS = 256
"""Observed steps that a profile keeps; beyond, every second one is dropped."""


@dataclass(repr=False)
class Profile:
    """What the gradients of a model looked like, layer by layer in the order in which the layers ran.

    Attributes:
        layers: what was observed, by layer name.
        missed: layers of which nothing was seen, and why.
        steps: backward passes that went by.
        every: of so many steps one was observed.
        noise: how noise in each layer's gradient reaches the weight gradients, where that was measured.
        work: operations of the whole training step, and what of it no plan treats; None where that was not counted.
        loss: where `lograd.profile` saw a loss that was NaN or infinite.
        uncounted: why the work was not counted.
    """

    layers: dict[str, LayerProfile] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    every: int = 1
    noise: Contributions | None = None
    work: StepWork | None = None
    loss: BrokenLoss | None = None
    uncounted: str = ""

    @property
    def broken(self) -> str | None:
        """A sentence on NaN and infinite gradients, with layers and step; None where all were finite."""
        return broken_words(self.layers, self.loss)

    def __getitem__(self, name: str) -> LayerProfile:
        if name not in self.layers:
            known = list(self.layers)
            shown = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
            reason = f" It was missed: {self.missed[name]}." if name in self.missed else nearest_name(name, known)
            raise InvalidValue(f"the profile has no layer {name!r}; it has {shown or 'none'}.{reason}")
        return self.layers[name]

    def thin(self, most: int) -> int:
        """Drop every second observed step while there are more than `most`, and return the `every` that results.

        So an observer may run for weeks in bounded memory, and its steps stay evenly spaced.
        """
        while any(len(layer.records) > most for layer in self.layers.values()):
            self.every *= 2
            for layer in self.layers.values():
                layer.thin(self.every)
        return self.every

    # -- the file --

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One .npz without pickle; it is replaced whole or not at all."""
        return replace_file(
            path,
            archive.pack(
                self.layers, self.missed, self.steps, self.every, self.noise, self.work, self.loss, self.uncounted
            ),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limit: int = archive.LIMIT) -> Profile:
        """The exact inverse of `save`; what is wrong with a file is said in one sentence.

        Args:
            limit: bytes that the profile may take in memory.  A file that claims more is refused before it gets any.
        """
        content = read_file(path, limit)
        try:
            return cls(*archive.unpack(content, limit))
        except InvalidValue as error:
            hint = " Profile.load(path, limit=...) allows more." if isinstance(error, TooLarge) else ""
            raise InvalidValue(f"Cannot read the profile {path}: {error}{hint}") from None

    @classmethod
    def merge(cls, profiles: Sequence[Profile]) -> Profile:
        """One profile from those of several ranks, which looked at the same layers at the same steps.

        The histograms of a step add up.  For the neural gradient that is the histogram of the whole batch.  The weight
        gradients are those of the single ranks, before they are averaged over the ranks.  Measured noise is averaged,
        if all ranks have measured it.
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
        return cls(layers, dict(first.missed), first.steps, first.every, noise, work, loss)

    # -- the plan --

    def plan(
        self,
        bits: planning.Bits | None = None,
        sparsity: float | None = None,
        *,
        allocation: planning.Allocation | None = None,
        floors: Mapping[str, float] | None = None,
        law: PruningLaw = "empirical",
        keep: str | Iterable[str] = ("last",),
        scale: str = "max",
        rounding: Literal["stochastic", "nearest"] = "stochastic",
        products: str | Iterable[str] = ("input_gradient", "weight_gradient"),
        split: bool = False,
        everywhere: bool = False,
    ) -> Plan:
        """What to do to the gradient of each layer, fewer bits or more zeros, by theory from the last observed step.

        Args:
            bits: round to the float of so many bits whose split has the least relative error for the layer's histogram
                at the given scale (`theory.best_format`).  "recommended" gives each layer the fewest bits that are
                predicted to keep a cosine of 0.98; a layer for which 8 are too few is kept.
            sparsity: prune stochastically so that this share of the work in the pruned products is skipped; before
                rounding, if both are asked for.  In a layer, the share of work is the share of zeros.  Layers whose
                zeros save no time are left out: depthwise and transposed convolutions, those with fewer than 8 input
                channels, and small ones.
            allocation: None means "noise" where the profile has measured it, else "uniform".  "uniform" asks the
                sparsity of each layer.  The others ask it of all pruned layers together, each layer
                counted with the operations of its products in the profile.  "cosine" splits it so that the smallest
                cosine between a gradient and its pruned copy is as large as can be.  "noise" splits it so that the
                least noise arrives in the weight gradients, by factors that `lograd.profile(noise=...)` measures.
                "floors" is the heterogeneous rule of [chmiel2021]: layers with a floor give up sparsity until their
                cosine reaches it, and the others make up for it.
            floors: for that rule, the smallest cosine by pattern of layer names, such as {"layer3.*": 0.98}.
            law: of what the threshold is solved, "empirical", "lognormal" or "normal" (`treatments.Prune`).
                "lognormal" also chooses formats as the paper does, for the fitted law and at the scale "mean".
            keep: layers that are left alone: "first", "last" (in order of execution), or patterns of layer names.  The
                last one is small and its gradient has a narrow law, so that pruning it costs much and gains little.
            scale: the rule of `theory.scale` by which a gradient is put into the format's range.
            rounding: "stochastic" or "nearest".
            products: treat the gradient in the product for dX ("input_gradient"), for dW ("weight_gradient"), or in
                both.
            split: with allocation="noise", give the two products of a layer different sparsity; then each prunes its
                own copy of the gradient.
            everywhere: prune all layers, also those whose zeros save no time.

        The plan knows by how much noise is predicted to multiply the energy of a gradient (`plan.growth`), and a
        LogradWarning says so where it explodes.
        """
        usual: planning.Allocation = "uniform" if self.noise is None or sparsity is None else "noise"
        chosen = usual if allocation is None else allocation
        budget = planning.Budget(sparsity, chosen, floors, split, self.noise, everywhere)
        made = planning.build(self.layers, bits, budget, law, keep, scale, rounding, products, self.loss)
        return replace(made, step=self.work)

    # -- what to read --

    def table(self) -> TextTable:
        """A table for the terminal: one row for each layer, over all observed steps."""
        return tables.profile_table(self.layers, self.missed, self.steps, self.work, self.uncounted, self.broken)

    def __repr__(self) -> str:
        seen = "each" if self.every == 1 else f"one of {self.every}"
        noise = "" if self.noise is None else ", with noise"
        return f"Profile({plural(len(self.layers), 'layer')}, {plural(self.steps, 'step')}, {seen} observed{noise})"

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self, path: str | os.PathLike[str], title: str = "Profile of the gradients") -> Path:
        """A self-contained page: zeros, laws, formats and fits of each layer, over time and over depth."""
        check_folder(path)  # before the work, not after it
        built = page.build(
            self.layers, self.missed, self.steps, title, self.work, self.uncounted, self.broken, self.noise
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
    )
