"""What an attached plan leaves alone: frozen layers, evaluation, hooks of the user, layers that it cannot treat."""

import re

import pytest
import torch
from attached import IDENTITY, assert_same, gradients_of, ready
from torch import nn

import lograd
from lograd import Plan
from lograd.plan import LayerPlan
from lograd.treatments import recipe


def test_frozen_layers_give_only_what_is_needed():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)), torch.randn(32, 6)
    model[1].requires_grad_(False)
    expected = gradients_of(model, x)
    with lograd.attach(model, IDENTITY):
        assert_same(gradients_of(model, x), expected)
    handle = ready(model, Plan.uniform("prune50"), x)
    gradients_of(model, x)
    assert model[1].weight.grad is None
    assert all(count.treated == 2 for count in handle.counters().layers.values())
    model.requires_grad_(False)
    passes = handle.counters().total.passes
    assert not model(x).requires_grad
    handle.remove()
    assert handle.counters().total.passes == passes


def test_evaluation_is_untouched():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), torch.randn(2, 3, 8, 8)
    expected = model(x)
    with lograd.attach(model, Plan.uniform("fp4")) as handle:
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                assert torch.equal(model(x), expected)
        assert handle.counters().total.passes == 0


def test_hooks_and_keywords_of_the_user_go_on_working():
    layer, x = nn.Linear(6, 5), torch.randn(4, 6)
    seen = []
    layer.register_forward_hook(lambda module, inputs, output: seen.append("forward"))
    layer.register_full_backward_hook(lambda module, d_input, d_output: seen.append("backward"))
    with lograd.attach(layer, IDENTITY):
        layer(x.requires_grad_()).sum().backward()
        assert seen == ["forward", "backward"]
        assert torch.equal(layer(input=x), layer(x))
        assert isinstance(layer, nn.Linear)
    transposed = nn.ConvTranspose2d(2, 2, 3, stride=2)
    y = torch.randn(1, 2, 4, 4)
    with lograd.attach(transposed, IDENTITY):
        assert transposed(y, output_size=[10, 10]).shape[-2:] == (10, 10)


class OwnForward(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 2


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


class Named(nn.Linear):
    """A subclass that changes nothing about the forward."""


def test_what_is_not_treated_is_explained():
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda input: input
    model = nn.ModuleDict(
        {
            "own": OwnForward(4, 4),
            "convolution": OwnConvolution(1, 1, 1),
            "wide": nn.Linear(4, 4).double(),
            "lazy": nn.LazyLinear(4),
            "replaced": replaced,
            "named": Named(4, 4),
            "kept": nn.Linear(4, 4),
            "attention": nn.MultiheadAttention(4, 2),
        }
    )
    plan = Plan(kept={"kept": "the last layer"}, every=LayerPlan.of(recipe("fp6")))
    with lograd.attach(model, plan) as handle:
        assert sorted(handle.layers) == ["attention.out_proj", "named"]
        x = torch.randn(3, 2, 4)
        for _ in range(3):
            (model["attention"](x, x, x)[0] + model["named"](x)).sum().backward()
            handle.step()
        lines = handle.explain().layers
        text = str(handle.explain())
    assert "OwnForward has its own forward" in lines["own"]
    assert "OwnConvolution has its own _conv_forward" in lines["convolution"]
    assert "float64" in lines["wide"]
    assert "not initialised" in lines["lazy"]
    assert "has its own forward" in lines["replaced"]
    assert lines["kept"] == "kept: the last layer"
    assert "its forward did not run (a parent such as nn.MultiheadAttention" in lines["attention.out_proj"]
    assert "not treated" in lines["attention"]
    assert re.search(r"1-4-1 scale max \(scale .*\); .*predicted cosine 0\.99", lines["named"])
    assert "3 steps; 2 gradients treated, 1 passed through before there were statistics" in text
    with lograd.attach(model, Plan()) as handle:
        assert handle.explain().layers["named"] == "not in the plan"
        assert not handle.layers


@pytest.mark.parametrize(("recipe", "backend"), [("prune90", "auto"), ("int8-full", "auto"), ("int8-full", "integer")])
def test_explain_claims_no_gain_as_plain_pytorch_is_not_timed(recipe, backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    with lograd.attach(model, Plan.uniform(recipe), backend=backend) as handle:
        for _ in range(4):
            model(torch.randn(256, 128)).square().mean().backward()
            handle.step()
        text = str(handle.explain())
    assert not re.search(r"times (as fast|faster|slower)|\bspeed|would take|saves? \d", text, re.IGNORECASE)
    if backend == "auto" and lograd.native.status().available:
        assert "dense products of the same treated operands" in text
