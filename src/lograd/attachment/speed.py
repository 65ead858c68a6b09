"""The time that sparse products save, in words: the measured times, and the speedup that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

from ..engine.backends.choice import SPARSE
from ..engine.clock import StepClock
from ..engine.layer import LayerEngine
from ..engine.slots import PASSES


@final
class Saving(NamedTuple):
    """Times of a step in milliseconds; None for what was not measured."""

    dense: float
    """The products of the timed layers, with dense products of the pruned gradients."""
    chosen: float
    """The products of the timed layers, each by the backend in force."""
    timed: int
    """Layers of which both backends were timed."""
    sparse: int
    """Layers in which sparse products are in force."""
    fixed: int
    """Layers whose backend was asked for, so that nothing was timed."""
    backward: float | None
    step: float | None

    @property
    def saved(self) -> float:
        """Milliseconds that a step saves by the backends in force."""
        return self.dense - self.chosen

    def words(self) -> str:
        """Return a sentence on the time that is saved, or one that nothing was timed."""
        if self.fixed:
            return "Speed: not measured; sparse products were asked for, so they were not compared with dense ones"
        if not self.timed:
            return "Speed: not measured yet"
        products = (
            f"Speed: {self.sparse} of {self.timed} timed layers have sparse products; timed one by one, the products "
            f"of these {self.timed} take {self.chosen:.3g} ms a step, and {self.dense:.3g} ms if all were dense"
        )
        whole = [
            f"{name} {(time + self.saved) / time:.2f} times faster (measured {name} {time:.3g} ms; "
            f"with dense products it would take {time + self.saved:.3g} ms)"
            for name, time in (("backward", self.backward), ("step", self.step))
            if time
        ]
        if not whole:
            return f"{products}; backward and step not measured yet"
        return f"{products}; it follows: {', '.join(whole)}"


def saving(layers: Mapping[str, LayerEngine], steps: int, clock: StepClock) -> Saving | None:
    """Return the known times of attached layers; None where no layer has a choice of backends."""
    dense = chosen = 0.0
    counts = {"timed": 0, "sparse": 0, "fixed": 0}
    for layer in layers.values():
        choices = list(layer.choices.values())
        passes = int(layer.gradient.seen[PASSES]) / max(steps, 1)  # a layer may run several times in a step
        times = [(choice.mode, choice.times) for choice in choices if choice.times is not None]
        dense += passes * sum(time.dense for _, time in times)
        chosen += passes * sum(time.sparse if mode == SPARSE else time.dense for mode, time in times)
        counts["timed"] += bool(times)
        counts["sparse"] += any(mode == SPARSE for mode, _ in times)
        counts["fixed"] += any(choice.fixed for choice in choices)
    if not any(layer.choices for layer in layers.values()):
        return None
    return Saving(dense, chosen, **counts, backward=clock.backward_time, step=clock.step_time)
