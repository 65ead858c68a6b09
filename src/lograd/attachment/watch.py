"""A guard over the noise of an attached plan: layers are let in when their noise fits, and fall back when it does not.

What it holds against its budget is called guard noise, as it is not always what a plan predicts (`travel`).  The noise
of a treatment follows from the law of the gradient; how far it travels to layers in front is measured: now and then no
gradient is treated for one step, and the energies of that step are held against those of the next.
"""

from __future__ import annotations

import warnings
from typing import Any, final

import numpy as np

from ..errors import LogradWarning, plural
from ..files.checks import MAX_FLOAT
from ..laws.law import Values
from ..plan import Plan
from .estimate import Estimate
from .guard import Change, Guard
from .news import News
from .place import FORGETTING, KEPT, Place
from .refresh import OperandStatistics
from .travel import budget_of, travel_of

USUAL_BUDGET = 1.0
"""A noise as large as what it is measured against: more than that is not worth its step."""
INSIDE, AIM = 0.7, 0.85
"""Shares of the budget up to which layers are let in, and to which they fall back."""
FREELY = 0.25
"""The share of the budget up to which any number of layers is let in at once: four times as much noise still fits."""
AGREES = 1.25
"""The most noise that agrees with a prediction, as a factor of it: even the whole of INSIDE stays below the budget."""
SURPRISE = float(np.log(4.0))
"""A growth of energy, as a logarithm, that counts at once, unless batches differ so much from each other."""
SURE, CAREFUL = 2.0, 1.0
"""Standard errors of the travel of noise by which a fall is sure to be needed, and by which letting in is careful."""
SPREAD = 0.3**2
"""The variance, in logarithms, of the energy of a layer from batch to batch, until it is known."""
MEDIAN_SQUARE = 0.455
"""The median of the square of a standard normal number."""
SOON, LATER, SETTLED, COMPLETE = 4, 10, 50, 200
"""Steps from one reference to the next: at the beginning, after a change, and at most, while layers wait or not."""
BEGINNING = 50
QUIET = 3
"""Measurements before a layer that fell back returns; twice as many after each further fall."""
MOST_CHANGES = 1000
"""Changes that are kept."""


