"""Everything that is renewed between two steps: statistics, the numbers of treatments that follow from them, and keys.

A histogram is taken inside the backward; the law is fitted between two steps.  Each site of each layer has a key of
random numbers of its own in each step, on each rank of a process group.  Under data parallelism, the
gradients of learned ranges may be averaged over ranks.
"""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..engine.layer import LayerEngine
from ..engine.site import CPU, STRIDE, Operand, Site
from ..errors import InvalidType, InvalidValue, sentence
from ..laws import Empirical
from ..laws.law import Values
from ..ops import LogHistogram
from ..ops.histogram import BINS
from ..theory import allocate
from ..treatments import Prediction, Statistics, Treatment, numbers_of, predict
from ..treatments.learned import SIGNED

EARLY_STEPS = 20
"""In so many first steps statistics are always taken: gradients change fastest then, also as the treatment begins."""
SELDOM = 100
"""Steps between histograms that decide nothing, and are there to be read in `explain`."""
LEAST_SPARSE, MOST_SPARSE = 1e-4, 0.99
"""The least and the most sparsity that one layer gets where several share a target."""


Group = dist.ProcessGroup


def check_loss_scale(loss_scale: float | None) -> float | None:
    """Return the loss scale as a float, or refuse what is not positive and finite; None stays None."""
    if loss_scale is None:
        return None
    if isinstance(loss_scale, bool) or not isinstance(loss_scale, numbers.Real):
        raise InvalidType(sentence("loss_scale", loss_scale, "a number, positive and finite"))
    number = _in_float(loss_scale)
    if not 0 < number < float("inf"):
        raise InvalidValue(sentence("loss_scale", loss_scale, "positive and finite"))
    return number


def _in_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")


