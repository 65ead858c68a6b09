"""Training runs that are held against each other: the same weights and batches for the same seed."""

from __future__ import annotations

import warnings
from functools import partial
from typing import NamedTuple

import torch

import lograd
from lograd import Guard, Handle, Plan
from lograd.attachment.watch import Watch
from lograd.errors import LogradWarning

from ..predictions import loss_fn
from .cases import NETWORKS, Case, Settings

SCALE = 1e6
"""The factor by which a layer is scaled."""


class Run(NamedTuple):
    """Losses and warnings of one training run, its guard, and the layers that waited."""

    losses: list[float]
    guard: Watch | None
    said: list[str]
    waiting: list[int]
    """The layers that wait, after each step."""


class Training:
    """A network in training, with a plan or without one.

    Args:
        guard: None for a dense run.
    """

    def __init__(self, case: Case, settings: Settings, seed: int, guard: bool | Guard | None = None) -> None:
        network = NETWORKS[case.network]
        self.model, self.optimizer, self.generator = network.made(seed, network.lr * case.faster, settings.classes)
        self.draw = partial(network.batch, settings)
        self.scaled = self.model.get_submodule(network.scaled)
        self.scaled_at = round(case.scaled_at * settings.steps) or -1
        self.handle: Handle | None = None
        if guard is not None:
            self.handle = lograd.attach(
                self.model, Plan.uniform(case.recipe), seed, backend="dense", guard=guard, **case.options
            )
        self.steps = 0

    def step(self) -> float:
        """Make one step and return its loss."""
        if self.steps == self.scaled_at:
            with torch.no_grad():
                self.scaled.get_parameter("weight").mul_(SCALE)
        inputs, targets = self.draw(self.generator)
        self.optimizer.zero_grad()
        loss = loss_fn(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.handle is not None:
            self.handle.step()
        self.steps += 1
        return loss.item()

    def run(self, steps: int) -> Run:
        """Make steps and return what they have shown."""
        losses, waiting = list[float](), list[int]()
        guard = None if self.handle is None else self.handle.guard
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(steps):
                losses.append(self.step())
                waiting.append(0 if guard is None else len(guard.waiting))
        return Run(
            losses, guard, [str(one.message) for one in found if issubclass(one.category, LogradWarning)], waiting
        )
