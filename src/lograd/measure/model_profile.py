"""`Profile`, the profile of a whole model: its records, its file, and the plans, tables and pages made from them.

The file is one .npz of plain arrays, whose archive has a checksum of each:

- header: JSON with the version, the sizes of samples, and all of the profile but what the other arrays hold
- records: int64, a row for each record: layer, side (0 neural gradient, 1 weight gradient, 2 norms of rows), step,
  first bin, number of bins, zeros, NaN, infinities
- masked: float64, a number for each record; NaN where there is no BatchNorm
- counts: int64, the bins of all records one after another
- samples: float32, the samples of all layers one after another
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidType, InvalidValue, LogradError, nearest_name, plural, sentence
from ..files import check_folder, from_plain, read_arrays, read_file, read_json, replace_file, to_plain
from ..laws import Empirical
from ..plan import Expected, Plan
from ..text import TextTable
from ..treatments import BACKWARD
from ..treatments.prune import PruningLaw
from . import pages
from .planner import Allocation, Bits, Measurements, plan_by_amounts, plan_by_goal
from .prediction import expected_of, planned_layers
from .records import LayerProfile, Record
from .values import LEAST_BATCHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 3
MOST_STEPS = 256
"""The most observed steps that an observer keeps; when there are more, every second one is dropped."""
_SIDES = ("records", "weight_records", "row_records")
"""The lists of `LayerProfile` that the column "side" stands for."""
_NOTHING: NDArray[np.float32] = np.zeros(0, dtype=np.float32)


@dataclass(repr=False)
class Profile(Measurements):
    """Histograms of a model's gradients over some steps, layer by layer in the order of execution.

    `lograd.profile` and `lograd.observe` make one; `Measurements` says what it holds.
    """

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

    # -- plan --

    def plan(
        self,
        bits: Bits | None = None,
        sparsity: float | None = None,
        *,
        noise: float | None = None,
        objective: Literal["progress"] | None = None,
        methods: str | Iterable[str] | None = None,
        allocation: Allocation | None = None,
        law: PruningLaw = "empirical",
        keep: str | Iterable[str] | None = None,
        products: str | Iterable[str] = BACKWARD,
        split: bool = False,
        everywhere: bool = False,
    ) -> Plan:
        """Return a plan: the best methods for a goal, or the gradient of each layer with fewer bits or more zeros.

        With a goal, noise= or objective=, a method is chosen for each layer from those that
        `lograd.profile(noise=2, times=True)` has timed.  Without one, bits= and sparsity=
        say what is done to the gradient, by the last observed step; `Plan.override` changes formats, scales and
        rounding of the result.

        Args:
            noise: the fastest plan that adds at most this much variance, in units of the minibatch's own.
            objective: "progress": the plan with the most progress per second, speed / (1 + noise).
            methods: with a goal, what to choose from, such as ["int8-full", "prune*"].
            bits: round to a float of so many bits, in the split of exponent and mantissa with the least relative error
                for the layer's histogram.  "recommended" takes the fewest with a predicted cosine of 0.98.
            sparsity: prune stochastically, before rounding, so that this share of the work in the pruned products is
                skipped.  Layers in which zeros save no time are not pruned, unless `everywhere` is True.
            allocation: how the sparsity is split over layers (`planner.Allocation`).  None means "noise" where that was
                measured, else "uniform".  With `split` the two products of a layer may differ.
            law: the law from which thresholds are computed, "empirical", "lognormal" or "normal" (`treatments.Prune`).
                "lognormal" also chooses formats as the paper does, for the fitted law.
            keep: layers that are left alone: "first", "last" (in order of execution), or patterns of layer names; by
                default the last one, which is small and suffers most, and none with a goal, which weighs that itself.
            products: treat the gradient for dX ("input_gradient"), for dW ("weight_gradient"), or for both.

        Predictions are in it (`plan.evidence`); a LogradWarning tells if noise explodes.
        """
        if noise is None and objective is None:
            if methods is not None:
                raise InvalidValue("methods= says what to choose from for noise= or objective=.")
            plan = plan_by_amounts(
                self, bits, sparsity, allocation=allocation, law=law, keep=("last",) if keep is None else keep,
                products=products, split=split, everywhere=everywhere,
            )  # fmt: skip
            expected = expected_of(plan.layers, self.layers, self.noise, self.minibatch)
            return replace(plan, evidence=replace(plan.evidence, step=self.work, expected=expected))
        amounts = {
            "bits": bits, "sparsity": sparsity, "allocation": allocation, "split": split or None,
            "everywhere": everywhere or None, "law": None if law == "empirical" else law,
            "products": None if products == BACKWARD else products,
        }  # fmt: skip
        if given := [f"{name}=" for name, value in amounts.items() if value is not None]:
            raise InvalidValue(
                f"noise= and objective= choose bits and sparsities themselves, so {' and '.join(given)} cannot be "
                "given with them; methods= says what to choose from."
            )
        plan = plan_by_goal(self, noise=noise, objective=objective, keep=() if keep is None else keep, methods=methods)
        return replace(plan, evidence=replace(plan.evidence, step=self.work))

    def expected(self, plan: Plan) -> Expected:
        """Return the noise that a plan would add here, in units of the minibatch's own variance.

        The profile must have measured both, by `lograd.profile(..., noise=2)` on 3 batches at least.  Noise is
        predicted of unbiased treatments of gradients that the law of their magnitudes decides.  For others `rho` of the
        result is None and `unknown` the reason, and `lograd.variance` measures them.

        Args:
            plan: any plan for this model, such as `Plan.uniform("fp6")`.
        """
        if not isinstance(plan, Plan):
            raise InvalidType(sentence("plan", plan, "a Plan"))
        found = expected_of(planned_layers(plan, self.layers), self.layers, self.noise, self.minibatch, plan)
        if found is not None:
            return found
        raise InvalidValue(
            "the noise of a plan is not predicted by this profile; make one with noise=2 on at least "
            f"{LEAST_BATCHES} different batches whose gradients are finite."
        )

    # -- for people and for programs --

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each layer: its size, work, laws and zeros; None stands for what is not known."""
        return [pages.layer_row(self, layer) for layer in self.layers.values()]

    def to_dict(self) -> dict[str, Any]:
        """Return all that is known of the model and of each layer as plain values, without the histograms."""
        names = ("steps", "every", "missed", "broken", "work", "minibatch", "menus")
        return {"layers": self.rows(), **{name: to_plain(getattr(self, name)) for name in names}}

    def table(self) -> TextTable:
        """Return a table for the terminal with one row for each layer."""
        return pages.profile_table(self)

    def row_table(self) -> TextTable:
        """Return a table of the rows of each gradient: those that are zero, and those that `Rows` would keep."""
        return pages.row_table(self)

    def plot(self, layer: str | None = None) -> Figure:
        """Return a figure: how far all layers are from the fitted laws, or the magnitudes of one layer."""
        return pages.distances(list(self.layers.values())) if layer is None else pages.layer_figure(self[layer])

    def to_html(self, path: str | os.PathLike[str], title: str = "Profile of the gradients") -> Path:
        """Write a self-contained HTML page with sparsity, laws and formats of each layer, over depth and over time."""
        check_folder(path)  # fails before the page is computed
        return pages.write_profile(self, path, title)

    def __repr__(self) -> str:
        seen = "each" if self.every == 1 else f"one of {self.every}"
        noise = "" if self.noise is None else ", with noise"
        return f"Profile({plural(len(self.layers), 'layer')}, {plural(self.steps, 'step')}, {seen} observed{noise})"

    def __str__(self) -> str:
        return str(self.table())

    # -- file --

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile to an .npz file without pickle; a failure leaves an existing file as it was."""
        rows, masked, counts = [], [], [np.zeros(0, dtype=np.int64)]
        for index, layer in enumerate(self.layers.values()):
            for side, name in enumerate(_SIDES):
                for record in getattr(layer, name):
                    bins = np.zeros(0, dtype=np.int64) if record.law is None else np.asarray(record.law.counts)
                    first = 0 if record.law is None else record.law.first
                    numbers = (bins.size, record.zeros, record.nan, record.infinities)
                    rows.append([index, side, record.step, first, *numbers])
                    masked.append(np.nan if record.masked is None else record.masked)
                    counts.append(bins)
        samples = [layer.sample for layer in self.layers.values()]
        bare = {
            name: replace(one, sample=_NOTHING, records=[], weight_records=[], row_records=[])
            for name, one in self.layers.items()
        }
        header = {"lograd_profile": VERSION, "sizes": [one.size for one in samples]}
        file = io.BytesIO()
        np.savez_compressed(
            file,
            header=np.frombuffer(json.dumps(header | to_plain(replace(self, layers=bare))).encode(), dtype=np.uint8),
            records=np.array(rows, dtype=np.int64).reshape(-1, 8),
            masked=np.array(masked, dtype=np.float64),
            counts=np.concatenate(counts),
            samples=np.concatenate([_NOTHING, *samples]),
        )
        return replace_file(path, file.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Return the profile that `save` wrote; InvalidValue says in one sentence what is wrong with a file."""
        content = read_file(path)
        try:
            return _loaded(read_arrays(content))
        except LogradError as error:
            raise InvalidValue(f"Cannot read the profile {path}: {error}") from None


