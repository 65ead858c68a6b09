"""Models with BatchNorm layers, what may follow such a layer, and the comparison with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lograd


class Block(nn.Module):
    """Two convolutions with BatchNorm beside a shortcut, as torchvision writes them: in place."""

    def __init__(self, channels: int = 8, inplace: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x))
        out = self.relu(out)
        out = self.bn2(self.conv2(out))
        out += x
        result: Tensor = self.relu(out)
        return result


class Applied(nn.Module):
    """A BatchNorm whose result goes through a function."""

    def __init__(self, then: Callable[[Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.then = norm or nn.BatchNorm2d(4), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.norm(x))


def images(channels: int = 4, last: bool = True, seed: int = 0) -> Tensor:
    x = torch.randn(3, channels, 5, 7, generator=torch.Generator().manual_seed(seed)) * 2 + 1
    return x.contiguous(memory_format=torch.channels_last) if last else x


def trained(net: nn.Module, x: Tensor, steps: int = 2) -> list[Tensor]:
    """Output, gradients and buffers after a few passes."""
    net.zero_grad()
    for _ in range(steps):
        given = x.clone().requires_grad_()
        y = net(given)
        (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum().backward()
    gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return [y.detach().clone(), given.grad, *gradients, *(b.clone().double() for b in net.buffers())]


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float = 2e-5) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= tolerance * other.norm() + 1e-6, (one, other)


def compare(net: nn.Module, x: Tensor, steps: int = 2) -> lograd.nn.NormalizationHandle:
    """Both ways; the model is the same bytes after."""
    plain = copy.deepcopy(net)
    expected = trained(plain, x, steps)
    plain.zero_grad(set_to_none=True)
    with lograd.nn.normalization(net) as handle:
        assert_near(trained(net, x, steps), expected)
    net.zero_grad(set_to_none=True)
    assert net.state_dict().keys() == plain.state_dict().keys()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    return handle


def changed_by_a_view(y: Tensor) -> Tensor:
    y[:, 0] = 0.5
    return y.relu()


def changed_behind_autograd(y: Tensor) -> Tensor:
    y.detach().mul_(2)
    return y.relu()


def overwritten_by_name(y: Tensor) -> Tensor:
    F.relu(y, inplace=True)
    return y * y


def summed_in_place(y: Tensor) -> Tensor:
    y += y.mean((2, 3), keepdim=True).expand_as(y) * 0.5
    return torch.relu_(y)


FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "Tensor.relu": lambda y: y.relu(),
    "in place": lambda y: y.relu_(),
    "in place by name": overwritten_by_name,
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "of a sum": lambda y: F.relu(y + images(seed=2)),
    "of a sum by method": lambda y: y.add(images(seed=2)).relu(),
    "of a sum turned round": lambda y: F.relu(images(seed=2, last=False) + y),
    "in other calls": lambda y: F.relu(y) + F.relu(y),
}
OTHER: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda y: y,
    "gelu": F.gelu,
    "relu6": F.relu6,
    "product": lambda y: y * 2,
    "relu after another use": lambda y: y.mean() + F.relu(y),
    "relu before another use": lambda y: F.relu(y) * y,
    "sum without relu": lambda y: (y + images(seed=2)) * 3,
    "sum of broadcast": lambda y: F.relu(y + torch.ones(1, 4, 1, 1)),
    "sum with a number": lambda y: F.relu(y + 1),
    "sum with a factor": lambda y: F.relu(torch.add(y, images(seed=2), alpha=2)),
    "sum with itself": lambda y: F.relu(y + y),
    "sum of three": lambda y: F.relu(y + images(seed=2) + images(seed=3)),
    "view": lambda y: y.permute(0, 2, 3, 1).flatten(1).relu(),
    "slices": lambda y: torch.cat([y[:, :2].relu(), y[:, 2:]], 1),
    "changed in place": lambda y: y.mul_(0.5).relu(),
    "changed by a view": changed_by_a_view,
    "changed behind autograd": changed_behind_autograd,
    "summed in place": summed_in_place,
    "numpy": lambda y: y * float(y.detach().numpy().mean()),
    "a branch on values": lambda y: y.relu() if bool((y > 0).any()) else y,
}
