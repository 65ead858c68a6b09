"""The warning of noise of pruning that explodes over depth, for handles without a guard.

Unbiased pruning multiplies the energy E[g^2] of a gradient by 1 / cosine^2, and the product for dX hands the noise on
to every layer in front.  Branches and normalisation decide what becomes of it there, so it is measured: the energies of
the first histograms, which were taken before any gradient was pruned, against later ones.
"""

from __future__ import annotations

from typing import NamedTuple

from .refresh import EARLY_STEPS, OperandStatistics

LIMIT = 1e5
"""The growth of energy above which to warn.

At 85 % it settles near 1e3 in a ResNet-20 that learns and at 2e5 in one whose weights are held fixed; in a MobileNet-v2
it passes 1e10 within nine steps.  A plan from a profile with measured noise is warned of sooner (`plan.forecast`).
"""


class Growth(NamedTuple):
    """How the energy has grown in the layer where it has most, beyond what it has in every layer."""

    layer: str
    factor: float
    step: int
    pruned: int
    """Layers whose noise goes on to others."""

    def __str__(self) -> str:
        return (
            f"noise of pruning explodes over the {self.pruned} layers that are pruned in the product for dX: by step "
            f"{self.step} the energy of the gradient of {self.layer!r} had grown {self.factor:.0e} times; prune "
            "the product for dW only (products='weight_gradient' of a profile's plan), where nothing adds up, or ask "
            "for less sparsity in fewer layers; a later start, attach(start=100), helps where profile(noise=2), taken "
            "at that step, predicts less growth"
        )


def exploded(layers: dict[str, OperandStatistics], step: int, first: int) -> Growth | None:
    """Return the growth to warn of; None if there is none.

    Only steps soon after the first histograms are judged: later, energies also change because the model learns.

    Args:
        layers: the statistics of gradients, by layer.
        step: the step that is judged.
        first: the first step that took statistics.
    """
    pruned = {name: layer for name, layer in layers.items() if _hands_noise_on(layer)}
    known = {name: layer.energy / layer.first_energy for name, layer in pruned.items() if layer.first_energy}
    if step > first + EARLY_STEPS or len(known) < 2:
        return None
    name = max(known, key=known.__getitem__)
    # A loss that grows is no noise: it is in all layers, also in the last one, which no noise reaches.
    factor = known[name] / max(min(known.values()), 1.0)
    return Growth(name, factor, step, len(pruned)) if factor > LIMIT else None


def _hands_noise_on(layer: OperandStatistics) -> bool:
    """Return True if the gradient is pruned without bias in the product for dX, which goes on to other layers."""
    site = layer.operand.at["input_gradient"]
    return site is not None and any(one.makes_zeros and one.unbiased for one in site.treatments)
