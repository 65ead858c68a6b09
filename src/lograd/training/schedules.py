"""The learning rate as a function of the step alone, so that a resumed run needs no scheduler's state."""

from __future__ import annotations

import math

from .config import Schedule


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
