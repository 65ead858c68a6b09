"""Seconds of each layer's forward and backward inside a step of the whole model, for plain and attached layers alike.

Hooks on the modules time the forward, hooks on the autograd nodes that a forward has made time the backward.  Without a
stopwatch there are no hooks, so it costs nothing while it does not run.  Eager mode only: compiled code calls no hooks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn


def seconds() -> float:
    """Return the time of a clock for computations, in seconds from an arbitrary start.

    Where one thread computes, it is that thread's own time, so that other processes on the machine do not count.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


class LayerSeconds(NamedTuple):
    """The time of one layer in a step, summed over the times that it runs."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward + self.backward


@final
class Stopwatch:
    """Times the layers of a model while it `runs`.

    Args:
        modules: the layers, by name.

    >>> layer = nn.Linear(8, 8)
    >>> watch = Stopwatch({"layer": layer})
    >>> with watch.running():
    ...     layer(torch.randn(4, 8)).sum().backward()
    >>> watch.read()["layer"].total > 0
    True
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = dict(modules)
        self._forward = dict.fromkeys(modules, 0.0)
        self._backward = dict.fromkeys(modules, 0.0)
        self._begun: list[tuple[int, float]] = []
        """For each forward that runs now: the number of its first autograd node, and the time."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time all that runs inside; a backward counts if its forward was timed."""
        handles: list[Any] = []
        try:
            for name, module in self._modules.items():
                handles.append(module.register_forward_pre_hook(self._begins))
                # First of all hooks, so that those of others are not timed.
                handles.append(module.register_forward_hook(partial(self._ended, name), prepend=True))
            yield
        finally:
            self._begun.clear()
            for handle in handles:
                handle.remove()

    def read(self) -> dict[str, LayerSeconds]:
        """Return the times since the last call, by layer, and begin anew."""
        found = {name: LayerSeconds(self._forward[name], self._backward[name]) for name in self._modules}
        self._forward, self._backward = dict.fromkeys(found, 0.0), dict.fromkeys(found, 0.0)
        return found

    def _begins(self, module: nn.Module, args: object) -> None:
        self._begun.append((torch._C._autograd._get_sequence_nr(), seconds()))

    def _ended(self, name: str, module: nn.Module, args: object, output: object) -> None:
        now = seconds()
        first, start = self._begun.pop()
        self._forward[name] += now - start
        if isinstance(output, Tensor) and output.grad_fn is not None:
            for node in _made_since(first, output.grad_fn):
                started: list[float] = []
                node.register_prehook(partial(_start, started))
                node.register_hook(partial(self._stop, name, started))

    def _stop(self, name: str, started: list[float], *gradients: object) -> None:
        if started:  # a backward that ended in an exception has left nothing behind
            self._backward[name] += seconds() - started.pop()


def _start(started: list[float], gradients: object) -> None:
    started[:] = [seconds()]


def _made_since(first: int, node: Any) -> list[Any]:
    """Return the autograd nodes behind an output that were made since a number was the next one.

    Those of parameters have the largest number of all, and are not among them.
    """
    now = torch._C._autograd._get_sequence_nr()
    found: dict[Any, None] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found and first <= one._sequence_nr() < now:
            found[one] = None
            waiting += [before for before, _ in one.next_functions]
    return list(found)
