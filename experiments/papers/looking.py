"""Gradients of one step, looked at without changing the network: those of the layers' outputs, and of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import cos, pi
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lograd.engine.layers import kind_of
from lograd.measure.passes import on_gradient

from ..lab import Session
from ..models import CifarResNet
from .streams import Batch, augmented_images

RATE = 0.1
"""The largest learning rate of `begun_resnet`."""


class Gradients(NamedTuple):
    """Gradients by layer, in the order of the forward pass."""

    neural: dict[str, Tensor]
    weights: dict[str, Tensor]


def gradients_of(
    model: nn.Module, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
) -> Gradients:
    """Return the gradients of all layers for one batch; no weight is changed."""
    found: dict[str, Tensor] = {}

    def ran(name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        on_gradient(output, partial(found.__setitem__, name))

    layers = {name: module for name, module in model.named_modules() if kind_of(module) is not None}
    hooks = [module.register_forward_hook(partial(ran, name)) for name, module in layers.items()]
    value: Any = loss(model(batch[0]), batch[1])
    value.backward()
    weights = {
        name: layer.weight.grad.clone() for name, layer in layers.items() if isinstance(layer.weight.grad, Tensor)
    }
    model.zero_grad()
    for hook in hooks:
        hook.remove()
    return Gradients({name: found[name] for name in layers}, weights)


class Begun(NamedTuple):
    """A network in training, the session that trains it, and its batches."""

    model: nn.Module
    session: Session
    batches: Iterator[Batch]


def begun_resnet(data: Path | None, width: int, batch: int, steps: int, seed: int = 0) -> Begun:
    """Return a ResNet-8 that is about to be trained on images, at a rate that falls to zero by a cosine."""
    torch.manual_seed(seed)
    model = CifarResNet(8, 100, width)
    batches = augmented_images(data, batch, seed)

    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    session = Session(model, batches, F.cross_entropy, optimizer, rate=lambda step: (1 + cos(pi * step / steps)) / 2)
    return Begun(model, session, batches)
