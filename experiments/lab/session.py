"""A model in training: everything that changes from step to step, and its state for a checkpoint."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lograd import Handle, LogradError, Plan, attach, low_precision_weights
from lograd.treatments import BACKWARD, Treatment

INITIAL_LOSS_SCALE = 2.0**16
LEARNED_RATE = 1e-5
"""The largest learning rate of what a plan learns, by Adam and with the schedule of the weights, as in [kim2024]."""


@final
class Diverged(LogradError):
    """The loss is not a number any more."""


class StepTimes(NamedTuple):
    """Seconds of the parts of one step."""

    batch: float = 0.0
    """Making the batch."""
    forward: float = 0.0
    backward: float = 0.0
    """With the treatment of the gradients."""
    update: float = 0.0
    """The optimizer, and what the handle does between steps."""

    @property
    def step(self) -> float:
        """The whole step without making its batch."""
        return self.forward + self.backward + self.update


@final
class Session:
    """One training in memory: `step()` makes one step.  As a context it takes its plan off the model at the end.

    Args:
        model: it is trained in place.
        batches: pairs of inputs and targets, asked for one by one.
        loss: a function of outputs and targets.
        optimizer: over the model's parameters.
        plan: what is done to the products; None trains dense.
        rate: the learning rate of a step, counted from 0, as a share of the optimizer's own; None keeps that.
        clip: the largest norm of the gradient of all parameters; None leaves gradients as they are.
        weights: the format in which weights are stored, without a copy in float32.
        attaching: arguments of `lograd.attach` beside model and plan, such as seed and backend.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: Optimizer,
        plan: Plan | None = None,
        *,
        rate: Callable[[int], float] | None = None,
        clip: float | None = None,
        weights: str | None = None,
        **attaching: Any,
    ) -> None:
        self.model, self.loss, self.optimizer, self.clip = model, loss, optimizer, clip
        self.batches = iter(batches)
        seed = attaching.get("seed", 0)
        self.weights = (
            None if weights is None else low_precision_weights(model, weights, optimizer=optimizer, seed=seed)
        )
        scaled = any(one.overflows for one in treatments_of(plan))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_LOSS_SCALE) if scaled else None
        self.handle: Handle | None = None
        if plan is not None:
            scale = INITIAL_LOSS_SCALE if scaled else None
            self.handle = attach(model, plan, loss_scale=scale, **attaching)
        learned = [] if self.handle is None else list(self.handle.parameters())
        self.learned = Adam(learned, LEARNED_RATE) if learned else None
        """The optimizer of what the plan learns, such as clips; None if it learns nothing."""
        schedule = (lambda step: 1.0) if rate is None else rate
        self.rates = [LambdaLR(one, schedule) for one in (self.optimizer, self.learned) if one is not None]
        self.steps, self.skipped = 0, 0
        self.times = StepTimes()
        """Times of the last step."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the plan off the model, and make weights in low precision plain parameters again."""
        if self.handle is not None:
            self.handle.remove()
        if self.weights is not None:
            self.weights.remove()

    def step(self) -> float:
        """Make one optimizer step, and return the loss of its batch."""
        start = time.perf_counter()
        inputs, targets = next(self.batches)
        taken = time.perf_counter()
        self.optimizer.zero_grad()
        if self.learned is not None:
            self.learned.zero_grad()
        loss = self.loss(self.model(inputs), targets)
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} at step {self.steps + 1}.")
        judged = time.perf_counter()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        differentiated = time.perf_counter()
        self._update()
        end = time.perf_counter()
        self.times = StepTimes(taken - start, judged - taken, differentiated - judged, end - differentiated)
        self.steps += 1
        return value

    def _update(self) -> None:
        if self.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        optimizers: list[Optimizer] = [self.optimizer]
        if self.learned is not None and any(one.grad is not None for one in self.learned.param_groups[0]["params"]):
            optimizers.append(self.learned)  # it has no gradients before its treatments begin
        scale = None
        if self.scaler is None:
            for one in optimizers:
                one.step()
        else:
            before = self.scaler.get_scale()
            for one in optimizers:
                self.scaler.step(one)
            self.scaler.update()
            scale = self.scaler.get_scale()
            self.skipped += scale < before  # only a step with gradients out of range lowers it
        if scale is None or scale >= before:
            for rate in self.rates[: len(optimizers)]:
                rate.step()
        if self.handle is not None:
            self.handle.step(loss_scale=scale)

    # -- the state --

    @property
    def _parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "handle": self.handle, "scaler": self.scaler,
                 "weights": self.weights, "learned": self.learned}  # fmt: skip
        rates = {f"rate {number}": one for number, one in enumerate(self.rates)}
        return {name: part for name, part in (parts | rates).items() if part is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, but for the batches."""
        state = {name: part.state_dict() for name, part in self._parts.items()}
        if self.weights is not None:
            state["model"] = self.weights.plain_state_dict()
        return state | {"steps": self.steps, "skipped": self.skipped, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self.steps, self.skipped = state["steps"], state["skipped"]
        torch.set_rng_state(state["random"])


class Turn(NamedTuple):
    """One step of one of several sessions."""

    step: int
    name: str
    session: Session
    loss: float


def in_turns(sessions: Mapping[str, Session], steps: int) -> Iterator[Turn]:
    """Let all sessions take so many steps, one each in turn, so that whatever slows the machine hits all of them."""
    for step in range(1, steps + 1):
        for name, session in sessions.items():
            yield Turn(step, name, session, session.step())


def treatments_of(plan: Plan | None) -> list[Treatment]:
    """Return all treatments of gradients in a plan."""
    layers = [] if plan is None else [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    return [one for layer in layers for name in BACKWARD for one in layer.site(name, "gradient")]


def has_levels(plan: Plan | None) -> bool:
    """Return True if the plan has layers whose operands are levels, so that their products may be integer ones."""
    layers = [] if plan is None else [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    return any(layer.has_levels("output") for layer in layers)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all targets, in nats."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@contextmanager
def preserved(threads: int | None = None) -> Iterator[None]:
    """Keep the random states of torch, NumPy and Python, and torch's number of threads, as they were before."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.get_num_threads()  # noqa: NPY002
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])
        torch.set_num_threads(before[3])
