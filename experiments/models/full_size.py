"""Networks of other libraries at the size of the papers, with random weights; imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from lograd import InvalidValue

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


def cifar_model(name: str, classes: int = 100, width: int = 64) -> nn.Module:
    """Return a residual network of torchvision with a stem for images of 32 pixels: 3x3, no stride, no pooling."""
    model: Any = torchvision_model(name, classes)
    model.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    result: nn.Module = model
    return result
