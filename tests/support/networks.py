"""Small networks and data for the tests of profiles and plans."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def conv_net(seed: int = 0, inplace: bool = True) -> nn.Sequential:
    """Two conv-BN-ReLU blocks and a classifier, for images of 1 x 12 x 12; layers "0", "3" and "7"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace),
            nn.Flatten(), nn.Linear(16 * 36, 5),
        )  # fmt: skip


def mlp(seed: int = 0) -> nn.Sequential:
    """Layers "0" and "2"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


class Conv1D(nn.Module):
    """As in transformers, which need not be installed: the weight is (inputs, outputs)."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


def image_batches(count: int, size: int = 16, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 1, 12, 12, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for _ in range(count)
    ]


def vector_batches(count: int, size: int = 16, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for _ in range(count)
    ]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state_dict."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
