"""Architectures whose gradients are looked at: networks, what of them matters for the law, their data and training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lograd import profile
from lograd.laws import FAMILIES, Empirical, HalfNormal, Law, LogNormal
from lograd.laws.binned import try_binned
from lograd.measure import LayerProfile
from lograd.theory import sparsity, threshold

from ..lab import Session
from ..models import CharTransformer, CifarResNet, SentenceClassifier, Vgg
from ..models.full_size import torchvision_model
from .cells import Found
from .networks import (
    Bert,
    Recurrent,
    UNet,
    grouped_resnet,
    perceptron,
    timm_model,
    with_activation,
    without_norm,
)
from .sources import find
from .streams import Batch, images, noisy, sentences, text

TARGET = 0.85
"""The share of zeros that thresholds are solved for."""
SOLVED: dict[str, type[Law]] = {"lognormal": LogNormal, "normal": HalfNormal}
"""Laws that thresholds are solved with, beside the empirical one."""
OBSERVED = 4
"""Steps that a profile looks at."""
CONTEXT = 64
CLIP = 5.0
"""The largest norm of a gradient."""
Loss = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True)
class Case:
    """One architecture with what matters for the law of its gradients."""

    name: str
    norm: str
    activation: str
    kind: str
    """Its data: "image", "denoise", "text", or the name of a folder of sentences."""
    build: Callable[..., nn.Module]
    """The network; for text and sentences it is given the number of tokens."""
    optimizer: str = "sgd"

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.name} {self.norm} {self.activation}".lower()).strip("-")


def _character_model(tokens: int) -> nn.Module:
    return CharTransformer(tokens, 96, 3, 4, CONTEXT)


def classifier(tokens: int) -> nn.Module:
    """Return a small BERT that classifies sentences."""
    return SentenceClassifier(tokens, 2, 64, context=CONTEXT)


VIT = {"img_size": 32, "patch_size": 4, "depth": 4, "embed_dim": 96}
CASES = (
    Case("MLP", "none", "ReLU", "image", partial(perceptron, nn.ReLU, False)),
    Case("MLP", "BatchNorm", "ReLU", "image", partial(perceptron, nn.ReLU, True)),
    Case("MLP", "none", "GELU", "image", partial(perceptron, nn.GELU, False)),
    Case("MLP, 15 layers", "none", "ReLU", "image", partial(perceptron, nn.ReLU, False, 15)),
    Case("MLP, 15 layers", "BatchNorm", "ReLU", "image", partial(perceptron, nn.ReLU, True, 15)),
    Case("ResNet-8", "BatchNorm", "ReLU", "image", lambda: CifarResNet(8, 100, 16)),
    Case("ResNet-8", "none", "ReLU", "image", lambda: without_norm(CifarResNet(8, 100, 16))),
    Case("VGG-16, 16 channels", "none", "ReLU", "image", lambda: without_norm(Vgg(100, 16))),
    Case("VGG-16, 16 channels", "BatchNorm", "ReLU", "image", lambda: Vgg(100, 16)),
    Case("VGG-16, 16 channels", "BatchNorm", "GELU", "image", lambda: with_activation(Vgg(100, 16), nn.GELU)),
    Case("ResNet-20", "BatchNorm", "ReLU", "image", lambda: CifarResNet(20, 100, 16)),
    Case("ResNet-18, torchvision", "BatchNorm", "ReLU", "image", partial(torchvision_model, "resnet18")),
    Case("ResNet-18, torchvision", "GroupNorm", "ReLU", "image", grouped_resnet),
    Case("MobileNetV3 small", "BatchNorm", "Hardswish", "image", partial(torchvision_model, "mobilenet_v3_small")),
    Case("U-Net", "none", "ReLU", "denoise", partial(UNet, norm=False), "adam"),
    Case("U-Net", "BatchNorm", "ReLU", "denoise", partial(UNet, norm=True), "adam"),
    Case("ConvNeXt atto, timm", "LayerNorm", "GELU", "image", partial(timm_model, "convnext_atto"), "adam"),
    Case("ViT, timm", "LayerNorm", "GELU", "image", partial(timm_model, "vit_tiny_patch16_224", **VIT), "adam"),
    Case("BERT, transformers", "LayerNorm", "GELU", "text", partial(Bert, context=CONTEXT), "adam"),
    Case("character transformer", "LayerNorm", "GELU", "text", _character_model, "adam"),
    Case("linear layers behind an LSTM", "none", "ReLU", "text", Recurrent, "adam"),
)  # fmt: skip


_OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4),
    "adam": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
}


def followers(model: nn.Module) -> dict[str, str]:
    """Return by layer the class of the module that comes next, in the order in which the model was put together.

    Dropout and modules that do nothing are passed over.
    """
    leaves = [
        (name, one)
        for name, one in model.named_modules()
        if not any(True for _ in one.children()) and not isinstance(one, nn.Identity | nn.Dropout)
    ]
    return {name: _class(other) for (name, _), (_, other) in pairwise(leaves)}


def _class(module: nn.Module) -> str:
    name = type(module).__name__
    return "another layer" if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d) else name


def looked_at(case: Case, data: Path | None, batch: int, moments: Sequence[int]) -> Found:
    """Train a network, and look at the gradients of its layers at several moments.

    Args:
        case: the network.
        data: the images, or a folder of several sets; None takes what is inside the package.
        batch: examples of a step.
        moments: steps after which the gradients are looked at, in order.
    """
    model, batches, loss = prepared(case, data, batch)
    session = Session(model, batches, loss, _OPTIMIZERS[case.optimizer](model), clip=CLIP)
    looks, losses = dict[str, Any](), list[float]()
    for moment in moments:
        losses += [session.step() for _ in range(moment - len(losses))]
        looks[str(moment)] = _look(model, batches, loss)
    return {"looks": looks, "loss": float(np.mean(losses[-max(moments[-1] // 10, 1) :])) if losses else None}


def prepared(case: Case, data: Path | None, batch: int) -> tuple[nn.Module, Iterator[Batch], Loss]:
    """Return the network of a case, its batches without end, and its loss."""
    if case.kind not in ("image", "denoise", "text"):
        assert data is not None, "sentences come from a folder"
        batches, tokens = sentences(find(data, "sentences", case.kind), batch, CONTEXT)
        return case.build(tokens), batches, F.cross_entropy
    if case.kind == "text":
        windows, tokens = text(batch, CONTEXT)
        return case.build(tokens), windows, _character_loss
    if data is not None:
        data = find(data, "images")
    if case.kind == "denoise":
        return case.build(), noisy(images(data, batch)), F.mse_loss
    return case.build(), images(data, batch), F.cross_entropy


def _character_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def _look(model: nn.Module, batches: Iterator[Batch], loss: Loss) -> list[dict[str, Any]]:
    found = profile(model, batches, loss, steps=OBSERVED, weight_gradients=False)
    next_to = followers(model)
    measured = [(layer.name, _measured(layer)) for layer in found.layers.values()]
    return [one | {"before": next_to.get(name, "the loss")} for name, one in measured if one is not None]


def _measured(layer: LayerProfile) -> dict[str, Any] | None:
    """Distances of one layer, and the zeros that each law's threshold gives one step later; None without a law."""
    laws = [record.law for record in layer.records if record.law is not None]
    if len(laws) < 2:
        return None
    misses = {name: max(_miss(one, other, name) for one, other in pairwise(laws)) for name in ("empirical", *SOLVED)}
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "elements": layer.elements,
        "zeros": layer.zero_share,
        "sigma": layer.sigma,
        "ks": {family.__name__: layer.ks(family) for family in FAMILIES},
        "nearest": layer.nearest_law,
        "miss": misses,
    }


def _miss(now: Empirical, later: Empirical, name: str) -> float:
    """How far the zeros of the later gradient are from TARGET if the threshold is solved from the earlier one."""
    law: Law | None = now if name == "empirical" else try_binned(SOLVED[name], now).law
    return float("nan") if law is None else abs(float(sparsity(later, threshold(law, TARGET))) - TARGET)
