"""The noise of a plan with some of its layers treated, by what a guard knows of each layer, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from ..laws.law import Values
from .place import FARTHEST, Figures, Place
from .travel import Travel

UNREACHED = 0.05
"""Layers whose predicted growth is below this show by how much the loss itself has changed the energies."""


@final
class Estimate:
    """The noise of all layers, by all that is known of them at one time.

    Args:
        travel: how noise travels.
        places: the layers, in the order in which they run.
        spread: the variance of measured growth around the expected one.
        loudness: the noise of all layers, as a logarithm, when growth was measured last; 0 if it never was.
    """

    def __init__(self, travel: Travel, places: Sequence[Place], spread: float, loudness: float) -> None:
        self._travel, self._places, self._spread, self._loudness = travel, places, spread, loudness
        self._rows: Values = np.array([place.figures for place in places], dtype=np.float64)
        self._rows.shape = (len(places), len(Figures._fields))  # also where there are no layers
        self.inside: Values = np.array([place.statistics.treats for place in places], dtype=np.float64)
        """1 for the layers that are treated, 0 for others."""

    def update(self, index: int) -> None:
        """Look again at a layer that was changed."""
        self._rows[index] = self._places[index].figures
        self.inside[index] = float(self._places[index].statistics.treats)

    def _of_all(self, name: str) -> Values:
        """Return one of the `Figures` of all layers."""
        return self._rows[:, Figures._fields.index(name)]

    def ratios(self, inside: Values, pessimistic: bool = False) -> tuple[Values, Values]:
        """Return the noise-to-signal ratios in dX and dW: now, or the worst that was seen of late."""
        when = "worst_" if pessimistic else ""
        return self._of_all(f"{when}noise") * inside, self._of_all(f"{when}weight_noise") * inside

    def travels(self, errors: float = 0.0) -> Values:
        """Return the travel of noise to each layer, so many standard errors above what was measured."""
        products, squares = self._of_all("products"), self._of_all("squares")
        found: Values = np.minimum(products / squares, FARTHEST) + errors * np.sqrt(self._spread / squares)
        return np.maximum(found, 0.0)

    def growth(self, inside: Values) -> Values:
        """Return the growth, as a logarithm, that is predicted at each layer if noise travels with a factor of 1."""
        return self._travel.growth(self.ratios(inside)[0])

    def growths(self, step: int, most: int) -> tuple[list[int], Values, Values]:
        """Return the layers with statistics of this step, the predicted and the measured growth of each.

        Args:
            most: the most steps since the reference.
        """
        which = [
            index for index, place in enumerate(self._places)
            if place.statistics.step == step and place.clean_step >= 0 and step - place.clean_step <= most
        ]  # fmt: skip
        predicted = self.growth(self.inside)[which]
        found = np.array([self._places[index].log_energy - self._places[index].clean for index in which])
        if which:
            # A loss that grows is no noise: it is in all layers, also in those that no noise reaches.
            reached = predicted <= max(UNREACHED, float(predicted.min()))
            found = found - np.median(found[reached])
        return which, predicted, found

    def shares(self, inside: Values, travel: Values, pessimistic: bool = False) -> Values:
        """Return the noise of each layer: predicted growth times its travel, or the growth that nobody expected."""
        noise, weight = self.ratios(inside, pessimistic)
        growth = travel * self._travel.growth(noise)
        if self._loudness:
            growth = np.maximum(growth, self._of_all("least") / self._loudness * np.log1p(noise).sum())
        # None arrives where no gradient came by, as in front of all that is learned.
        return np.where(self._of_all("known") > 0, self._travel.shares(growth, noise, weight), 0.0)

    def total(self, inside: Values, travel: Values, pessimistic: bool = False) -> float:
        """Return the guard noise of the plan with these layers treated."""
        return self._travel.total(self.shares(inside, travel, pessimistic)) if self._places else 0.0

    @property
    def noise(self) -> float:
        """The guard noise of the plan as it is in force."""
        return self.total(self.inside, self.travels())

    @property
    def loudest(self) -> int:
        """The treated layer without which there is least noise."""
        travel, found = self.travels(), {}
        for index in np.flatnonzero(self.inside).tolist():
            without = self.inside.copy()
            without[index] = 0.0
            found[index] = (self.total(without, travel), -self._places[index].noise)
        return min(found, key=found.__getitem__)
