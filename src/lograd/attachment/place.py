"""One layer under a guard: the noise of its gradient, how it grows on the way, and what the guard lets it do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

import numpy as np

from ..engine.site import Site
from ..errors import InvalidValue, sentence
from ..files.checks import check_number, check_object, check_whole
from ..laws.law import Values
from ..treatments import Integers, Prune, Statistics, predict
from ..treatments.verdicts import noise_of
from .refresh import OperandStatistics

MOST_NOISE = 1e6
"""The largest noise-to-signal ratio of one layer; that of a format which rounds all to zero would be infinite."""
KEPT = (1.0, 1.5, 2.0, 3.0)
"""Factors of the share of elements that pruning keeps, at each level of falling back; the last level is dense."""
FEWEST_ZEROS = 0.5
"""Sparse products gain nothing below this sparsity."""
PRIOR = (0.25, 0.25)
"""Sums of products and squares with which a travel of 1 is assumed until it is measured."""
FORGETTING = 0.85
"""The weight of earlier measurements of growth."""
TELLING, FARTHEST = 0.2, 3.0
"""A predicted growth, as a logarithm, that is large enough to tell how far noise travels, and the farthest believed."""
STEADY = 1.5
"""The change of energy up to which the noise of earlier statistics is taken for that of new ones, for a while."""
A_WHILE = 5
RECENT = 0.75
"""The weight of earlier statistics in the noise of a layer."""
RECALL = 0.9
"""The factor by which the largest noise that was seen fades with each new histogram."""


class Figures(NamedTuple):
    """Numbers of a layer from which the noise of a plan is estimated."""

    noise: float
    """The noise-to-signal ratio in the product for dX."""
    weight_noise: float
    """The one in the product for dW."""
    worst_noise: float
    """The largest of late, for dX."""
    worst_weight_noise: float
    """The largest of late, for dW."""
    products: float
    """The sum of predicted times measured growth."""
    squares: float
    """The sum of squares of predicted growth."""
    least: float
    """The growth that nobody expected; 0 for none."""
    known: float
    """1 if noise was predicted, else 0."""


@final
class Place:
    """One layer under a guard."""

    def __init__(self, name: str, statistics: OperandStatistics) -> None:
        self.name, self.statistics = name, statistics
        self.level = 0
        """How far it has fallen back: a place in KEPT where zeros are pruned, else 1 for more bits."""
        self.clean, self.clean_step = 0.0, -1
        """The logarithm of the energy in the last step in which no gradient was treated, and that step."""
        self.last, self.weighed = (0.0, 0.0), [0.0, 0.0, 0.0]
        """The noise-to-signal ratios of the last prediction, and sums of them weighed by energy, and of energy."""
        self.peak = (0.0, 0.0)
        """The largest of these ratios of late; they fade."""
        self.known, self.age, self.energy = False, 0, 0.0
        self.sums = PRIOR
        """Decaying sums of (predicted growth) (measured growth) and (predicted growth)^2, in logarithms."""
        self.least = 0.0
        """The growth that was just measured, as a logarithm, where noise was not expected to arrive at all."""
        self.falls, self.earliest = 0, 0
        """How often the layer fell back, and the measurement before which it does not return."""
        self.outside = 0
        """Gradients that passed through as their size was not that of the statistics."""
        self.said: list[str] = []
        """Causes of which users were warned."""
        if statistics.operand.has_statistics:  # other treatments look at the tensor itself
            statistics.operand.set_limits(0.0, 0.0)

    @property
    def status(self) -> str:
        """The status in words: waiting, treated, treated with fewer zeros or with more bits, or dense."""
        if not self.statistics.treats:
            return "dense" if self.falls else "waiting"
        if not self.level:
            return "treated"
        zeros = f"at most {self.statistics.most_zeros:.0%} zeros"
        return f"treated, {zeros if self.statistics.pruning else 'in 8 bits'}"

    @property
    def travel(self) -> float:
        """The measured growth of energy over the predicted one, in logarithms."""
        return min(self.sums[0] / self.sums[1], FARTHEST)

    @property
    def log_energy(self) -> float:
        """The logarithm of the energy in the last statistics, 0 without any."""
        return math.log(self.statistics.energy or 1.0)

    # -- noise --

    def measure(self, loss_scale: float) -> bool:
        """Predict the noise of the treatments from the last statistics, unless these have hardly changed.

        Returns:
            True if it was predicted anew.
        """
        energy = self.statistics.energy
        changed = not 1 / STEADY < energy / (self.energy or math.inf) < STEADY
        self.age += 1
        anew = not self.known or self.age >= A_WHILE or changed
        if anew:
            self.known, self.age, self.energy = True, 0, energy
            self.last = self._predicted(loss_scale)
        self.peak = _larger(self.last, self.peak, RECALL)
        # Weighed by energy, as the noise of a small gradient is small, whatever its share; but one batch never counts
        # more than all before it: a single large gradient would hide for long what the usual ones have.
        weight = min(energy, self.weighed[2] or energy)
        self.weighed = [RECENT * old + weight * new for old, new in zip(self.weighed, (*self.last, 1.0), strict=True)]
        return anew

    def _predicted(self, loss_scale: float) -> tuple[float, float]:
        """Return the noise-to-signal ratios in dX and dW, by the law of the last gradient."""
        statistics = self.statistics.statistics(loss_scale)
        at = self.statistics.operand.at
        sites = at["input_gradient"], at["weight_gradient"]
        first = 0.0 if sites[0] is None else _noise(sites[0], statistics, self.statistics.factors(sites[0]))
        if sites[1] is sites[0]:
            return first, first
        return first, 0.0 if sites[1] is None else _noise(sites[1], statistics)

    @property
    def noise(self) -> float:
        """The noise-to-signal ratio of the treatment in the product for dX."""
        return self.weighed[0] / self.weighed[2] if self.weighed[2] else 0.0

    @property
    def noise_weight(self) -> float:
        """The noise-to-signal ratio of the treatment in the product for dW."""
        return self.weighed[1] / self.weighed[2] if self.weighed[2] else 0.0

    @property
    def figures(self) -> Figures:
        """All that an estimate of noise needs."""
        now = self.noise, self.noise_weight
        return Figures(*now, *_larger(now, self.peak), *self.sums, self.least, float(self.known))

    def compare(self, predicted: float, measured: float, surprise: float) -> None:
        """Learn from a growth of energy that was measured, and from the one that was predicted, in logarithms.

        Args:
            surprise: a difference from what was expected that makes earlier measurements void.
        """
        surprised = measured > self.travel * predicted + surprise
        self.least = measured - surprise if surprised and predicted < TELLING else 0.0
        if self.least:
            return
        products, squares = (0.0, 0.0) if surprised else self.sums
        self.sums = (products + predicted * measured, squares + predicted**2)

    def forget(self) -> None:
        """Forget a part of what was measured, in favour of a travel of 1: it was measured under other weights."""
        self.sums = (
            FORGETTING * self.sums[0] + (1 - FORGETTING) * PRIOR[0],
            FORGETTING * self.sums[1] + (1 - FORGETTING) * PRIOR[1],
        )

    # -- what the guard lets it do --

    def set_level(self, level: int, loss_scale: float) -> None:
        """Prune to the sparsity of a level, or round to its bits, and predict the noise anew.

        Noise that was seen before changes as that of the last gradient does, and is no less than it; where the last
        gradient had none, nothing is known.
        """
        counted = self.statistics.table is not None
        before = self._predicted(loss_scale) if counted else (0.0, 0.0)
        self.level = level
        self._carry_out()
        if counted:
            self.statistics.set_numbers(loss_scale)
            self.last = self._predicted(loss_scale)
            self.known, self.age, self.energy = True, 0, self.statistics.energy
            factors = [new / old if 0 < old < math.inf else 1.0 for new, old in zip(self.last, before, strict=True)]
            noise = _larger(self.last, (factors[0] * self.noise, factors[1] * self.noise_weight))
            self.weighed = [noise[0] * self.weighed[2], noise[1] * self.weighed[2], self.weighed[2]]
            self.peak = _larger(self.last, (factors[0] * self.peak[0], factors[1] * self.peak[1]))

    def _carry_out(self) -> None:
        """Let the operand be treated as the level says."""
        if self.statistics.pruning:
            self.statistics.most_zeros = self._most_zeros(self.level) if self.level else 1.0
        else:
            self.statistics.operand.widen(self.level > 0)

    def _most_zeros(self, level: int) -> float:
        asked = max((self.statistics.allotted.get(one, one.sparsity) for one in self.statistics.pruning), default=0.0)
        return 1 - KEPT[level] * (1 - asked)

    @property
    def has_next_level(self) -> bool:
        """True if there is a level with fewer zeros that may still gain something, or one with more bits."""
        if not self.statistics.pruning:
            return not self.level and any(site.wider for site in self.statistics.operand.sites.values())
        return self.level + 1 < len(KEPT) and self._most_zeros(self.level + 1) >= FEWEST_ZEROS

    def let(self, treats: bool) -> None:
        """Let the layer be treated, or keep its gradient as it is."""
        self.statistics.treats = treats
        self.statistics.be_ready()

    # -- saving --

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, as plain values."""
        return {
            "treats": int(self.statistics.treats), "level": self.level, "clean": [self.clean, self.clean_step],
            "noise": [*self.last, int(self.known), self.age, self.energy, *self.peak], "weighed": list(self.weighed),
            "growth": [*self.sums, self.least], "falls": [self.falls, self.earliest], "outside": self.outside,
            "watched": int(self.statistics.watched), "said": list(self.said),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another."""
        self.level = state["level"]
        self._carry_out()
        self.clean, self.clean_step = state["clean"]
        *last, known, self.age, self.energy, peak, peak_weight = state["noise"]
        self.peak = peak, peak_weight
        self.last, self.weighed = (last[0], last[1]), list(state["weighed"])
        self.known, self.sums, self.least = bool(known), (state["growth"][0], state["growth"][1]), state["growth"][2]
        self.falls, self.earliest = state["falls"]
        self.outside, self.said = state["outside"], list(state["said"])
        self.statistics.watched = bool(state["watched"])
        self.let(bool(state["treats"]))


def _larger(one: tuple[float, float], other: tuple[float, float], factor: float = 1.0) -> tuple[float, float]:
    """Return the larger ratios of two pairs, of which the second is multiplied by a factor."""
    return max(one[0], factor * other[0]), max(one[1], factor * other[1])


def check_place(name: str, state: Any) -> None:
    """Refuse what is no state of a layer under a guard, in one sentence."""
    what = f"the guard of layer {name!r}"
    lists = {"clean": 2, "noise": 7, "weighed": 3, "growth": 3, "falls": 2}
    check_object(what, state, ("treats", "level", *lists, "outside", "watched", "said"))
    for key, most in (("treats", 1), ("level", len(KEPT) - 1), ("outside", 2**62), ("watched", 1)):
        check_whole(f"{key} of {what}", state[key], 0, most)
    for key, count in lists.items():
        if not isinstance(state[key], list | tuple) or len(state[key]) != count:
            raise InvalidValue(sentence(f"{key} of {what}", state[key], f"{count} numbers"))
        for value in state[key]:
            check_number(f"{key} of {what}", value)
    if not isinstance(state["said"], list | tuple):
        raise InvalidValue(sentence(f"said of {what}", state["said"], "a list"))


def _noise(site: Site, statistics: Statistics, factors: Values | None = None) -> float:
    """Return the noise-to-signal ratio of a site's treatments by the law of the gradient, with the numbers in force.

    Where scales belong to rows or blocks, the law does not tell: as many bits with one scale for the tensor are taken,
    which have more noise.
    """
    if len(site.treatments) == 1 and isinstance(site.treatments[0], Prune):
        return _of_pruning(statistics, float(site.numbers[0]))
    predicted = predict(site.treatments, statistics, site.numbers_and_memory(), factors)
    if predicted is None:
        bits = min((one.element_bits for one in site.treatments if one.element_bits is not None), default=8.0)
        predicted = predict((Integers(max(int(bits), 2), rounding="stochastic"),), statistics, None, factors)
    assert predicted is not None
    return min(noise_of(predicted.cosine), MOST_NOISE)


def _of_pruning(statistics: Statistics, threshold: float) -> float:
    """Return E[(y - x)^2] / E[x^2] of stochastic pruning: sums of x (threshold - x) over what is below it."""
    edges, shares = statistics.law.edges, statistics.law.shares
    x = (edges[:-1] + edges[1:]) / 2
    below = x < threshold
    return min(float(np.sum((shares * x * (threshold - x))[below]) / np.sum(shares * x**2)), MOST_NOISE)
