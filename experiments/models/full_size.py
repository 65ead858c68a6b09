"""Networks of other libraries at the size of the papers, with random weights; imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from lograd import InvalidValue

WIDTH = 64
"""The only width of these networks, whose sizes are those of their papers."""
_operators: list[Any] = []
"""Kept alive: torch forgets operators whose library is gone."""


def package(name: str) -> Any:
    """Import torchvision, timm or transformers, of which the last two import the first."""
    missing = InvalidValue(f"this network needs {name}, which is not installed: pip install {name}")
    try:
        import_module("torchvision")
    except RuntimeError:  # its compiled operators may not fit torch's build; no model here needs them
        library: Any = torch.library.Library
        _operators.append(library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _operators[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except ImportError:
        raise missing from None
    try:
        return import_module(name)
    except ImportError:
        raise missing from None


def torchvision_model(name: str, classes: int = 100, **options: Any) -> nn.Module:
    """Return a model of torchvision, with random weights."""
    model: nn.Module = getattr(package("torchvision").models, name)(num_classes=classes, **options)
    return model


def imagenet_model(name: str, classes: int = 1000, width: int = WIDTH) -> nn.Module:
    """Return a model of torchvision for images of 224 pixels."""
    _check_width(name, width)
    return torchvision_model(name, classes)


def cifar_model(name: str, classes: int = 100, width: int = WIDTH) -> nn.Module:
    """Return a residual network of torchvision with a stem for images of 32 pixels: 3x3, no stride, no pooling."""
    _check_width(name, width)
    model: Any = torchvision_model(name, classes)
    model.conv1 = nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    result: nn.Module = model
    return result


def _check_width(name: str, width: int) -> None:
    if width != WIDTH:
        raise InvalidValue(f"width of {name} must be {WIDTH}, as it has the size of its paper; got {width}.")


class BertBase(nn.Module):
    """BERT-base of transformers for two classes of sentences, with random weights: token numbers in, logits out."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        transformers = package("transformers")
        self.bert = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=tokens, num_labels=2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the classes; 0 is padding."""
        result: Tensor = self.bert(tokens, attention_mask=(tokens != 0).long()).logits
        return result
