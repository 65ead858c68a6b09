"""A small residual network that has learned a little, and minibatches of the data that it learns from."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data import digits
from experiments.models import CifarResNet

BATCH, STEPS = 24, 60
Batches = list[tuple[Tensor, Tensor]]


@lru_cache(maxsize=1)
def trained_resnet(seed: int = 0) -> tuple[nn.Module, Batches]:
    """Return a ResNet-8 after 60 steps on handwritten digits, and 8 more minibatches; shared, so leave it as it is."""
    data, generator = digits(), torch.Generator().manual_seed(seed)
    images = data.train_images.expand(-1, 3, -1, -1)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        return images[chosen].contiguous(), data.train_labels[chosen]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CifarResNet(8, classes=10, width=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(STEPS):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.zero_grad()
    return model, [batch() for _ in range(8)]
