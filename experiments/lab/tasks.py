"""The built-in models by name, with what it takes to train them: kind of data, optimizer, usual settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, final

from torch import nn

from ..models import CharTransformer, CifarResNet, ResNet18, SentenceClassifier, Vgg
from ..models.full_size import WIDTH, cifar_model, imagenet_model

Kind = Literal["images", "text", "sentences"]


@final
@dataclass(frozen=True)
class Task:
    """One model and the settings that it is trained with unless others are given.

    Args:
        kind: of the data.
        build: the model, from the sizes that the data has (classes, tokens) and the width.
        width: channels of the first convolution, or the width of a transformer.
        multiple: widths must be multiples of it; a transformer's is its number of heads.
        smallest: the fewest pixels on a side of an image.
        pixels: on a side of the squares that images of a folder are cut to.
    """

    kind: Kind
    build: Callable[..., nn.Module]
    width: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    batch: int = 128
    epochs: int = 30
    multiple: int = 1
    smallest: int = 8
    pixels: int = 32


def _imagenet(name: str, lr: float = 0.1) -> Task:
    """Return a model of torchvision at its full size, for a folder of images."""
    return Task("images", partial(imagenet_model, name), WIDTH, lr=lr, batch=256, epochs=90, smallest=64, pixels=224)


TASKS = {
    "resnet8": Task("images", partial(CifarResNet, 8), 16),
    "resnet20": Task("images", partial(CifarResNet, 20), 16),
    "resnet18": Task("images", ResNet18, 64),
    "vgg": Task("images", Vgg, 64, lr=0.05, smallest=32),
    "charlm": Task("text", CharTransformer, 128, "adamw", 1e-3, 32, 5, multiple=4),
    "charlm6": Task("text", partial(CharTransformer, depth=6), 384, "adamw", 1e-3, 32, 5, multiple=4),
    "bert-mini": Task("sentences", SentenceClassifier, 256, "adamw", 3e-4, 32, 3, multiple=4),
    "resnet101": Task("images", partial(cifar_model, "resnet101"), WIDTH, epochs=200),
    "imagenet-resnet18": _imagenet("resnet18"),
    "imagenet-resnet50": _imagenet("resnet50"),
    "imagenet-squeezenet": _imagenet("squeezenet1_1", 0.02),
}
