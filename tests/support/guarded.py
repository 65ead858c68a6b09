"""Runs under a guard beside dense ones, on the digits of the package; each step is a few milliseconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Handle, Plan
from lograd.errors import LogradWarning


class Bottleneck(nn.Module):
    """An inverted bottleneck with a depthwise convolution, as in a MobileNet-v2, beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.body = nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def mobile_net(seed: int, blocks: int = 6, width: int = 8) -> nn.Module:
    """A deep and narrow network, in which noise of pruning explodes at its beginning."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6())
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return nn.Sequential(first, *(Bottleneck(width) for _ in range(blocks)), last)


@lru_cache
def digits() -> tuple[Tensor, Tensor]:
    data = np.load(str(files("experiments.data") / "digits.npz"))
    images = torch.tensor(data["images"]).float().div(16).sub(0.3)[:, None].repeat(1, 3, 1, 1)
    return images, torch.tensor(data["labels"]).long()


class Trained(NamedTuple):
    losses: list[float]
    handle: Handle | None
    said: list[str]

    @property
    def guard(self) -> Any:
        assert self.handle is not None
        return self.handle.guard

    def mean(self, first: int, last: int) -> float:
        """The mean loss of some steps; infinite if it is not a number."""
        found = float(np.mean(self.losses[first:last]))
        return found if np.isfinite(found) else float("inf")


def trained(
    make: Callable[[int], nn.Module], plan: str | None, steps: int, seed: int = 0, lr: float = 0.05, batch: int = 32,
    **options: Any,
) -> Trained:  # fmt: skip
    """Train a model densely, or with the plan of a recipe; runs of one seed have the same weights and batches."""
    images, labels = digits()
    model, losses = make(seed), []
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + seed)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        handle = None if plan is None else lograd.attach(model, Plan.uniform(plan), backend="dense", **options)
        for _ in range(steps):
            chosen = torch.randint(0, len(labels), (batch,), generator=generator)
            optimizer.zero_grad()
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if handle is not None:
                handle.step()
    said = [str(one.message) for one in found if issubclass(one.category, LogradWarning)]
    return Trained(losses, handle, said)


def band(runs: list[Trained], first: int, last: int) -> float:
    """The largest mean loss of some steps that chance gives: 4 standard deviations above the mean of dense runs."""
    logs = np.log([run.mean(first, last) for run in runs])
    return float(np.exp(logs.mean() + 4 * logs.std(ddof=1)))
