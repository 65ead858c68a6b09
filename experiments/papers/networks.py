"""Networks of the experiments that are not models of the package: small ones, and those of other libraries."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.full_size import package, torchvision_model


class UNet(nn.Module):
    """Three resolutions with skips; ReLU, and BatchNorm or nothing."""

    def __init__(self, width: int = 16, norm: bool = False) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            parts: list[nn.Module] = []
            for number in range(2):
                parts.append(nn.Conv2d(inputs if not number else outputs, outputs, 3, padding=1))
                parts += [nn.BatchNorm2d(outputs)] if norm else []
                parts.append(nn.ReLU())
            return nn.Sequential(*parts)

        self.down = nn.ModuleList([stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width)])
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([stage(4 * width, 2 * width), stage(2 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of as many pixels as x, with three channels."""
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        y = self.down[2](F.max_pool2d(second, 2))
        for rise, up, skip in zip(self.rise, self.up, (second, first), strict=True):
            y = up(torch.cat([rise(y), skip], 1))
        result: Tensor = self.out(y)
        return result


class Recurrent(nn.Module):
    """An LSTM between an embedding and two linear layers."""

    def __init__(self, tokens: int, width: int = 96) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.hidden, self.head = nn.Linear(width, 2 * width), nn.Linear(2 * width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        result: Tensor = self.head(torch.relu(self.hidden(self.lstm(self.token(tokens))[0])))
        return result


def perceptron(act: type[nn.Module], norm: bool, depth: int = 5) -> nn.Module:
    """Linear layers on the pixels of an image, with or without BatchNorm."""
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in [(3072, 256)] + [(256, 256)] * (depth - 2):
        parts += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), act()]
    return nn.Sequential(*parts, nn.Linear(256, 100))


def without_norm(model: nn.Module) -> nn.Module:
    """Take each BatchNorm out of a network, and give its convolutions He's weights, so that it still trains."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
            elif isinstance(child, nn.Conv2d):
                nn.init.kaiming_normal_(child.weight, nonlinearity="relu")
    return model


def with_activation(model: nn.Module, act: type[nn.Module]) -> nn.Module:
    """Replace each ReLU of a network by another activation."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, act())
    return model


def grouped_resnet() -> nn.Module:
    """ResNet-18 with GroupNorm in place of BatchNorm."""
    return torchvision_model("resnet18", norm_layer=partial(nn.GroupNorm, 8))


def timm_model(name: str, **options: Any) -> nn.Module:
    """A model of timm, with random weights."""
    model: nn.Module = package("timm").create_model(name, num_classes=100, **options)
    return model


class Bert(nn.Module):
    """BERT's encoder from transformers at a small size, with a head on every position."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__()
        transformers = package("transformers")
        config = transformers.BertConfig(
            vocab_size=tokens, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=384,
            max_position_embeddings=context,
        )  # fmt: skip
        self.bert = transformers.BertForTokenClassification(config)
        self.bert.classifier = nn.Linear(96, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the classifier at each position."""
        result: Tensor = self.bert(tokens).logits
        return result
