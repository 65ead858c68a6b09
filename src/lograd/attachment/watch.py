"""A guard over the noise of an attached plan: layers are let in when their noise fits, and fall back when it does not.

The unit of noise is the variance that the minibatch itself puts into a gradient.  The noise of a treatment follows from
the law of the gradient; how far it travels to layers in front is measured: now and then no gradient is treated for one
step, and the energies of that step are held against those of the next.
"""

from __future__ import annotations

import warnings
from typing import Any, final

import numpy as np

from ..errors import LogradWarning, plural
from ..files.checks import MAX_FLOAT
from ..laws.law import Values
from ..plan import Plan
from .guard import Change, Guard
from .place import FORGETTING, KEPT, Place
from .refresh import OperandStatistics
from .travel import budget_of, travel_of

USUAL_BUDGET = 1.0
"""A noise as large as the minibatch's own: more than that is not worth its step."""
INSIDE, AIM = 0.7, 0.85
"""Shares of the budget up to which layers are let in, and to which they fall back."""
SURPRISE = float(np.log(4.0))
"""A growth of energy, as a logarithm, that counts at once, unless batches differ so much from each other."""
SURE, CAREFUL = 2.0, 1.0
"""Standard errors of the travel of noise by which a fall is sure to be needed, and by which letting in is careful."""
SPREAD = 0.3**2
"""The variance, in logarithms, of the energy of a layer from batch to batch, until it is known."""
MEDIAN_SQUARE = 0.455
"""The median of the square of a standard normal number."""
UNREACHED = 0.05
"""Layers whose predicted growth is below this show by how much the loss itself has changed the energies."""
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

    def __repr__(self) -> str:
        return f"Watch({self.summary()})"

    # -- what it finds --

    @property
    def noise(self) -> float:
        """The noise of the plan as it is in force, in units of the minibatch's own variance."""
        return self._total(self._inside, self._travels())

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
            f"{treated} of {plural(len(self._all), 'layer')} treated; noise {self.noise:.2g} of the minibatch's own, "
            f"budget {self.budget:g}"
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

    @property
    def _inside(self) -> Values:
        return np.array([place.statistics.treats for place in self._all], dtype=np.float64)

    def _ratios(self, inside: Values) -> tuple[Values, Values]:
        """Return the noise-to-signal ratios in dX and dW, where layers with 1 are treated and those with 0 are not."""
        noise, weight = (np.array([getattr(place, name) for place in self._all]) for name in ("noise", "noise_weight"))
        return noise * inside, weight * inside

    def _travels(self, errors: float = 0.0) -> Values:
        """Return the travel of noise to each layer, so many standard errors above what was measured."""
        found = [place.travel + errors * (self._spread / place.sums[1]) ** 0.5 for place in self._all]
        return np.maximum(found, 0.0)

    def _total(self, inside: Values, travel: Values) -> float:
        """Return the noise of the plan with these layers treated."""
        noise, weight = self._ratios(inside)
        return self._travel.total(self._shares(noise, weight, travel)) if self._all else 0.0

    @property
    def _exceeds(self) -> bool:
        """True if there is surely more noise than the budget allows."""
        return self._total(self._inside, self._travels(-SURE)) > self.budget

    def _shares(self, noise: Values, weight: Values, travel: Values) -> Values:
        """Return the noise of each layer: predicted growth times its travel, or the growth that nobody expected."""
        growth = travel * self._travel.growth(noise)
        if self._loudness:
            unexpected = np.array([place.least for place in self._all]) / self._loudness
            growth = np.maximum(growth, unexpected * np.log1p(noise).sum())
        # None arrives where no gradient came by, as in front of all that is learned.
        return np.where([place.known for place in self._all], self._travel.shares(growth, noise, weight), 0.0)

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
        strange = [place for place in self._all if place.take_outside()]
        counted = {place.name: place.counted() for place in self._all}
        clipped = [place for place in self._all if counted[place.name][1] and place not in strange]
        for place in (*strange, *clipped):
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
            broken = [place for place in self._all if counted[place.name][0]]
            self._say(step, "nan", broken, "has NaN after its treatment")

    def judge(self, step: int, loss_scale: float) -> None:
        """Decide by the statistics that a step has delivered."""
        fresh = [place for place in self._all if place.statistics.step == step]
        for place in fresh:
            place.measure(loss_scale)
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
        elif not self.measures:
            self._count()
            self._decide(step, loss_scale)
        else:
            self._verify(step)
            if self._exceeds:
                self._fall_back(step, loss_scale)

    def prepare(self, step: int) -> None:
        """Make the next step a reference, or let it take the statistics that are held against one, where due."""
        was_untreated = self._untreated
        reference = self.measures and step >= self._next and step != self._pair and bool(self._inside.any())
        for place in self._all:
            if reference:
                place.statistics.operand.set_ready(False)
            elif was_untreated:
                place.statistics.be_ready()
            if reference or (self.measures and step == self._pair):
                place.statistics.collect()  # of all elements, also where a sample was asked for
        if reference:
            self._next = step + self._interval
        self._untreated = not any(place.statistics.operand.ready for place in self._all)

    # -- growth --

    def _growths(self, step: int, most: int) -> tuple[list[int], Values, Values]:
        """Return the layers with statistics of this step, the predicted and the measured growth of each.

        Args:
            most: the most steps since the reference.
        """
        which = [
            index for index, place in enumerate(self._all)
            if place.statistics.step == step and place.clean_step >= 0 and step - place.clean_step <= most
        ]  # fmt: skip
        predicted = self._travel.growth(self._ratios(self._inside)[0])[which]
        found = np.array([self._all[index].log_energy - self._all[index].clean for index in which])
        if which:
            # A loss that grows is no noise: it is in all layers, also in those that no noise reaches.
            reached = predicted <= max(UNREACHED, float(predicted.min()))
            found = found - np.median(found[reached])
        return which, predicted, found

    def _count(self) -> None:
        self._measured += 1
        for place in self._all:
            place.forget()

    def _compare(self, step: int) -> None:
        self._count()
        which, predicted, found = self._growths(step, 1)
        unexpected = found - self._travels()[which] * predicted
        for index, expected, measured in zip(which, predicted.tolist(), found.tolist(), strict=True):
            self._all[index].compare(expected, measured, self._surprise)
        if which:
            # The median: what a few layers do is no measure of chance.
            spread = min(float(np.median(unexpected**2)) / MEDIAN_SQUARE, SURPRISE**2)
            self._spread = FORGETTING * self._spread + (1 - FORGETTING) * spread
        self._reach = float(predicted.max(initial=0.0))
        self._loudness = float(np.log1p(self._ratios(self._inside)[0]).sum())

    @property
    def _surprise(self) -> float:
        return float(max(SURPRISE, 4 * self._spread**0.5))

    def _verify(self, step: int) -> None:
        """Take a reference at once where energies are far from those of the last one."""
        which, predicted, found = self._growths(step, COMPLETE + 1)
        if which and float(np.max(found - self._travels()[which] * predicted)) > self._surprise:
            self._next = min(self._next, step + 1)

    # -- decisions --

    def _decide(self, step: int, loss_scale: float) -> None:
        before = self.made
        every = np.ones(len(self._all))
        watched = self._total(every, every) > INSIDE * self.budget
        for place in self._all:
            place.statistics.watched = watched
        if self._exceeds:
            self._fall_back(step, loss_scale)
        self._let_in(step, loss_scale, watched)
        if self.made > before:
            self._interval = SOON if step < BEGINNING else LATER
        elif step == self._pair:
            self._interval = min(2 * self._interval, SETTLED if self.waiting else COMPLETE)
        self._next = step + self._interval

    def _let_in(self, step: int, loss_scale: float, watched: bool) -> None:
        """Let layers in, those with least noise first, as far as the noise of all stays inside the budget."""
        inside = self._inside
        most = max(float(np.log1p(self.budget)), 2 * self._reach) if watched else np.inf
        for index in sorted(range(len(self._all)), key=lambda index: (self._all[index].noise, index)):
            place, before = self._all[index], self._all[index].status
            returns = place.level > 0 or not place.statistics.treats
            if not place.known or not returns or self._measured < place.earliest:
                continue
            level, weighed = place.level, place.weighed
            self._fit_alone(place, index, loss_scale)
            inside[index] = 1.0
            reach = float(self._travel.growth(self._ratios(inside)[0]).max(initial=0.0))
            if self._total(inside, self._travels(CAREFUL)) <= INSIDE * self.budget and reach <= most:
                place.let(True)
                self._note(step, place, before, "fits")
            elif not place.statistics.treats:
                inside[index] = 0.0
            elif place.level != level:
                place.set_level(level, loss_scale)
            if place.statistics.treats and place.level == level:
                place.weighed = weighed

    def _fit_alone(self, place: Place, index: int, loss_scale: float) -> None:
        """Choose the most zeros with which the layer alone would stay inside the budget; not fewer than it has now."""
        alone, quiet = np.zeros(len(self._all)), np.zeros(len(self._all))
        alone[index] = 1.0
        last = place.level if place.statistics.treats else len(KEPT)
        if place.level:
            place.set_level(0, loss_scale)
        while self._total(alone, quiet) > INSIDE * self.budget and place.can_prune_less and place.level < last:
            place.set_level(place.level + 1, loss_scale)

    def _fall_back(self, step: int, loss_scale: float) -> None:
        """Take the noise out that matters most, until it is inside the budget again, and say so."""
        noise, fallen = self.noise, list[Place]()
        worst = self._worst()
        while self.settings.fall_back and self.noise > AIM * self.budget and self._inside.any():
            place = self._all[self._loudest()]
            before = place.status
            place.falls, place.earliest = place.falls + 1, self._measured + QUIET * 2 ** min(place.falls, 6)
            if place.can_prune_less and place not in fallen:
                place.set_level(place.level + 1, loss_scale)
            else:
                place.let(False)
            fallen = [*fallen, place]
            self._note(step, place, before, "noise")
        names = ", ".join(dict.fromkeys(place.name for place in fallen))
        done = f"; falling back: {names}" if names else "; nothing is changed (fall_back=False)"
        if self._measured <= QUIET:
            return  # while layers are being let in, a step back is no news
        self._say(step, "noise", [worst], f"gets noise of {noise:.2g} times the minibatch's own variance, above the "
                  f"budget of {self.budget:g}{done}")  # fmt: skip

    def _worst(self) -> Place:
        noise, weight = self._ratios(self._inside)
        return self._all[int(np.argmax(self._shares(noise, weight, self._travels())))]

    def _loudest(self) -> int:
        """Return the treated layer without which there is least noise."""
        inside = self._inside
        found = {}
        for index in np.flatnonzero(inside).tolist():
            without = inside.copy()
            without[index] = 0.0
            found[index] = (self._total(without, self._travels()), -self._all[index].noise)
        return min(found, key=found.__getitem__)

    def _note(self, step: int, place: Place, before: str, cause: str) -> None:
        if place.status != before:
            noise = min(self.noise, MAX_FLOAT)
            self.made += 1
            self.changes = [*self.changes, Change(step, place.name, before, place.status, cause, noise)][-MOST_CHANGES:]

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
            "schedule": [self._next, self._interval, self._pair, self._measured, int(self._untreated)],
            "measured": [self._reach, self._loudness, self._spread],
            "changes": [list(change) for change in self.changes],
            "layers": {place.name: place.state() for place in self._all},
        }

    def load(self, state: dict[str, Any], loss_scale: float) -> None:
        """Go on from the `state` of another; layers that it does not have wait for their statistics."""
        self.references, self.made = state["references"], state["made"]
        self._next, self._interval, self._pair, self._measured, untreated = state["schedule"]
        self._untreated = bool(untreated)
        self._reach, self._loudness, self._spread = state["measured"]
        self.changes = [Change(*change) for change in state["changes"]]
        for place in self._all:
            if place.name in state["layers"]:
                place.load(state["layers"][place.name])
            place.statistics.set_limits(loss_scale)
            if self._untreated:
                place.statistics.operand.set_ready(False)
