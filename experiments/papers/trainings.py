"""Networks with their data and the length of their training, by name: small ones, and those of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from lograd import InvalidValue
from lograd.errors import nearest_name

from ..lab import Config
from .sources import Kind, find


@final
@dataclass(frozen=True)
class Training:
    """One network on one data set.

    Args:
        model: by its name in `lab.TASKS`.
        kind: of its data.
        words: network and data, for tables.
        minutes: of one run on one thread, about; None where nobody has measured it.
        options: of the config, where they are not the usual ones of the model.
    """

    model: str
    kind: Kind
    words: str
    minutes: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, data: Path, **changes: Any) -> Config:
        """Return the settings of a run; `changes` that are None leave what the training has."""
        given = {**self.options, **{name: value for name, value in changes.items() if value is not None}}
        if changes.get("steps") is not None:
            given.pop("epochs", None)
        path = str(find(data, self.kind))
        return Config(self.model, path, evaluate_every=10**6, **given)


CIFAR = {"epochs": 200, "batch": 256, "schedule": "step"}
"""Batch, rate and decay of the lognormal paper's code; it divides the rate at epochs 81, 122 and 164 of 200."""
TRAININGS = {
    "digits": Training(
        "resnet8", "images", "ResNet-8, 8 channels, the digits inside the package", 0.02,
        {"width": 8, "batch": 32, "steps": 6, "augment": False, "threads": 1},
    ),
    "play": Training(
        "charlm", "text", "character transformer of width 16, the play inside the package", 0.05,
        {"width": 16, "batch": 4, "steps": 6, "threads": 1},
    ),
    "resnet8": Training(
        "resnet8", "images",
        "ResNet-8, 16 channels, 20,000 images of CIFAR-100 averaged to 8 x 8 pixels, 20 epochs", 2.5,
        {"epochs": 20, "pixels": 8, "channels_last": True, "threads": 1},
    ),
    "charlm": Training(
        "charlm", "text", "character transformer of width 128, 1 MB of Shakespeare, 600 steps", 2,
        {"steps": 600, "batch": 8, "lr": 0.004, "warmup": 50, "threads": 1},
    ),
    "bert-mini": Training(
        "bert-mini", "sentences", "a small BERT of width 64, SST-2, 1,000 steps", 2,
        {"width": 64, "steps": 1000, "lr": 0.002, "warmup": 50, "threads": 1},
    ),
    "cifar-resnet18": Training("resnet18", "images", "ResNet18, CIFAR-100, 200 epochs", None, CIFAR),
    "cifar-resnet101": Training("resnet101", "images", "ResNet101, CIFAR-100, 200 epochs", None, CIFAR),
    "cifar-resnet20": Training(
        "resnet20", "images", "ResNet-20, CIFAR-100, 160 epochs", None, {"epochs": 160, "schedule": "step"}
    ),
}  # fmt: skip
"""By name, the trainings that an experiment may be given as its network."""


def training_of(name: str) -> Training:
    """Return the training of that name."""
    if name not in TRAININGS:
        raise InvalidValue(
            f"network must be one of {', '.join(TRAININGS)}; got {name!r}.{nearest_name(name, TRAININGS)}"
        )
    return TRAININGS[name]
