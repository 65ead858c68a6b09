"""The work of a session: a model with its batches and its loss, and how it is judged.

A built-in model is one kind; `own` has the user's models, and `memory` those that are at hand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from lograd import Handle, InvalidValue, Plan, attach, low_precision_weights
from lograd.engine.layers import reason_not_channels_last
from lograd.weights import WeightsHandle

from .config import Config
from .data import Batch, Dataset
from .image_folders import ImageFolder
from .images import Images
from .measuring import Metric, correct_in, evaluate, loss_of, metric_of
from .ranks import ALONE, Ranks
from .schedules import Rates
from .sentences import Sentences
from .text import Text


class Forward(NamedTuple):
    """The loss of a batch; right answers out of so many, where they are counted, else 0 of 1."""

    loss: Tensor
    correct: int
    targets: int


class Work(ABC):
    """A model, a source of batches, their loss, and how the model is judged: what a session trains.

    `Configured` work follows from a `Config` and is trained in a folder; `InMemory` is at hand.
    """

    metric: Metric
    total: int
    """Steps of the whole run."""
    steps_per_epoch: int | None
    """None where batches have no length."""
    clip: float | None = None
    """The largest norm of the gradient of all parameters, to which longer ones are shortened; None leaves them."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model with its initial weights, in training mode; the random state goes on from there."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of the model."""

    @abstractmethod
    def rates(self, optimizer: Optimizer) -> Rates:
        """The learning rates of the optimizer, step by step."""

    def store_weights(self, model: nn.Module, optimizer: Optimizer) -> WeightsHandle | None:
        """Store the weights of the model in low precision, where the work asks for it; None where it does not."""
        return None

    @abstractmethod
    def attach(self, model: nn.Module, plan: Plan, loss_scale: float | None) -> Handle:
        """Attach a plan to the model."""

    @abstractmethod
    def take(self, step: int) -> Any:
        """The next batch; `step` counts from 0."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Any) -> Forward:
        """The loss of a batch."""

    @abstractmethod
    def ends_epoch(self, step: int) -> bool:
        """Return True if the step that was just made is the last of its epoch."""

    def epochs_at(self, step: int) -> float:
        """Epochs that so many steps make."""
        return round(step / (self.steps_per_epoch or math.inf), 4)

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The numbers that the model is judged by; all modes of the model stay as they are."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings that a checkpoint must agree with."""

    def words(self) -> AbstractContextManager[None]:
        """A context that tells errors of the user's code in one sentence."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any] | None:
        """All that the next batch depends on, beside the step and torch's random state."""
        return None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on with the batches from the state of a checkpoint."""
        if state is not None:
            raise InvalidValue("the checkpoint was written by a run of another model.")


class Configured(Work):
    """Work that follows from a config, so that it can be made again in another process and resumed."""

    config: Config
    """Complete: settings that follow from the model and its batches are filled in."""

    def rates(self, optimizer: Optimizer) -> Rates:
        return Rates.of(self.config, optimizer, self.total)

    def store_weights(self, model: nn.Module, optimizer: Optimizer) -> WeightsHandle | None:
        config = self.config
        if config.weights is None:
            return None
        return low_precision_weights(
            model, config.weights, optimizer=optimizer, state_bits=config.state_bits, seed=config.seed
        )

    def attach(self, model: nn.Module, plan: Plan, loss_scale: float | None) -> Handle:
        config = self.config
        return attach(
            model, plan, config.seed, backend=config.backend, loss_scale=loss_scale, start=config.start,
            guard=config.guard or config.fast,
        )  # fmt: skip

    @property
    def settings(self) -> dict[str, Any]:
        """All settings but for the place of the data, which may move."""
        return {name: value for name, value in self.config.to_json().items() if name != "data"}

    @abstractmethod
    def peek(self) -> Any:
        """Return the first batch, before any is taken."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Notes of the run on its data, with a `fingerprint`."""

    @abstractmethod
    def check_unchanged(self, record: dict[str, Any], folder: object) -> None:
        """Hold the data against what the run in the folder noted when it was started."""


@final
class BuiltIn(Configured):
    """A built-in model: batch and loss follow from the step alone."""

    def __init__(self, config: Config, data: Dataset, ranks: Ranks = ALONE) -> None:
        self.config, self.data, self.ranks = config, data, ranks
        self.metric = metric_of(config.task.kind)
        self.steps_per_epoch: int = data.steps_per_epoch
        self.total = config.total_steps(self.steps_per_epoch)

    def build(self) -> nn.Module:
        return build_model(self.config, self.data).train()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return usual_optimizer(self.config, model)

    def take(self, step: int) -> Batch:
        inputs, targets = self.data.batch(*divmod(step, self.steps_per_epoch))
        if self.config.pipeline is not None:  # all ranks work on the same batch
            return inputs, targets
        share = len(targets) // self.ranks.size
        mine = slice(share * self.ranks.rank, share * (self.ranks.rank + 1))
        return inputs[mine], targets[mine]

    def peek(self) -> Batch:
        return self.take(0)

    def forward(self, model: nn.Module, batch: Batch) -> Forward:
        inputs, targets = batch
        logits = model(inputs)
        return Forward(loss_of(logits, targets), correct_in(logits, targets), targets.numel())

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self.steps_per_epoch == 0

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return evaluate(model, self.data, self.metric)

    def record(self) -> dict[str, Any]:
        sizes = {"train": self.data.train_size, "test": self.data.test_size, **self.data.sizes}
        return {"fingerprint": self.data.fingerprint} | sizes

    def check_unchanged(self, record: dict[str, Any], folder: object) -> None:
        if self.data.fingerprint != record["fingerprint"]:
            raise InvalidValue(
                f"{self.config.data} has other content ({self.data.fingerprint}) than the data that the run {folder} "
                f"was started with ({record['fingerprint']})."
            )


def load_data(config: Config) -> Dataset:
    """The data of a built-in model's run; what is wrong with a file is said in one sentence."""
    path, batch, seed = Path(config.settled("data")), config.settled("batch"), config.seed
    data: Dataset
    if config.task.kind == "images" and (path / "train").is_dir():
        data = ImageFolder(path, batch, seed, config.settled("augment"), config.pixels or config.task.pixels)
    elif config.task.kind == "images":
        data = Images(path, batch, seed, config.settled("augment"), config.task.smallest, config.pixels)
    elif config.task.kind == "text":
        data = Text(path, batch, seed)
    else:
        data = Sentences(path, batch, seed)
    data.check_batch()
    return data


def build_model(config: Config, data: Dataset) -> nn.Module:
    """The model with its initial weights, which follow from the seed; torch's random state goes on from there."""
    torch.manual_seed(config.seed)
    model = config.task.build(**data.sizes, width=config.width)
    if config.channels_last:
        if (reason := reason_not_channels_last(model)) is not None:
            raise InvalidValue(f"channels_last cannot be: {reason}.")
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def usual_optimizer(config: Config, model: nn.Module) -> Optimizer:
    """The optimizer that the settings name."""
    lr, decay = config.settled("lr"), config.settled("weight_decay")
    if config.optimizer == "sgd":
        return SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    return AdamW(model.parameters(), lr=lr, weight_decay=decay)
