"""Models, data and steps for the tests of weights in low precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lograd
from lograd.weights import WeightsHandle


def network(seed: int = 0) -> nn.Sequential:
    """A convolution and two linear layers for images of 1 x 8 x 8; weights "0", "3" and "5"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)
        )


def batch(seed: int = 0, size: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 1, 8, 8, generator=generator), torch.randint(10, (size,), generator=generator)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def stored(
    format: str = "int8",
    make: Callable[..., torch.optim.Optimizer] = sgd,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[nn.Sequential, torch.optim.Optimizer, WeightsHandle]:
    """A network with weights in low precision, and its optimizer."""
    model = network().to(dtype)
    optimizer = make(model.parameters())
    return model, optimizer, lograd.low_precision_weights(model, format, optimizer=optimizer, **options)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, call: Any = None, first: int = 0
) -> list[float]:
    """The losses of some steps."""
    losses = []
    for step in range(first, first + steps):
        x, target = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy((call or model)(x.to(next(model.parameters()).dtype)).float(), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def numbers(model: nn.Module) -> dict[str, Tensor]:
    """All parameters as plain tensors."""
    return {name: getattr(p, "decode", p.detach().clone)() for name, p in model.named_parameters()}


def same(one: nn.Module, other: nn.Module) -> bool:
    """True if all parameters have the same numbers."""
    first, second = numbers(one), numbers(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
