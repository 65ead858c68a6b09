"""The networks of `./dev bench guard`, on data inside the package, and what is planted into their training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lograd import Guard
from lograd.data import digits
from lograd.models import CharTransformer, CifarResNet, MobileNetV2, ResNet18
from lograd.training.images import read_images

from ..predictions import Batch, characters, text

BATCH = 16
"""Images of a batch."""
FROM_FILE = 10000
"""The most images that are taken from a file."""


@lru_cache
def _images(size: int, data: str) -> Batch:
    """Return all images and labels: the digits of the package, enlarged, or those of a file, averaged down."""
    if not data:
        found = digits()
        grown = F.interpolate(found.train_images, scale_factor=size // 8)
        return grown.repeat(1, 3, 1, 1), found.train_labels
    arrays = read_images(Path(data))
    pixels = torch.tensor(arrays["train_images"][:FROM_FILE]).movedim(-1, 1).float().div(255).sub(0.5)
    return F.adaptive_avg_pool2d(pixels, size), torch.tensor(arrays["train_labels"][:FROM_FILE]).long()


def images(count: int, settings: Settings, generator: torch.Generator) -> Batch:
    """Handwritten digits, enlarged and in three channels, or images of a file."""
    all_images, labels = _images(settings.size, settings.data)
    places = torch.randint(len(labels), (count,), generator=generator)
    return all_images[places], labels[places]


def _sentences(settings: Settings, generator: torch.Generator) -> Batch:
    return text(8, 48, generator)


@dataclass(frozen=True)
class Network:
    """A network with its data and a healthy way to train it."""

    name: str
    build: Callable[[int], nn.Module]
    """Called with the number of classes."""
    batch: Callable[[Settings, torch.Generator], Batch]
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float
    scaled: str
    """The layer that is scaled in the middle of a run."""

    def made(self, seed: int, lr: float, classes: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.Generator]:
        """Return a new model, its optimizer, and the random numbers of its batches."""
        torch.manual_seed(seed)
        model = self.build(classes)
        return model, self.optimizer(model.parameters(), lr=lr), torch.Generator().manual_seed(100 + seed)


SGD = partial(torch.optim.SGD, momentum=0.9)
NETWORKS = {
    "mobilenet": Network(
        "MobileNet-v2 of width 0.25", lambda classes: MobileNetV2(classes, 0.25), partial(images, BATCH), SGD, 0.01,
        "blocks.8.expand.0",
    ),
    "resnet": Network(
        "ResNet-20 of width 8", lambda classes: CifarResNet(20, classes, 8), partial(images, BATCH), SGD, 0.05,
        "blocks.4.conv1",
    ),
    "transformer": Network(
        "character transformer of width 64", lambda classes: CharTransformer(characters(), 64, 3, 4, 64), _sentences,
        torch.optim.Adam, 2e-3, "layers.1.down",
    ),
    "wide resnet": Network(
        "ResNet18 of width 32, batch 32", lambda classes: ResNet18(classes, 32), partial(images, 32), SGD, 0.05,
        "blocks.4.conv1",
    ),
    "wide transformer": Network(
        "character transformer of width 256, 8 x 64", lambda classes: CharTransformer(characters(), 256, 4, 4, 64),
        lambda settings, generator: text(8, 64, generator), torch.optim.Adam, 1e-3, "layers.1.down",
    ),
}  # fmt: skip
SMALL = ("mobilenet", "resnet", "transformer")
"""The networks that are trained many times; of the others steps are timed."""


@dataclass(frozen=True)
class Case:
    """Something that is planted into the training of a network."""

    name: str
    network: str
    recipe: str
    faster: float = 1.0
    """The factor of the healthy learning rate."""
    scaled_at: float = 0.0
    """The part of the run after which a layer is scaled; 0 for never."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `attach`."""
    budget: float | None = None
    """The budget of guards; None for the usual one."""

    @property
    def modes(self) -> dict[str, bool | Guard]:
        """The guards that a planted case is run with, by name."""
        warning, falling_back = Guard(self.budget, fall_back=False), Guard(self.budget)
        return {"no guard": False, "warning": warning, "falling back": falling_back}


@dataclass(frozen=True)
class Settings:
    """How long and how large everything is."""

    steps: int
    size: int
    """Pixels of the side of an enlarged digit: 8, 16, 24 or 32."""
    seeds: int
    """Dense runs of a planted case."""
    treated: int
    """Runs with a plan of a planted case, in each mode."""
    data: str = ""
    """A .npz of images; the digits of the package if empty."""

    @property
    def classes(self) -> int:
        """The outputs of networks on images."""
        return int(_images(self.size, self.data)[1].max()) + 1


SCALED: dict[str, Any] = {"scaled_at": 0.5, "options": {"refresh": "epoch"}, "budget": 10.0}
"""No epoch ends in the run, so thresholds are those of its first twenty steps; all layers are treated by then."""
PLANTED = (
    Case("85 % from the first step", "mobilenet", "prune85"),
    Case("85 % from the first step", "resnet", "prune85"),
    Case("learning rate times 10", "mobilenet", "prune85", faster=10.0),
    Case("learning rate times 10", "resnet", "prune85", faster=10.0),
    Case("learning rate times 10", "transformer", "prune85", faster=10.0),
    Case("a layer times 1e6", "mobilenet", "prune50", **SCALED),
    Case("a layer times 1e6", "resnet", "prune50", **SCALED),
    Case("a layer times 1e6", "transformer", "prune50", **SCALED),
    Case("a layer times 1e6", "resnet", "fp6", **SCALED | {"budget": None}),
    Case("a layer times 1e6", "transformer", "fp6", **SCALED | {"budget": None}),
)
QUIET = tuple(Case("quiet", network, recipe) for network in SMALL for recipe in ("int8-full", "fp6"))
COST = tuple(Case("cost", network, recipe) for network in NETWORKS for recipe in ("int8-full", "prune80"))
NOISE = tuple(Case("noise", network, recipe) for network in SMALL for recipe in ("int4-ptq", "prune70"))
