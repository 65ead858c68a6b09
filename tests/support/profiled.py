"""Models that several tests of profiles share."""

from __future__ import annotations

import torch
from torch import nn

BATCH, STEPS, WIDTH = 4, 20, 64


class Mixed(nn.Module):
    """One small linear layer behind an embedding, an LSTM, attention and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, tokens):
        x, _ = self.lstm(self.embedding(tokens))
        x, _ = self.attention(x, x, x)
        return self.head((x @ self.mix).mean(1))


def token_batches(count, seed=0):
    """Return batches of tokens and classes for `Mixed`."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(0, 50, (BATCH, STEPS), generator=generator), torch.randint(0, 8, (BATCH,), generator=generator))
        for _ in range(count)
    ]


class Part(nn.Module):
    """A module that calls a function with a parameter of its own."""

    def __init__(self, call) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.call = call

    def forward(self, x):
        return self.call(self.weight, x)


def parts_of(work):
    """Return the untreated parts of a step by name."""
    return {part.name: part for part in work.untreated}


def wide_net():
    """Layer "2" is large enough to gain from zeros at a batch of 16; "0" and the last are not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 5),
    )  # fmt: skip
