"""The time that sparse and integer products save, in words: measured times, and the speedup that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

from ..engine.backends.choice import DENSE, INTEGER, NAMES, SPARSE
from ..engine.clock import StepClock
from ..engine.layer import LayerEngine
from ..engine.slots import PASSES


@final
class Saving(NamedTuple):
    """Times of a step in milliseconds; None for what was not measured."""

    dense: float
    """The timed products, if all of them were dense."""
    chosen: float
    """The timed products, each by the backend in force."""
    timed: int
    """Layers of which several backends were timed."""
    sparse: int
    """Timed layers in which sparse products are in force."""
    fixed: int
    """Layers whose backend was asked for, so that nothing was timed."""
    backward: float | None
    step: float | None
    integer: int = 0
    """Timed layers in which integer products are in force."""
    asked: str = "sparse"
    """The backend of the layers whose backend was asked for."""

    @property
    def saved(self) -> float:
        """Milliseconds that a step saves by the backends in force."""
        return self.dense - self.chosen

    def words(self) -> str:
        """Return a sentence on the time that is saved, or one that nothing was timed."""
        if self.fixed:
            return (
                f"Speed: not measured; {self.asked} products were asked for, so they were not compared with dense ones"
            )
        if not self.timed:
            return "Speed: not measured yet"
        found = [f"{self.sparse} of {self.timed} timed layers have sparse products"] if self.sparse else []
        if self.integer or not found:
            found.append(f"{self.integer} of {self.timed} timed layers have integer products")
        products = (
            f"Speed: {', '.join(found)}; timed one by one, the products "
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
    counts = {"timed": 0, "sparse": 0, "integer": 0, "fixed": 0}
    asked = set()
    for layer in layers.values():
        choices = list(layer.choices.values())
        passes = int(layer.gradient.seen[PASSES]) / max(steps, 1)  # a layer may run several times in a step
        times = [(choice.mode, choice.times) for choice in choices if choice.times is not None]
        dense += passes * sum(time.dense for _, time in times)
        chosen += passes * sum(time.of(mode) for mode, time in times)
        counts["timed"] += bool(times)
        for backend in (SPARSE, INTEGER):
            counts[NAMES[backend]] += any(mode == backend for mode, _ in times)
        fixed = {NAMES[choice.mode] for choice in choices if choice.fixed and choice.mode != DENSE}
        counts["fixed"] += bool(fixed)
        asked |= fixed
    if not any(layer.choices for layer in layers.values()):
        return None
    words = " and ".join(sorted(asked)) or "sparse"
    return Saving(dense, chosen, **counts, backward=clock.backward_time, step=clock.step_time, asked=words)