@final
class Watch:
    """A guard at work: `handle.guard`.

    Args:
        guard: the settings.
        plan: the plan that is attached.
        layers: the statistics of the gradients, by layer, in the order in which the layers run.
    """

    def __init__(self, guard: Guard, plan: Plan, layers: dict[str, OperandStatistics]) -> None:
        self.settings = guard
        self.budget = guard.budget or budget_of(plan) or USUAL_BUDGET
        self.places = {name: Place(name, one) for name, one in layers.items()}
        self.changes: list[Change] = []
        """The last changes, in order."""
        self.made = 0
        """All changes so far."""
        self.references = 0
        """Steps in which no gradient was treated, to measure the energies without noise."""
        self._all = list(self.places.values())
        self._travel = travel_of(plan, list(layers))
        self._next, self._interval = 0, SOON
        """The step of the next reference, and the steps to the one after it."""
        self._pair, self._measured = -1, 0
        """The step that is compared with the reference before it, and comparisons so far."""
        self._look = -1
        """The step that takes statistics of all layers, as some were let in just before."""
        self._allowed, self._expected = 1, 0.0
        """Layers that may be let in at once, and the noise predicted when some were; 0 once it was found."""
        self._untreated = True
        """True if no gradient is treated in the step that is running."""
        self._reach = 0.0
        """The largest growth, as a logarithm, that was predicted where growth was measured."""
        self._spread = SPREAD
        """The variance of measured growth around the expected one."""
        self._loudness = 0.0
        """The noise of all layers together at that time, as a logarithm."""
        for place in self._all:
            place.let(False)
        self._news = News(self._all)

    def __repr__(self) -> str:
        return f"Watch({self.summary()})"

    # -- what it finds --

    @property
    def noise(self) -> float:
        """The guard noise of the plan as it is in force; `noise_words` says what it is."""
        return self._estimate().noise

    @property
    def noise_words(self) -> str:
        """The meaning of `noise`: of which ratio, for people."""
        return self._travel.words

    def _estimate(self) -> Estimate:
        return Estimate(self._travel, self._all, self._spread, self._loudness)

    @property
    def measures(self) -> bool:
        """True if growth is measured; False while all noise fits even if it travels without loss."""
        return any(place.statistics.watched for place in self._all)

    @property
    def waiting(self) -> list[str]:
        """The layers that are not treated now."""
        return [place.name for place in self._all if not place.statistics.treats]

    def summary(self) -> str:
        """Return one line for people."""
        treated = len(self._all) - len(self.waiting)
        text = (
            f"{treated} of {plural(len(self._all), 'layer')} treated; guard noise {self.noise:.2g} "
            f"({self.noise_words}), budget {self.budget:g}"
        )
        falls, outside = sum(one.falls for one in self._all), sum(one.outside for one in self._all)
        text += f"; {plural(self.references, 'untreated step')} as reference" if self.references else ""
        text += f"; fell back {plural(falls, 'time')}" if falls else ""
        return text + (f"; {plural(outside, 'gradient')} of unexpected size passed through" if outside else "")

    def words(self, layer: str) -> str:
        """Return what the guard does to a layer, for people; empty where it lets the plan be carried out."""
        place = self.places.get(layer)
        if place is None or place.status == "treated":
            return ""
        return f"guard: {place.status}, own noise {max(place.noise, place.noise_weight):.2g} of its energy"

    def _exceeds(self, estimate: Estimate) -> bool:
        """Return True if there is surely more noise than the budget allows."""
        return estimate.total(estimate.inside, estimate.travels(-SURE)) > self.budget

    # -- steps --

    def hold(self) -> None:
        """Keep the layers as they are that are not let in."""
        for place in self._all:
            place.statistics.be_ready()

    def ended(self, step: int, scaled: bool) -> None:
        """Look at what was counted in a step, before its statistics are used.

        Args:
            scaled: True under loss scaling, where NaN are expected.
        """
        strange, clipped, broken = self._news.take()
        for place in (*strange, *clipped):
            cause, after = ("size", "untreated in this step") if place in strange else ("clipped", "statistics anew")
            if next((one.cause for one in reversed(self.changes) if one.layer == place.name), "") != cause:
                self._note(step, place, place.status, cause, after)  # not in each step that it lasts
            place.statistics.be_ready()
            place.clean_step = -1
            self._pair = -1
            if not place.statistics.collecting:
                place.statistics.collect()
        if strange or clipped:
            self._next = step + 2  # the next step takes new statistics, and the one after it is a reference
        self._say(step, "size", strange, "has another size than in its statistics, by more than a factor of 100; it "
                  "passed through untreated, and statistics are taken anew")  # fmt: skip
        self._say(step, "clipped", clipped, "was clipped by a scale that is out of date; statistics are taken anew")
        if not scaled:
            self._say(step, "nan", broken, "has NaN after its treatment")

    def judge(self, step: int, loss_scale: float) -> None:
        """Decide by the statistics that a step has delivered."""
        fresh = [place for place in self._all if place.statistics.step == step]
        anew = [place.measure(loss_scale) for place in fresh]
        if self._untreated:
            for place in fresh:
                place.clean, place.clean_step = place.log_energy, step
            self._pair = step + 1
            if any(place.statistics.treats for place in self._all):
                self.references += 1
            elif step >= self._next:
                self._count()
                self._decide(step, loss_scale)
        elif step == self._pair:
            self._compare(step)
            self._decide(step, loss_scale)
        elif self.measures:
            estimate = self._estimate()
            self._verify(step, estimate)
            if any(anew) and self._exceeds(estimate):
                self._fall_back(step, loss_scale)
        elif any(anew) or not self._settled:
            self._count()
            self._decide(step, loss_scale)

    @property
    def _settled(self) -> bool:
        """True if all layers are treated as asked for, and as predicted."""
        return not self._expected and all(place.statistics.treats and not place.level for place in self._all)

    def prepare(self, step: int) -> None:
        """Make the next step a reference, or let it take the statistics that are held against one, where due."""
        was_untreated, measures = self._untreated, self.measures
        treats = any(place.statistics.treats for place in self._all)
        reference = measures and step >= self._next and step != self._pair and treats
        collects = reference or step == self._look or (measures and step == self._pair)
        for place in self._all if collects or was_untreated else ():
            if reference:
                place.statistics.operand.set_ready(False)
            elif was_untreated:
                place.statistics.be_ready()
            if collects:
                place.statistics.collect()  # of all elements, also where a sample was asked for
        if reference:
            self._next = step + self._interval
        self._untreated = not any(place.statistics.operand.ready for place in self._all)

    # -- growth --

    def _count(self) -> None:
        self._measured += 1
        for place in self._all:
            place.forget()

    def _compare(self, step: int) -> None:
        self._count()
        estimate = self._estimate()
        which, predicted, found = estimate.growths(step, 1)
        unexpected = found - estimate.travels()[which] * predicted
        for index, expected, measured in zip(which, predicted.tolist(), found.tolist(), strict=True):
            self._all[index].compare(expected, measured, self._surprise)
        if which:
            # The median: what a few layers do is no measure of chance.
            spread = min(float(np.median(unexpected**2)) / MEDIAN_SQUARE, SURPRISE**2)
            self._spread = FORGETTING * self._spread + (1 - FORGETTING) * spread
        self._reach = float(predicted.max(initial=0.0))
        self._loudness = float(np.log1p(estimate.ratios(estimate.inside)[0]).sum())

    @property
    def _surprise(self) -> float:
        return float(max(SURPRISE, 4 * self._spread**0.5))

    def _verify(self, step: int, estimate: Estimate) -> None:
        """Take a reference at once where energies are far from those of the last one."""
        which, predicted, found = estimate.growths(step, COMPLETE + 1)
        if which and float(np.max(found - estimate.travels()[which] * predicted)) > self._surprise:
            self._next = min(self._next, step + 1)

    # -- decisions --

    def _decide(self, step: int, loss_scale: float) -> None:
        before, estimate = self.made, self._estimate()
        every = np.ones(len(self._all))
        watched = estimate.total(every, every) > INSIDE * self.budget
        for place in self._all:
            place.statistics.watched = watched
        checked = self._expected > 0
        if checked:
            agrees = estimate.noise <= max(AGREES * self._expected, FREELY * self.budget)
            self._allowed = min(2 * self._allowed, len(self._all)) if agrees else 1
            self._expected = 0.0
        if self._exceeds(estimate):
            self._fall_back(step, loss_scale)
        if not self._settled:
            self._let_in(step, loss_scale, watched)
        if self.made > before:
            self._interval = SOON if step < BEGINNING else LATER
        elif step == self._pair and not checked:
            self._interval = min(2 * self._interval, SETTLED if self.waiting else COMPLETE)
        self._next = step + (1 if self._expected else self._interval)

    def _let_in(self, step: int, loss_scale: float, watched: bool) -> None:
        """Let layers in, those with least noise first, as far as the noise of all stays inside the budget.

        Beyond a share of it one is let in, then two, then four, as long as the noise found agrees with what was
        predicted.
        """
        estimate, admitted = self._estimate(), 0
        most = max(float(np.log1p(self.budget)), 2 * self._reach) if watched else np.inf
        # Unwatched, all fits without loss on the way as it is, and what is changed has to fit in the same way.
        travel = estimate.travels(CAREFUL) if watched else np.maximum(estimate.travels(), 1.0)
        for index in sorted(range(len(self._all)), key=lambda index: (self._all[index].noise, index)):
            place, before = self._all[index], self._all[index].status
            returns = place.level > 0 or not place.statistics.treats
            if not place.known or not returns or self._measured < place.earliest:
                continue
            inside = estimate.inside.copy()
            inside[index] = 1.0
            full = admitted >= self._allowed
            if full and (place.statistics.treats or not self._is_free(estimate, inside, travel)):
                continue
            level = place.level
            self._fit_alone(place, index, loss_scale, estimate)
            while True:  # at the level that it would have; more bits cost no time, and fewer zeros do
                free = self._is_free(estimate, inside, travel)
                reach = float(estimate.growth(inside).max(initial=0.0))
                fits = estimate.total(inside, travel, pessimistic=True) <= INSIDE * self.budget and reach <= most
                if fits or place.statistics.pruning or not place.has_next_level:
                    break
                place.set_level(place.level + 1, loss_scale)
                estimate.update(index)
            changes = not place.statistics.treats or place.level != level
            if changes and fits and (free or not full):
                admitted += not free
                place.let(True)
                self._note(step, place, before, "fits")
            elif changes and place.statistics.treats:
                place.set_level(level, loss_scale)
            estimate.update(index)
        if admitted:
            self._expected = estimate.total(estimate.inside, travel, pessimistic=True)
            self._allowed, self._look = admitted, step + 1

    def _is_free(self, estimate: Estimate, inside: Values, travel: Values) -> bool:
        """Return True if so many layers have so little noise that nobody needs to look."""
        return estimate.total(inside, np.maximum(travel, 1.0), pessimistic=True) <= FREELY * self.budget

    def _fit_alone(self, place: Place, index: int, loss_scale: float, estimate: Estimate) -> None:
        """Choose the least level at which the layer alone would stay inside the budget; not above that of now."""
        alone, quiet = np.zeros(len(self._all)), np.zeros(len(self._all))
        alone[index] = 1.0
        last = place.level if place.statistics.treats else len(KEPT)
        if place.level:
            place.set_level(0, loss_scale)
            estimate.update(index)
        while (
            place.level < last
            and place.has_next_level
            and estimate.total(alone, quiet, pessimistic=True) > INSIDE * self.budget
        ):
            place.set_level(place.level + 1, loss_scale)
            estimate.update(index)

    def _fall_back(self, step: int, loss_scale: float) -> None:
        """Take the noise out that matters most, until it is inside the budget again, and say so."""
        estimate, fallen = self._estimate(), list[Place]()
        noise = estimate.noise
        worst = self._all[int(np.argmax(estimate.shares(estimate.inside, estimate.travels())))]
        self._allowed, self._expected = 1, 0.0
        while self.settings.fall_back and estimate.noise > AIM * self.budget and estimate.inside.any():
            index = estimate.loudest
            place = self._all[index]
            before = place.status
            place.falls, place.earliest = place.falls + 1, self._measured + QUIET * 2 ** min(place.falls, 6)
            if place.has_next_level and place not in fallen:
                place.set_level(place.level + 1, loss_scale)
            else:
                place.let(False)
            estimate.update(index)
            fallen = [*fallen, place]
            self._note(step, place, before, "noise")
        names = ", ".join(dict.fromkeys(place.name for place in fallen))
        done = f"; falling back: {names}" if names else "; nothing is changed (fall_back=False)"
        if self._measured <= QUIET:
            return  # while layers are being let in, a step back is no news
        self._say(step, "noise", [worst], f"is where most noise arrives: guard noise is {noise:.2g} "
                  f"({self.noise_words}), above the budget of {self.budget:g}{done}")  # fmt: skip

    def _note(self, step: int, place: Place, before: str, cause: str, after: str = "") -> None:
        if (after := after or place.status) != before:
            self.made += 1
            change = Change(step, place.name, before, after, cause, min(self.noise, MAX_FLOAT))
            self.changes = [*self.changes, change][-MOST_CHANGES:]

    def _say(self, step: int, cause: str, places: list[Place], text: str) -> None:
        """Warn of layers of which it was not said yet, all in one sentence."""
        new = [place for place in places if cause not in place.said]
        for place in new:
            place.said.append(cause)
        if new:
            more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
            warnings.warn(f"step {step}: the gradient of {new[0].name!r}{more} {text}.", LogradWarning, stacklevel=4)

    # -- saving --

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs, as plain values."""
        return {
            "references": self.references,
            "made": self.made,
            "schedule": [self._next, self._interval, self._pair, self._measured, int(self._untreated), self._look,
                         self._allowed],
            "measured": [self._reach, self._loudness, self._spread, self._expected],
            "changes": [list(change) for change in self.changes],
            "layers": {place.name: place.state() for place in self._all},
        }  # fmt: skip

    def load(self, state: dict[str, Any], loss_scale: float) -> None:
        """Go on from the `state` of another; layers that it does not have wait for their statistics."""
        self.references, self.made = state["references"], state["made"]
        self._next, self._interval, self._pair, self._measured, untreated, self._look, self._allowed = state["schedule"]
        self._untreated = bool(untreated)
        self._reach, self._loudness, self._spread, self._expected = state["measured"]
        self.changes = [Change(*change) for change in state["changes"]]
        for place in self._all:
            if place.name in state["layers"]:
                place.load(state["layers"][place.name])
            place.statistics.set_limits(loss_scale)
            if self._untreated:
                place.statistics.operand.set_ready(False)
        self._news.take()  # what comes is counted from here on
