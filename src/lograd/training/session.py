"""A model in training: everything that changes from step to step, and its state for a checkpoint."""

from __future__ import annotations

import math
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from .. import Handle, InvalidValue, LogradError, Plan, attach
from ..checks import check_whole
from ..files import CannotRead
from ..seals import checksum_of_json
from ..treatments import Hadamard, Quantize, Treatment
from . import checkpoint
from .config import Config
from .data import Dataset
from .images import Images
from .measuring import Interval, loss_of, metric_of, treated
from .schedules import learning_rate
from .sentences import Sentences
from .text import Text

INITIAL_LOSS_SCALE = 2.0**16


@final
class Diverged(LogradError):
    """The loss is not a number any more."""


def load_data(config: Config) -> Dataset:
    """The data of a run; what is wrong with a file is said in one sentence."""
    path, batch, seed = Path(config.data), config.settled("batch"), config.seed
    data: Dataset
    if config.task.kind == "images":
        data = Images(path, batch, seed, config.settled("augment"), config.task.smallest)
    elif config.task.kind == "text":
        data = Text(path, batch, seed)
    else:
        data = Sentences(path, batch, seed)
    data.check_batch()
    return data


def build_model(config: Config, data: Dataset) -> nn.Module:
    """The model with its initial weights, which follow from the seed; torch's random state goes on from there."""
    torch.manual_seed(config.seed)
    return config.task.build(**data.sizes, width=config.width)


def needs_loss_scaling(plan: Plan | None) -> bool:
    """Whether a format of the plan overflows to infinity, which a dynamic loss scale has to react to."""
    if plan is None:
        return False
    layers = [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    return any(_overflows(one) for layer in layers for one in (*layer.input, *layer.weight))


def _overflows(treatment: Treatment) -> bool:
    if isinstance(treatment, Hadamard):
        return _overflows(treatment.inner)
    return isinstance(treatment, Quantize) and treatment.overflow == "infinity"


@final
class Session:
    """One run in memory.  `step()` makes one; `state_dict()` is all that the next one depends on."""

    def __init__(self, config: Config, data: Dataset, plan: Plan | None) -> None:
        self.config, self.data = config, data
        self.metric = metric_of(config.task.kind)
        self.total = config.total_steps(data.steps_per_epoch)
        self.model = build_model(config, data).train()
        self.optimizer = _optimizer(config, self.model)
        scale = INITIAL_LOSS_SCALE if needs_loss_scaling(plan) else None
        self.scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        self.handle: Handle | None = None
        if plan is not None:
            self.handle = attach(
                self.model, plan, config.seed, products=config.products, loss_scale=scale, start=config.start
            )
        self.interval = Interval()
        self.steps, self.seconds, self.lr = 0, 0.0, 0.0

    @property
    def epoch(self) -> float:
        return round(self.steps / self.data.steps_per_epoch, 4)

    def step(self) -> float:
        """One optimizer step; the loss of its batch."""
        start = time.perf_counter()
        epoch, index = divmod(self.steps, self.data.steps_per_epoch)
        inputs, targets = self.data.batch(epoch, index)
        config = self.config
        self.lr = learning_rate(config.settled("lr"), config.schedule, config.warmup, self.steps, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.optimizer.zero_grad()
        logits = self.model(inputs)
        loss = loss_of(logits, targets)
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} at step {self.steps + 1} of {self.total}")
        self._update(loss)
        if index + 1 == self.data.steps_per_epoch and self.handle is not None:
            self.handle.epoch()
        self.steps += 1
        self.interval.add(value, logits, targets)
        self.seconds += time.perf_counter() - start
        return value

    def _update(self, loss: torch.Tensor) -> None:
        if self.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.handle is not None:
            self.handle.step(loss_scale=None if self.scaler is None else self.scaler.get_scale())

    def line(self) -> dict[str, Any]:
        """The metrics of the interval that ends here; the next one begins."""
        now = treated(self.handle)
        line = self._line("train", self.interval.judged(self.metric), now.since(self.interval))
        self.interval.restart(now)
        return line

    def test_line(self, judged: dict[str, float]) -> dict[str, Any]:
        """An evaluation, with zeros and bits since the start."""
        return self._line("test", judged, treated(self.handle).since(Interval()))

    def _line(self, kind: str, judged: dict[str, float], zeros: dict[str, float | None]) -> dict[str, Any]:
        place = {"kind": kind, "step": self.steps, "epoch": self.epoch}
        return place | judged | {"lr": self.lr, "seconds": round(self.seconds, 4)} | zeros

    # -- the checkpoint --

    def save(self, path: Path, journal_bytes: int) -> None:
        """Replace the checkpoint; until the new one is whole and on the disk, the old one is the checkpoint."""
        checkpoint.write(path, self.state_dict() | {"journal_bytes": journal_bytes})

    def load(self, path: Path) -> int:
        """Go on from a checkpoint; the bytes of metrics that belong to it."""
        state = checkpoint.read(path)
        try:
            length = check_whole("journal_bytes", state.get("journal_bytes") if isinstance(state, dict) else None)
            self.load_state_dict(state)
        except InvalidValue as error:
            raise CannotRead(f"Cannot go on from the checkpoint {path}: {error}") from None
        return length

    @property
    def _settings(self) -> str:
        """A checksum of the settings but for the place of the data, which may move."""
        return checksum_of_json({name: value for name, value in self.config.to_json().items() if name != "data"})

    @property
    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("model", "optimizer", "handle", "scaler")}

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": checkpoint.VERSION,
            "settings": self._settings,
            "steps": self.steps,
            "seconds": self.seconds,
            "lr": self.lr,
            "interval": self.interval.to_json(),
            "random": torch.get_rng_state(),
        } | {name: None if part is None else part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All of it, or nothing: what does not fit is refused before anything is changed."""
        checkpoint.check(state, self.total, self._parts, self._settings)
        for name, part in self._parts.items():
            if part is not None:
                part.load_state_dict(state[name])
        self.interval = Interval(**{field.name: state["interval"][field.name] for field in fields(Interval)})
        self.steps, self.seconds, self.lr = state["steps"], state["seconds"], state["lr"]
        torch.set_rng_state(state["random"])


def _optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    lr, decay = config.settled("lr"), config.settled("weight_decay")
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