def is_due(refresh: int, steps: int, last: int) -> bool:
    """Return True if step number `steps` takes statistics, where the last step that did is `last`.

    The interval is reached gradually, as gradients settle: it is a twentieth of the run so far.
    """
    return steps - last >= min(refresh, max(steps // EARLY_STEPS, 1))


@dataclass
class Cost:
    """The cost of statistics: reported, and never a reason for anything."""

    steps: int = 0
    """Steps that took statistics."""
    refreshes: int = 0
    """Laws fitted, of all layers together."""
    milliseconds: float = 0.0
    """Spent between steps; the histograms' own time is counted by the layers."""


class OperandStatistics:
    """The statistics of one operand of a layer, and their history."""

    def __init__(
        self, operand: Operand, masked: float = 0.0, work: float = 0.0, factors: Callable[[], Tensor] | None = None,
        has_rows: bool = False,
    ) -> None:  # fmt: skip
        self.operand = operand
        self.has_rows = has_rows
        """True if rows of the gradient are multiplied by steps of activations for dW, which a law of all elements does
        not tell anything about."""
        self._factors = factors
        self.masked = masked
        self.work = work
        """Multiply-adds that an element of the gradient costs: a sparsity that layers share is a share of work."""
        self.table: Tensor | None = None
        """The histogram behind the numbers in force."""
        self.step = -1
        """The step in which it was taken."""
        self.loss_scale = 1.0
        """The loss scale at that time."""
        self.energy = self.first_energy = 0.0
        """E[g^2] of that histogram and of the first one, without the loss scale."""
        self.problem = ""
        self.passed_over = False
        """True if the last histogram was that of a short step, and was not used."""
        self.allotted: dict[Hashable, float] = {}
        """The sparsity of this layer, for each treatment whose target several layers share."""
        self.treats = True
        """False while a guard keeps the operand as it is."""
        self._counted: Tensor | None = None
        self._law: Empirical
        """The law of the histogram `_counted`: several numbers are read from one."""

    @property
    def joint(self) -> dict[Treatment, float]:
        """The sparsities that treatments of this operand share with other layers."""
        treatments = (one for site in self.operand.sites.values() for one in site.treatments)
        return {one: one.shared_sparsity for one in treatments if one.shared_sparsity is not None}

    @property
    def decides(self) -> bool:
        """True if something follows from statistics: numbers, or a share of zeros."""
        return self.operand.has_statistics or any(site.makes_zeros for site in self.operand.sites.values())

    def wanted(self, step: int) -> bool:
        """Return True if a histogram that is due in this step is to be taken."""
        return self.table is None or self.decides or step - self.step >= SELDOM

    @property
    def collecting(self) -> bool:
        """True if a histogram was asked for and is not delivered yet."""
        return bool(self.operand.control[STRIDE])

    def collect(self) -> None:
        """Ask for a histogram in the passes of the next step."""
        self.operand.histogram.zero_()
        self.operand.control[STRIDE] = 1

    def statistics(self, loss_scale: float) -> Statistics:
        """Return the statistics of the last histogram, as they would be under this loss scale."""
        assert self.table is not None
        if self._counted is not self.table:
            self._counted, self._law = self.table, LogHistogram(self.table).law()
        taken = Statistics(self._law, self.masked, self.allotted)
        return taken if loss_scale == self.loss_scale else taken.scaled(loss_scale / self.loss_scale)

    def set_numbers(self, loss_scale: float) -> None:
        """Write the numbers that follow from the statistics, under this loss scale, to all sites."""
        statistics = self.statistics(loss_scale)
        for site in self.operand.sites.values():
            site.set_numbers(numbers_of(site.treatments, statistics))
        self.be_ready()

    def be_ready(self) -> None:
        """Let the operand be treated where nothing keeps it from that: a guard, or missing statistics."""
        known = self.table is not None or not self.operand.has_statistics
        self.operand.set_ready(self.treats and known)

    def rescale(self, before: float, after: float) -> None:
        """Adapt the numbers in force and the memory of treatments to a new loss scale."""
        for site in self.operand.sites.values():
            site.rescale(after / before)
        if self.table is not None:
            self.set_numbers(after)

    def predictions(self, loss_scale: float) -> dict[str, Prediction | None]:
        """Return the prediction for each site with the numbers in force; None where the law does not tell."""
        statistics = self.statistics(loss_scale)
        return {
            name: None
            if self._is_by_row(site)
            else _with_rows(site, predict(site.treatments, statistics, site.numbers_and_memory(), self.factors(site)))
            for name, site in self.operand.sites.items()
        }

    def bounds(self, loss_scale: float) -> dict[str, Prediction]:
        """Return a prediction with at least as much noise for each site whose own the law does not tell."""
        statistics = self.statistics(loss_scale)
        found: dict[str, Prediction] = {}
        for name, site in self.operand.sites.items():
            last = site.treatments[-1].bounded_by if site.treatments else None
            if last is not None and not self._is_by_row(site):
                bound = predict(
                    (*site.treatments[:-1], last), statistics, site.numbers_and_memory(), self.factors(site)
                )
                found |= {} if bound is None else {name: bound}
        return found

    def _is_by_row(self, site: Site) -> bool:
        return self.has_rows and site is self.operand.at["weight_gradient"]

    def factors(self, site: Site) -> Values | None:
        """Return the factors by which the gradient's channels are multiplied before the last rounding of a site.

        They are steps of the weight; their unit does not matter here.  None for a site that has none.
        """
        if self._factors is None or site is not self.operand.at["input_gradient"]:
            return None
        found: Values = self._factors().double().numpy()
        return found

    def deliver(self, step: int, before: float, after: float, cost: Cost) -> None:
        """Use the histogram that the step has taken, if there is one.

        Args:
            before, after: the loss scales of this step and of the next.
        """
        delivered = self.operand.histogram
        if not self.collecting or not bool(delivered.any()):
            return
        start = time.perf_counter()
        self.problem = _problem(delivered)
        short = not self.problem and self._is_short(delivered)
        if self.problem or short:
            self.passed_over = short
            self.collect()
        else:
            self.operand.control[STRIDE] = 0
            self.passed_over = False
            self.table, self.step, self.loss_scale = delivered.clone(), step, before
            self.energy = self.statistics(before).moment(2) / before**2
            self.first_energy = self.first_energy or self.energy
            self.set_numbers(after)
            cost.refreshes += 1
        cost.milliseconds += (time.perf_counter() - start) * 1e3

    def _is_short(self, table: Tensor) -> bool:
        """Return True for a short batch, as at the end of an epoch: its gradients are larger, so it is skipped once."""
        if self.table is None or self.passed_over:
            return False
        return 4 * int(table.sum()) < 3 * int(self.table.sum())

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, as tensors and plain values."""
        return {
            "table": torch.zeros_like(self.operand.histogram) if self.table is None else self.table,
            "step": self.step,
            "loss_scale": self.loss_scale,
            "passed_over": self.passed_over,
            "allotted": [self.allotted.get(one, share) for one, share in self.joint.items()],
            "energies": [self.energy, self.first_energy],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another; without a histogram in it, statistics start anew."""
        table = state.get("table")
        if table is None or not bool(table.any()):
            self.table = None
            return
        self.table = table.clone().to(self.operand.histogram.device)
        self.step, self.loss_scale = state["step"], state["loss_scale"]
        self.passed_over = state["passed_over"]
        self.allotted = dict(zip(self.joint, state["allotted"], strict=True))
        self.energy, self.first_energy = state["energies"]


def share_out(layers: Sequence[OperandStatistics], loss_scale: float) -> None:
    """Divide each sparsity that several layers share among them, and set their thresholds."""
    known = [layer for layer in layers if layer.table is not None]
    for treatment, sparsity in {one: share for layer in known for one, share in layer.joint.items()}.items():
        sharing = [layer for layer in known if treatment in layer.joint]
        found = [layer.statistics(loss_scale) for layer in sharing]
        work = [one.elements * layer.work for one, layer in zip(found, sharing, strict=True)]
        shares = allocate([one.law for one in found], work, sparsity, max_sparsity=MOST_SPARSE)
        for layer, share in zip(sharing, shares.tolist(), strict=True):
            layer.allotted[treatment] = min(max(share, LEAST_SPARSE), MOST_SPARSE)
            layer.set_numbers(loss_scale)


def _problem(table: Tensor) -> str:
    """Return why a histogram has no law; empty if it has one."""
    zeros, nan, infinities = table[BINS:].tolist()
    if nan or infinities:
        return f"the gradient had {nan} NaN and {infinities} infinite elements"
    return "" if bool(table[:BINS].any()) else f"all {zeros} elements of the gradient were zero"


def _with_rows(site: Site, prediction: Prediction | None) -> Prediction | None:
    """Return a prediction with the noise of rows that are dropped in front; None where the share of rows was given."""
    if site.rows is None or prediction is None:
        return prediction
    noise = site.rows.noise
    return None if noise is None else replace(prediction, cosine=prediction.cosine / (1 + noise) ** 0.5)


# -- keys of random numbers --

_NUMBERS = {
    "gradient": 0,
    "input_gradient.gradient": 1,
    "weight_gradient.gradient": 2,
    "input_gradient.weights": 3,
    "weight_gradient.activations": 4,
}
_OTHERS = {"output.activations": 0, "output.weights": 1, "activations": 2, "weights": 3}
"""Sites of the output have numbers far above those of the backward, which runs of earlier versions have."""


def _number(index: int, site: str) -> int:
    """Return the number of a site of the layer with this index."""
    if site in _NUMBERS:
        return len(_NUMBERS) * index + _NUMBERS[site]
    return 2**40 + len(_OTHERS) * index + _OTHERS[site]


def numbered_sites(layers: Iterable[LayerEngine]) -> list[tuple[int, Site]]:
    """Return every distinct site with a number of its own, from which its random numbers follow."""
    return [(_number(index, name), site) for index, layer in enumerate(layers) for name, site in layer.sites.items()]


def set_keys(layers: Iterable[LayerEngine], seed: int, steps: int) -> None:
    """Write the key of each site for a step."""
    sites = numbered_sites(layers)
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    common = mix(mix(np.uint64(seed % 2**64)) + np.uint64(rank))
    seeds = mix(mix(common + np.array([number for number, _ in sites], dtype=np.uint64)) + np.uint64(steps))
    for (_, site), own in zip(sites, seeds.view(np.int64).tolist(), strict=True):
        site.key.copy_(torch.tensor([own, 0], device=CPU))


def mix(x: Any) -> Any:
    """Return 64 bits that depend on all 64 bits of x, by the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


# -- ranks --


def average_over_ranks(model: nn.Module, layers: Iterable[LayerEngine], group: Group | None) -> None:
    """Average the gradients of learned ranges over a group, and let the ranges start where the widest of them does.

    Args:
        model: its process group is taken where no group is given and it is wrapped in DistributedDataParallel.
        layers: in the same order on each rank.
        group: None for that of the model, else for all ranks.
    """
    sites = [site for layer in layers for site in layer.sites.values() if site.learned is not None]
    if not sites or _is_alone(group := _group(model, group)):
        return
    _share_starts(sites, group)
    summed = torch.stack([_gradient(site) for site in sites])
    dist.all_reduce(summed, group=group)
    for site, (gradient, ranks) in zip(sites, summed, strict=True):
        if bool(ranks) and site.learned is not None:
            site.learned.grad = (gradient / dist.get_world_size(group)).reshape(1)


def _group(model: nn.Module, group: Group | None) -> Group | None:
    """Return the group that was given, or that of the model; None for all ranks."""
    return model.process_group if group is None and isinstance(model, DistributedDataParallel) else group


def _is_alone(group: Group | None) -> bool:
    return not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1


def _gradient(site: Site) -> Tensor:
    """Return the gradient of a site's parameter and a 1; zeros where this rank has none, so that messages fit."""
    assert site.learned is not None
    gradient = site.learned.grad
    return site.learned.new_zeros(2) if gradient is None else torch.cat([gradient, torch.ones_like(gradient)]).detach()


def _share_starts(sites: list[Site], group: Group | None) -> None:
    """Set the start of each range to the largest that a rank found, signed where one was; once alike, it stays."""
    starts = torch.stack([site.memory[SIGNED : SIGNED + 2] for site in sites])  # what learns comes first in a sentence
    dist.all_reduce(starts, op=dist.ReduceOp.MAX, group=group)
    for site, start in zip(sites, starts, strict=True):
        site.memory[SIGNED : SIGNED + 2] = start
        site.follow()