def _loaded(arrays: Mapping[str, NDArray[Any]]) -> Profile:
    """Return the profile in the arrays of a file, whose version is checked first."""
    header = read_json(arrays["header"].tobytes(), "its header") if "header" in arrays else None
    if not isinstance(header, dict) or header.pop("lograd_profile", None) != VERSION:
        raise InvalidValue(f"it is not a profile of version {VERSION}, which this lograd reads; profile again.")
    try:
        sizes, rows, masked = (header.pop("sizes"), arrays["records"], arrays["masked"])
        profile: Profile = from_plain(Profile, header, "the profile")
        layers, ends = list(profile.layers.values()), np.cumsum(rows[:, 4])
        counts = np.split(arrays["counts"], ends)
        for row, bins, share in zip(rows.tolist(), counts[:-1], masked.tolist(), strict=True):
            index, side, step, first, _, zeros, nan, infinities = row
            law = Empirical(bins, first, zeros=zeros) if bins.size else None
            record = Record(step, law, zeros, nan, infinities, None if np.isnan(share) else share)
            getattr(layers[index], _SIDES[side]).append(record)
        for layer, sample in zip(layers, np.split(arrays["samples"], np.cumsum(sizes)[:-1]), strict=False):
            layer.sample = sample
    except LogradError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidValue(f"it was changed after lograd saved it ({error}).") from None
    return profile
