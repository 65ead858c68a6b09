"""The counts of guarded gradients that are new since the last look: of another size, NaN, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch

from ..engine.limits import OUTSIDE
from ..engine.slots import COUNTERS
from .place import Place

CLIPPED = 0.05
"""The share of clipped elements in a step from which on a scale is out of date."""
_READ = [COUNTERS.index(name) for name in ("nan", "clipped", "elements")]


class Found(NamedTuple):
    """Layers in whose gradients of one step something is wrong, in order."""

    strange: list[Place]
    """Of another size than in their statistics."""
    clipped: list[Place]
    """Clipped by a scale, too many of their elements."""
    broken: list[Place]
    """With NaN after their treatment."""


@final
class News:
    """Reads the counters of all layers at once, as it is done after each step.

    Args:
        places: the layers.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._sites = [
            (place, site, bool(site.names)) for place in places for site in place.statistics.operand.sites.values()
        ]
        self._limits = [
            (place, place.statistics.operand.limits) for place in places if place.statistics.operand.limits is not None
        ]
        self._before: list[list[int]] | None = None

    def take(self) -> Found:
        """Return what is new since the last call; nothing is at the first."""
        strange = self._outside()
        if not self._sites:
            return Found(strange, [], [])
        now = torch.stack([site.counters.cpu() for _, site, _ in self._sites])[:, _READ].tolist()
        before, self._before = self._before, now
        clipped, broken = list[Place](), list[Place]()
        if before is None or before == now:
            return Found(strange, clipped, broken)
        for (place, _, scaled), old, new in zip(self._sites, before, now, strict=True):
            if new[0] > old[0] and place not in broken:
                broken.append(place)
            too_many = scaled and new[1] - old[1] > CLIPPED * max(new[2] - old[2], 1)
            if too_many and place not in clipped and place not in strange:
                clipped.append(place)
        return Found(strange, clipped, broken)

    def _outside(self) -> list[Place]:
        """Return the layers with gradients outside of the limits, which are counted once."""
        if not self._limits:
            return []
        found = torch.stack([limits for _, limits in self._limits])[:, OUTSIDE].tolist()
        strange = []
        for (place, limits), count in zip(self._limits, found, strict=True):
            if count:
                limits[OUTSIDE] = 0
                place.outside += int(count)
                strange.append(place)
        return strange
