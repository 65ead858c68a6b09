"""lograd.profile(times=True) on models that are written in ways of their own."""

import pytest
import torch
from networks import vector_batches
from torch import nn
from torch.nn.functional import cross_entropy, relu

import lograd
from lograd.measure.timing import NOT_FINITE


class Named(nn.Module):
    """Two layers that get their input as `layer(x)` or as `layer(input=x)`."""

    def __init__(self, named):
        super().__init__()
        torch.manual_seed(0)
        self.named = named
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        if self.named:
            return self.second(input=relu(self.first(input=x)))
        return self.second(relu(self.first(x)))


def test_an_input_may_be_given_by_its_name():
    batches = vector_batches(1)
    usual, named = (
        lograd.profile(Named(one), batches, cross_entropy, times=True, methods=["int4", "prune80"]).menus.layers
        for one in (False, True)
    )
    for layer, menu in named.items():
        for name, one in menu.items():
            expected = usual[layer][name]
            assert (one.input_noise, one.weight_noise) == (expected.input_noise, expected.weight_noise)
            assert one.penalty == pytest.approx(expected.penalty)
            assert min(one.forward, one.backward) > 0
    assert named["second"]["int4"].input_noise > 0


class Directions(nn.Module):
    """A model that divides by a length: NaN for an input that is rounded to zeros."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 16, bias=False), nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden / hidden.square().sum(1, keepdim=True).sqrt())


def test_a_rounded_forward_that_is_not_finite_is_out_of_the_question():
    batches = [(inputs * torch.tensor([1e-6] + [1.0] * (len(inputs) - 1))[:, None], targets)
               for inputs, targets in vector_batches(3)]  # fmt: skip
    profile = lograd.profile(Directions(), batches, cross_entropy, noise=1, times=True, methods=["int8"])
    assert profile.menus.penalty["int8"] == profile.menus.loss["int8"] == NOT_FINITE
    assert profile.menus.layers["first"]["int8"].penalty == NOT_FINITE
    assert profile.menus.layers["second"]["int8"].penalty < 1
    assert "first" not in profile.plan(objective="progress").layers
    assert "first" not in profile.plan(noise=0.5).layers
