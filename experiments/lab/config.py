"""The models by name with their usual settings, and the settings of one run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from os.path import basename
from typing import Any, Literal, NamedTuple, final

from torch import nn

from lograd import InvalidValue, Plan
from lograd.errors import nearest_name
from lograd.treatments import Backend

from ..models import CharTransformer, CifarResNet, ResNet18, SentenceClassifier, Vgg
from ..models.full_size import cifar_model

Kind = Literal["images", "text", "sentences"]


class Metric(NamedTuple):
    """The number that a model is judged by."""

    name: str
    words: str
    higher_is_better: bool
    percent: bool = False
    """A share, shown in percent."""


ACCURACY = Metric("accuracy", "accuracy", True, percent=True)
BITS_PER_CHARACTER = Metric("bits_per_character", "bits per character", False)


def metric_of(kind: Kind) -> Metric:
    """Return the metric of models that are trained on this kind of data."""
    return BITS_PER_CHARACTER if kind == "text" else ACCURACY


@final
@dataclass(frozen=True)
class Task:
    """A model and the settings that it is trained with unless others are given.

    Args:
        kind: of the data.
        build: makes the model, from the sizes that the data has (classes, tokens) and the width.
        width: channels of the first convolution, or the width of a transformer.
    """

    kind: Kind
    build: Callable[..., nn.Module]
    width: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    batch: int = 128
    epochs: int = 30


TASKS = {
    "resnet8": Task("images", partial(CifarResNet, 8), 16),
    "resnet20": Task("images", partial(CifarResNet, 20), 16),
    "resnet18": Task("images", ResNet18, 64),
    "resnet101": Task("images", partial(cifar_model, "resnet101"), 64, epochs=200),
    "vgg": Task("images", Vgg, 64, lr=0.05),
    "charlm": Task("text", CharTransformer, 128, "adamw", 1e-3, 32, 5),
    "bert-mini": Task("sentences", SentenceClassifier, 256, "adamw", 3e-4, 32, 3),
}
DECAY = {"sgd": 1e-4, "adamw": 0.01}


@final
@dataclass(frozen=True)
class Config:
    """The settings of one run; None means the usual value of the model, which is filled in at once.

    Args:
        model: a name in `TASKS`.
        data: the file or folder to train on.
        plan: the file of a plan; recipe: the name of one for all layers.  Neither means dense.
        seed: of the initial weights, the order of the data, its augmentation, and the noise of the treatments.
        epochs, steps: how long; one of them.
        schedule: of the learning rate: "cosine" to zero, "step" (a tenth at half and at three quarters of the run) or
            "constant"; warmup: first steps over which it rises.
        pixels: sides that images are averaged down to.
        threads: of torch; None leaves its own number.
        start: the first step that is treated.
        evaluate_every: steps between evaluations; None evaluates after each epoch.
        weights: the format in which weights are stored, without a copy in float32.
    """

    model: str
    data: str
    plan: str | None = None
    recipe: str | None = None
    seed: int = 0
    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    optimizer: Literal["sgd", "adamw"] | None = None
    weight_decay: float | None = None
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    warmup: int = 0
    width: int | None = None
    augment: bool | None = None
    pixels: int | None = None
    channels_last: bool = False
    threads: int | None = None
    backend: Backend = "dense"
    start: int = 0
    evaluate_every: int | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.model not in TASKS:
            raise InvalidValue(f"{self.model!r} is not one of {', '.join(TASKS)}.{nearest_name(self.model, TASKS)}")
        if self.epochs is not None and self.steps is not None:
            raise InvalidValue("the length of a run is given by epochs or by steps; got both.")
        task = self.task
        optimizer = self.optimizer or task.optimizer
        usual = {
            "optimizer": optimizer, "lr": task.lr, "weight_decay": DECAY[optimizer], "batch": task.batch,
            "width": task.width, "augment": task.kind == "images",
            "epochs": task.epochs if self.steps is None else None,
        }  # fmt: skip
        for name, value in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def task(self) -> Task:
        """The model with its usual settings."""
        return TASKS[self.model]

    def load_plan(self) -> Plan | None:
        """Return the plan of the run, from its file or its recipe; None if it trains dense."""
        if self.recipe is not None:
            return Plan.uniform(self.recipe)
        return None if self.plan is None else Plan.load(self.plan)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the length of the run in steps."""
        return self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of a step, counted from 0, as a share of the largest one."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":  # as in [he2016]
            return 1.0 if 2 * step < total else 0.1 if 4 * step < 3 * total else 0.01
        return (1 + math.cos(math.pi * (step - self.warmup) / max(total - self.warmup, 1))) / 2

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values; of files the names alone, as folders may move."""
        return asdict(replace(self, data=basename(self.data), plan=self.plan and basename(self.plan)))
