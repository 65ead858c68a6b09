"""The learning rate as a function of the step alone, so that a resumed run needs no scheduler's state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from torch import Tensor
from torch.optim import Optimizer

from .config import Config, Schedule


def learning_rate(peak: float, schedule: Schedule, warmup: int, step: int, total: int) -> float:
    """The learning rate of step number `step`, counted from 0, of `total`.

    With w warm-up steps it is peak (step + 1) / w for step < w.  After them, with p = (step - w) / (total - w) in
    [0, 1): peak (1 + cos(pi p)) / 2 for "cosine"; a tenth from half of the run on and a hundredth from three quarters
    on for "step", as in [he2016].
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    if schedule == "step":
        return peak * (1.0 if 2 * step < total else 0.1 if 4 * step < 3 * total else 0.01)
    return peak * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1))) / 2


Rate = Callable[[float, int], float]
"""The learning rate, from the largest one and the number of the step, counted from 0."""


@final
class Rates:
    """The learning rates of an optimizer's groups.

    With a rate all groups follow it, each up to its own peak: the given one, or the rate that the group had.

    Args:
        optimizer: any of torch.optim.
        rate: None leaves the optimizer its own rates.
        peak: the largest learning rate of all groups; None takes that of each group.
    """

    def __init__(self, optimizer: Optimizer, rate: Rate | None = None, peak: float | None = None) -> None:
        self.optimizer, self.rate = optimizer, rate
        self.peaks = [float(group["lr"]) if peak is None else peak for group in optimizer.param_groups]

    @classmethod
    def of(cls, config: Config, optimizer: Optimizer, total: int) -> Rates:
        """The rates that the settings of a run ask for.

        An optimizer that a user brought keeps its rates where the settings name neither learning rate, nor schedule,
        nor warm-up.
        """
        named = config.lr is not None or config.warmup > 0
        schedule: Schedule | None = config.schedule or ("constant" if named else None)
        if schedule is None:
            return cls(optimizer, None, config.lr)
        kind = schedule
        return cls(optimizer, lambda peak, step: learning_rate(peak, kind, config.warmup, step, total), config.lr)

    def set(self, step: int) -> float:
        """Set the rates of a step; the first one is returned."""
        groups = self.optimizer.param_groups
        if self.rate is not None:
            for group, peak in zip(groups, self.peaks, strict=True):
                rate = self.rate(peak, step)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
        return float(groups[0]["lr"])
