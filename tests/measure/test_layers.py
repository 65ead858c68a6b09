"""Layers of a model: which modules are observed, and the operations of their products."""

from __future__ import annotations

import pytest
import torch
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.laws import Empirical

LAYERS = {
    "Linear, three dimensions": (nn.Linear(5, 4), (2, 3, 5)),
    "Conv1d": (nn.Conv1d(4, 6, 3, padding="same", groups=2), (2, 4, 9)),
    "Conv2d": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
    "Conv3d": (nn.Conv3d(2, 3, 2, dilation=2), (2, 2, 5, 5, 5)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 2, 3, stride=2), (2, 3, 5)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "ConvTranspose3d": (nn.ConvTranspose3d(2, 2, 2), (2, 2, 3, 3, 3)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer_and_its_products(kind):
    module, shape = LAYERS[kind]
    x = torch.randn(shape, requires_grad=True)
    model = nn.Sequential(module)
    with lograd.observe(model, every=1) as profile:
        output = model(x)
        output.retain_grad()
        (output**3).sum().backward()
    layer = profile["0"]
    assert layer.last.law == Empirical.fit(output.grad)
    # The cost of a product, counted by torch itself on the forward pass.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x)
    assert layer.flops_input == layer.flops_weight == counter.get_total_flops()


def test_products_that_are_not_needed_cost_nothing():
    model = mlp()
    model[2].weight.requires_grad_(False)
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert profile["0"].flops_input == 0
    assert profile["0"].flops_weight == 2 * 16 * 8 * 6
    assert profile["2"].flops_input == 2 * 16 * 8 * 3
    assert profile["2"].flops_weight == 0
    assert profile["2"].weight_records == []


def test_filter_chooses_any_module():
    profile = lograd.profile(
        conv_net(), image_batches(1), cross_entropy, filter_fn=lambda module, name: isinstance(module, nn.BatchNorm2d)
    )
    assert list(profile.layers) == ["1", "4"]
    assert profile["1"].flops_weight is None
    assert profile["1"].weight_records
