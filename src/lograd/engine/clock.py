"""The times of steps and backward passes, as far as attached layers see them.

The operators of attached layers mark when a gradient arrives and when its products are done: two readings of a clock,
a fraction of a microsecond.  They are opaque to torch.compile, so that compiled code is timed alike.  A process has one
clock; where several handles train in turns, each `step` of one begins anew.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import final

import torch

NO_BACKWARD = -1
"""The number of the graph task where none runs."""
RECENT = 20
"""Steps whose median is shown."""


class _Backward:
    """The backward passes since the clock was last read; a step may have several, with forwards between them."""

    def __init__(self) -> None:
        self.task = NO_BACKWARD
        self.total = self.first = self.last = 0
        self.disturbed = False

    def arrived(self) -> None:
        """Mark that a gradient has come to an attached layer; operands of a forward do not count."""
        now = time.perf_counter_ns()
        task = torch._C._current_graph_task_id()
        if task == NO_BACKWARD:
            return
        if task != self.task:
            self.total += self.last - self.first
            self.task, self.first = task, now
        self.last = now

    def done(self) -> None:
        """Mark that the treatment of a gradient, or its products, are done."""
        if torch._C._current_graph_task_id() == self.task != NO_BACKWARD:
            self.last = time.perf_counter_ns()

    def read(self) -> float | None:
        """Return milliseconds of backward passes since the last call; None without any, or if products were timed."""
        total, known = self.total + self.last - self.first, self.task != NO_BACKWARD and not self.disturbed
        self.task, self.disturbed = NO_BACKWARD, False
        self.total = self.first = self.last = 0
        return total / 1e6 if known else None


BACKWARD = _Backward()


@final
class StepClock:
    """Recent steps of one handle."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._backwards: deque[float] = deque(maxlen=RECENT)
        self._before: int | None = None

    def step(self) -> None:
        """Mark the end of a step.  The first, whose start is unknown, and steps that timed products do not count."""
        backward, now = BACKWARD.read(), time.perf_counter_ns()
        if backward is not None and self._before is not None:
            self._backwards.append(backward)
            self._steps.append((now - self._before) / 1e6)
        self._before = now

    @property
    def step_time(self) -> float | None:
        """The median of recent steps in milliseconds, each from one `handle.step()` to the next; None without any."""
        return statistics.median(self._steps) if self._steps else None

    @property
    def backward_time(self) -> float | None:
        """The median in milliseconds from the first gradient that reaches an attached layer to the last product."""
        return statistics.median(self._backwards) if self._backwards else None
