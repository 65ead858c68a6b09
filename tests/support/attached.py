"""Models with a plan attached: their gradients, and a handle that already has its statistics."""

import torch
from torch import nn

import lograd
from lograd import Plan

IDENTITY = Plan.uniform("identity")


class Block(nn.Module):
    """conv-BatchNorm-ReLU twice and a head: the gradients have the two modes of the paper."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def gradients_of(model, x, head=lambda y: y.float().square().sum(), context=None):
    """Output and all gradients of one pass; a ReLU overwrites the output."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    model.zero_grad()
    with context or torch.autocast("cpu", enabled=False):
        y = model(x)
        torch.relu_(y)
    head(y).backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def ready(model, plan, x, steps=2, **options):
    """An attached model that has its statistics."""
    handle = lograd.attach(model, plan, **options)
    for _ in range(steps):
        gradients_of(model, x)
        handle.step()
    return handle


def caught(model, x, layer):
    """The gradient of a layer's output, by autograd itself."""
    found = []
    hook = layer.register_forward_hook(lambda module, inputs, output: output.register_hook(found.append) and None)
    gradients_of(model, x)
    hook.remove()
    return found[0]
