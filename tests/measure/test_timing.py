"""lograd.profile(times=True): what is measured, against the same thing done by hand; and menus as values."""

from __future__ import annotations

import math

import pytest
import torch
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy, relu

import lograd
from experiments.models import CifarResNet
from lograd import InvalidType, InvalidValue, Plan
from lograd.engine.layers import candidates
from lograd.errors import LogradWarning
from lograd.measure.passes import attached, settling
from lograd.measure.timing import NOT_FINITE, method
from lograd.treatments import Prune, Statistics, predict
from lograd.treatments.verdicts import noise_of

FEW = ["int8-full", "int4-full", "prune80", "identity/prune90"]


@pytest.fixture(scope="module")
def batch():
    return image_batches(1)[0]


@pytest.fixture(scope="module")
def profile(batch):
    return lograd.profile(conv_net(), [batch], cross_entropy, times=True, methods=FEW)


def gradient_of(model, batch):
    model.zero_grad()
    loss = cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return float(loss.detach()), [parameter.grad.clone().double() for parameter in model.parameters()]


def rounded(model, batch, names, bits):
    """|g_q - g|^2 and the change of the loss, by hand."""
    before, clean = gradient_of(model, batch)
    with lograd.attach(model, Plan(dict.fromkeys(names, method(f"int{bits}wa").plan)), backend="dense"):
        after, moved = gradient_of(model, batch)
    return sum(float((a - b).square().sum()) for a, b in zip(moved, clean, strict=True)), after - before


def test_every_layer_has_a_time_for_every_method(profile):
    menus = profile.menus
    assert list(menus.layers) == list(profile.layers) == ["0", "3", "7"]
    for menu in menus.layers.values():
        assert list(menu) == ["dense", *FEW]
        assert all(one.forward > 0 and one.backward > 0 for one in menu.values())
    assert set(menus.uniform) == set(FEW)
    assert 0 < menus.rest < menus.step
    assert menus.threads == torch.get_num_threads()


def test_noise_is_measured_for_rounding_and_predicted_for_pruning(profile):
    for name, menu in profile.menus.layers.items():
        assert menu["dense"].weight_noise == menu["dense"].input_noise == 0
        # A step is 2 / 254 and 1 / 15 of ranges that differ by at most two: the noise by (1 / 15 : 2 / 254)^2 or less.
        assert 10 < menu["int4-full"].weight_noise / menu["int8-full"].weight_noise < 600
        expected = noise_of(predict((Prune(0.8),), Statistics(profile[name].law)).cosine)
        assert menu["prune80"].weight_noise == pytest.approx(expected)
        assert (
            menu["identity/prune90"].input_noise
            == 0
            < menu["prune80"].weight_noise
            < menu["identity/prune90"].weight_noise
        )
        passes_on = name != "0"  # the images need no gradient
        assert menu["prune80"].input_noise == (menu["prune80"].weight_noise if passes_on else 0)
        if passes_on:  # dX has one range for all outputs, dW one for each
            assert menu["int8-full"].weight_noise < menu["int8-full"].input_noise < 100 * menu["int8-full"].weight_noise
        else:
            assert menu["int8-full"].input_noise == 0


def test_penalties_are_the_parts_of_what_rounded_layers_change_together(profile, batch):
    menus, model = profile.menus, conv_net()
    for bits in (8, 4):
        penalty, _ = rounded(model, batch, list(menus.layers), bits)
        parts = {name: menu[f"int{bits}-full"].penalty for name, menu in menus.layers.items()}
        assert sum(parts.values()) == pytest.approx(penalty, rel=1e-3)
        alone = {name: rounded(model, batch, [name], 4)[0] for name in parts}
        assert parts == pytest.approx(
            {name: penalty * one / sum(alone.values()) for name, one in alone.items()}, rel=1e-3
        )
    assert all(menu["prune80"].penalty == menu["dense"].penalty == 0 for menu in menus.layers.values())


