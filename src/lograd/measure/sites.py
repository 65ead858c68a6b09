"""The noise of the quantizers themselves: of each layer's gradient as it is treated, before any product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..attachment import Handle
from ..engine.layer import LayerEngine
from ..engine.layers import candidates
from ..engine.site import Site
from ..laws import Empirical
from ..treatments import BACKWARD, SYMBOLS, Statistics, describe, predict
from ..treatments.verdicts import noise_of
from . import arriving as profiled
from .arriving import DX, Arrived
from .bench import Bench
from .bounds import bound_of
from .gradients import energy
from .measured import Measured, Values, mean_of
from .values import SiteVariance

DRAWS = 16
"""Random numbers for each gradient."""


def arriving(bench: Bench, batch: Any) -> dict[str, Arrived]:
    """Return the exact gradients that arrive at each treated layer."""
    modules = candidates(bench.model)
    return profiled.arriving({name: modules[name] for name in bench.layers}, lambda: bench.exact(batch))


def measure(bench: Bench, handle: Handle, arrived: Mapping[str, Arrived]) -> list[SiteVariance]:
    """Return the noise that each site adds to the gradients that arrive at it.

    Args:
        handle: the whole plan, attached.
        arrived: by layer; a layer at which no gradient arrives is left out.
    """
    modules = candidates(bench.model)
    found = []
    for name, own in arrived.items():
        engine = handle.layers[name]
        if not engine.gradient.ready or not any(bool(g.any()) for g in own.gradients):
            continue
        fold = profiled.fold_of(engine, modules[name])
        for site in engine.gradient.sites.values():
            products = [one for one in BACKWARD if engine.gradient.at[one] is site and (own.passed_on or one != DX)]
            if not products:
                continue
            treated = _Treated(engine, site, own.gradients, tuple(products), fold if DX in products else None)
            samples = np.array([treated.noise(partial(bench.draw, handle)) for _ in range(DRAWS)])
            bench.draw(handle)  # memories as they were, for the prediction
            found.append(treated.result(name, samples))
    return found


class _Treated(NamedTuple):
    """One site, and the gradients that it treats."""

    engine: LayerEngine
    site: Site
    gradients: list[Tensor]
    products: tuple[str, ...]
    fold: Tensor | None
    """Factors of the gradient's channels."""

    def noise(self, draw: Callable[[], None]) -> float:
        """Return |Q(g) - g|^2, summed over the gradients, with fresh random numbers."""
        draw()
        return profiled.noise_at(self.engine, self.site, self.gradients, self.products, self.fold)

    def result(self, layer: str, samples: Values) -> SiteVariance:
        """Return all that is known of the site."""
        mean, error = mean_of(samples)
        treatments = self.site.treatments
        return SiteVariance(
            layer,
            ", ".join(SYMBOLS[product] for product in self.products),
            describe(treatments),
            sum(map(energy, self.gradients)),
            Measured(float(mean), float(error)),
            _sum([self._predicted(g) for g in self.gradients]),
            _sum([bound_of(treatments, g) for g in self.gradients]) if self.fold is None else None,
        )

    def _predicted(self, g: Tensor) -> float | None:
        """Return the noise that the law of |g| predicts, by the cosine c of unbiased noise: |g|^2 (1 / c^2 - 1)."""
        if not all(one.unbiased for one in self.site.treatments):
            return None
        seen = g if self.fold is None else profiled.folded(g, self.fold)
        if not bool(seen.any()):
            return 0.0
        low, high = torch.aminmax(seen)
        statistics = Statistics(Empirical.fit(seen), range=(float(low), float(high)))
        found = predict(self.site.treatments, statistics, self.site.numbers_and_memory())
        return None if found is None or not found.cosine else energy(g) * noise_of(found.cosine)


def _sum(numbers: list[float | None]) -> float | None:
    """Return the sum; None where there is no number, or one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
