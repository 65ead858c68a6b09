"""Networks learn the digits of the package with weights of 8 bits alone, if these are rounded stochastically."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from everyday import daily
from torch import nn

import lograd
from experiments.data import digits
from lograd.weights import LowPrecisionTensor

EPOCHS, SIZE = 6, 64


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(format: str | None, make: Any, **options: Any) -> float:
    """Percent of the test images that are known after a few epochs."""
    data, model = digits(), network()
    optimizer = make(model.parameters())
    if format is not None:
        lograd.low_precision_weights(model, format, optimizer=optimizer, **options)
    order = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(data.train_images), generator=order).split(SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(data.train_images[chosen]), data.train_labels[chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        return 100 * float((model(data.test_images).argmax(1) == data.test_labels).float().mean())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=5e-3)


MAKERS = {"SGD": sgd, "AdamW": adamw}


@cache
def in_float32(name: str) -> float:
    return accuracy(None, MAKERS[name])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("format", daily(["int8", "e4m3fn", "bfloat16"], ["int8"]))
def test_eight_bits_learn_as_float32_does(name: str, format: str) -> None:
    assert in_float32(name) > 88
    assert accuracy(format, MAKERS[name]) > in_float32(name) - 3


def test_to_nearest_the_same_weights_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=2e-3, momentum=0.9)

    stochastic = accuracy("int8", slow)
    write = LowPrecisionTensor.write_
    monkeypatch.setattr(LowPrecisionTensor, "write_", lambda self, values: write(self, values, "nearest"))
    assert stochastic > accuracy("int8", slow) + 10