def test_all_passes_drop_the_same_elements():
    """Other masks of dropout would move the gradient by more than its own length."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    (batch,) = vector_batches(1)
    menus = lograd.profile(model, [batch], cross_entropy, times=True, methods=["int8wa"]).menus
    _, clean = gradient_of(model, batch)
    assert (
        0
        < sum(menu["int8wa"].penalty for menu in menus.layers.values())
        < 0.01 * sum(float(one.square().sum()) for one in clean)
    )


@pytest.mark.parametrize("calls", [2, 13, 20])
def test_the_model_is_restored_when_the_loss_raises(calls, batch):
    model = conv_net()
    before, plain, left = state_of(model), [type(module) for module in model], [calls]

    def loss(output, target):
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("the user's own")
        return cross_entropy(output, target)

    with pytest.raises(RuntimeError, match="the user's own"):
        lograd.profile(model, [batch], loss, times=True, methods=["int8-full", "prune80"])
    assert equal_states(state_of(model), before)
    assert [type(module) for module in model] == plain
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_timed_is_refused():
    model, batches = mlp(), vector_batches(1)
    with pytest.raises(InvalidValue, match="methods are those to be timed; give times=True"):
        lograd.profile(model, batches, cross_entropy, methods=["int8-full"])
    with pytest.raises(InvalidType, match="times must be True or False"):
        lograd.profile(model, batches, cross_entropy, times=3)
    with pytest.raises(InvalidValue, match="'int9-full'"):
        lograd.profile(model, batches, cross_entropy, times=True, methods=["int9-full"])
    with pytest.raises(InvalidValue, match="measured on the CPU, and this model is on meta"):
        lograd.profile(mlp().to("meta"), batches, cross_entropy, times=True)
    with (
        lograd.attach(model, Plan.uniform("fp6")),
        pytest.raises(InvalidValue, match="times are measured on a plain model"),
    ):
        lograd.profile(model, batches, cross_entropy, times=True)


@pytest.mark.filterwarnings("ignore:NaN or infinite gradients")
def test_gradients_that_are_not_finite_are_not_timed():
    with pytest.warns(LogradWarning, match="times were not measured, since not all gradients are finite"):
        found = lograd.profile(mlp(), vector_batches(1), lambda y, t: cross_entropy(y, t) * torch.inf, times=True)
    assert found.menus is None


# -- models that are written in ways of their own --


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
        lograd.profile(Named(one), batches, cross_entropy, times=True, methods=["int4-full", "prune80"]).menus.layers
        for one in (False, True)
    )
    for layer, menu in named.items():
        for name, one in menu.items():
            expected = usual[layer][name]
            assert (one.input_noise, one.weight_noise) == (expected.input_noise, expected.weight_noise)
            assert one.penalty == pytest.approx(expected.penalty)
            assert min(one.forward, one.backward) > 0
    assert named["second"]["int4-full"].input_noise > 0


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
    profile = lograd.profile(Directions(), batches, cross_entropy, noise=1, times=True, methods=["int8-full"])
    assert profile.menus.layers["first"]["int8-full"].penalty == NOT_FINITE
    assert "first" not in profile.plan(objective="progress").layers
    assert "first" not in profile.plan(noise=0.5).layers


# -- settling --


SPARSITY = 0.9


def deep():
    torch.manual_seed(0)
    model, x, y = CifarResNet(14, 10, 4), torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    return model, lambda: cross_entropy(model(x), y)


def zeros_of(handle, loss):
    """Run a step and return the share of zeros in the first layer's gradient and the number of elements."""
    site = next(iter(next(iter(handle.layers.values())).gradient.sites.values()))
    before = site.counters.clone()
    loss().backward()
    handle.step()
    counted = (site.counters - before).tolist()
    return counted[0] / max(counted[4], 1), counted[4]


def test_zeros_are_those_asked_for_after_one_pass():
    model, loss = deep()
    with attached(model, Plan.uniform("prune90"), "dense") as handle:
        zeros_of(handle, loss)
        lagging, _ = zeros_of(handle, loss)
    with attached(model, Plan.uniform("prune90"), "dense") as handle:
        zeros_of(handle, loss)
        with settling(handle.layers, candidates(model)):
            settled, elements = zeros_of(handle, loss)
        after, _ = zeros_of(handle, loss)
    band = 4 * math.sqrt(SPARSITY * (1 - SPARSITY) / elements)
    assert abs(settled - SPARSITY) < band + 0.005  # histograms know magnitudes to a sixteenth
    assert lagging < SPARSITY - 0.05
    # The same thresholds with other random numbers, which change the noise that arrives.
    assert abs(after - SPARSITY) < abs(lagging - SPARSITY)


def test_gradients_without_a_law_leave_thresholds_alone():
    model, loss = deep()
    with attached(model, Plan.uniform("prune90"), "dense") as handle:
        zeros_of(handle, loss)
        before = [site.numbers.clone() for engine in handle.layers.values() for site in engine.gradient.sites.values()]
        with settling(handle.layers, candidates(model)):
            (loss() * 0.0).backward()
        after = [site.numbers for engine in handle.layers.values() for site in engine.gradient.sites.values()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
