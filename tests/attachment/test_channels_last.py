"""`Plan.channels_last`: integer convolutions leave images as they compute them, and no value depends on it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lograd
from lograd import InvalidType, LayerPlan, Plan
from lograd.treatments import Integers, ProductPlan

pytestmark = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")

LEVELS = Integers(8)
NEAREST = Plan(
    every=LayerPlan(
        ProductPlan(activations=(LEVELS,), weights=(LEVELS,)),
        ProductPlan((LEVELS,), weights=(LEVELS,)),
        ProductPlan((LEVELS,), activations=(LEVELS,)),
    )
)
"""Without random numbers, whose order is that of memory."""


def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(),
        nn.Conv2d(16, 12, 3, padding=1), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def images(count=4):
    return torch.randn(count, 8, 9, 11, generator=torch.Generator().manual_seed(1))


def step(model, plan, compiled=False):
    """Outputs of the convolutions, and the gradients of the parameters."""
    seen = []
    hooks = [
        one.register_forward_hook(lambda *given: seen.append(given[2]))
        for one in model
        if len(list(one.children())) == 0
    ]
    with lograd.attach(model, plan, backend="integer") as handle:
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        called(images()).square().sum().backward()
        words = str(handle.explain())
    for hook in hooks:
        hook.remove()
    return seen, [one.grad for one in model.parameters()], words


def is_last(x):
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def test_images_lie_channels_last_and_all_values_are_the_same():
    plain, turned = make(), make()
    (seen, gradients, words) = step(plain, NEAREST)
    (other, turned_gradients, turned_words) = step(turned, replace(NEAREST, channels_last=True))
    assert [is_last(one) for one in seen[:5]] == [False] * 5
    assert [is_last(one) for one in other[:5]] == [True] * 5
    for a, b in zip([*seen, *gradients], [*other, *turned_gradients], strict=True):
        assert torch.equal(a, b)
    assert "layout" not in words
    assert "outputs of integer convolutions lie channels-last" in turned_words


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
def test_compiled_code_expects_the_layout():
    model, other = make(), make()
    plan = replace(NEAREST, channels_last=True)
    _, eager, _ = step(model, plan)
    _, compiled, _ = step(other, plan, compiled=True)
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


def test_a_plan_keeps_the_switch(tmp_path):
    plan = replace(Plan.uniform("int8-full"), channels_last=True)
    assert Plan.from_dict(plan.to_dict()) == plan
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").channels_last
    assert "channels_last" not in replace(plan, channels_last=False).to_dict()
    with pytest.raises(InvalidType, match="channels_last of a plan must be True or False; got 1"):
        replace(plan, channels_last=1)
