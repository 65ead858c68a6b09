"""The counts of guarded gradients that are new since the last look: of another size, NaN, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..engine.limits import OUTSIDE
from ..engine.slots import COUNTERS
from .place import Place

CLIPPED = 0.05
"""The share of clipped elements in a step from which on a scale is out of date."""
_NAN, _CLIPPED, _ELEMENTS = (COUNTERS.index(name) for name in ("nan", "clipped", "elements"))


class Found(NamedTuple):
    """Layers in whose gradients of one step something is wrong, in order."""

    strange: list[Place]
    """Layers whose gradient is of another size than in their statistics."""
    clipped: list[Place]
    """Layers of whose gradient a scale clips too many elements."""
    broken: list[Place]
    """Layers whose gradient has NaN after its treatment."""


@final
class News:
    """Reads the counters of all layers at once, as it is done after each step.

    Args:
        places: the layers.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._sites = [(place, site) for place in places for site in place.statistics.operand.sites.values()]
        self._scaled = np.array([bool(site.names) for _, site in self._sites], dtype=np.bool_)
        self._limits = [
            (place, place.statistics.operand.limits) for place in places if place.statistics.operand.limits is not None
        ]
        self._before: NDArray[np.int64] | None = None

    def take(self) -> Found:
        """Return what is new since the last call; the first call returns nothing."""
        strange = self._outside()
        if not self._sites:
            return Found(strange, [], [])
        now = _gathered([site.counters for _, site in self._sites]).reshape(len(self._sites), -1)
        before, self._before = now if self._before is None else self._before, now
        new = now - before
        nan = new[:, _NAN] > 0
        clipped = self._scaled & (new[:, _CLIPPED] > CLIPPED * np.maximum(new[:, _ELEMENTS], 1))
        return Found(strange, [place for place in self._named(clipped) if place not in strange], self._named(nan))

    def _named(self, sites: NDArray[np.bool_]) -> list[Place]:
        return list(dict.fromkeys(self._sites[index][0] for index in np.flatnonzero(sites).tolist()))

    def _outside(self) -> list[Place]:
        """Return the layers with gradients outside of the limits, which are counted once."""
        if not self._limits:
            return []
        found = _gathered([limits for _, limits in self._limits]).reshape(len(self._limits), -1)[:, OUTSIDE]
        strange = []
        for index in np.flatnonzero(found).tolist():
            place, limits = self._limits[index]
            limits[OUTSIDE] = 0
            place.outside += int(found[index])
            strange.append(place)
        return strange


def _gathered(tensors: list[Tensor]) -> NDArray[Any]:
    """Return short tensors one after the other; those of one device are read at once."""
    if len({one.device for one in tensors}) > 1:
        tensors = [one.cpu() for one in tensors]
    return np.asarray(torch.cat(tensors).cpu().numpy())
