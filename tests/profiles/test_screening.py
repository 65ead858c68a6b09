"""The first look at times: which layers it treats, when it ends, and what it leaves for the search."""

import pytest
import torch
from torch import nn

import lograd
from lograd.attachment.travel import Bound, travel_of
from lograd.profiles import screening
from lograd.profiles.methods import method
from lograd.profiles.screening import screen
from lograd.profiles.timing import Times


def make(normalized=False, frozen=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if normalized else []
    model = nn.Sequential(nn.Linear(8, 8), *middle, nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    if frozen:
        model[0].requires_grad_(False)
    return model, lambda: model(torch.randn(16, 8)).square().mean()


@pytest.fixture
def planted(monkeypatch):
    """Seconds of a layer by method, and of whole steps; the names of what was timed."""
    timed = []

    def plant(layer, whole):
        def keep(timer, name, times):
            timed.append(name)
            share = layer.get(name, layer["dense"])
            found = {one: type(seconds)(share / 2, share / 2) for one, seconds in times.layers.items()}
            step = whole.get(name, whole["dense"]) if times.step < float("inf") else times.step
            timer.times[name] = Times(step, found).least(timer.times.get(name))

        monkeypatch.setattr(screening.Timer, "_keep", keep)
        return timed

    return plant


def look(model, loss, keep=(), least=0.03):
    return screen(model, loss, ("dense", "int8", "prune95"), keep, least)


def test_layers_that_no_gradient_reaches_are_not_looked_at(planted):
    planted({"dense": 1.0, "int8": 0.5}, {"dense": 3.0, screening.FASTEST: 2.0})
    model, loss = make(frozen=True)
    found = look(model, loss)
    assert list(found.timed.layers["dense"]) == ["2", "4"]
    assert list(found.timed.layers["int8"]) == ["2", "4"]


@pytest.mark.parametrize(
    ("keep", "open_layers"), [(("first",), ["2", "4"]), (("last",), ["0", "2"]), ((), ["0", "2", "4"])]
)
def test_kept_layers_are_dense_in_the_fastest_plan(planted, keep, open_layers):
    planted({"dense": 1.0, "int8": 0.5}, {"dense": 3.0, screening.FASTEST: 2.0})
    found = look(*make(), keep)
    assert list(found.timed.layers["int8"]) == open_layers
    assert found.gain == pytest.approx(1 / 3)


def test_it_ends_where_layers_save_too_little(planted):
    timed = planted({"dense": 1.0, "int8": 0.94}, {"dense": 100.0})
    found = look(*make())
    assert screening.FASTEST not in timed
    assert 0 < found.gain < 0.03


def test_a_model_that_normalizes_is_timed_as_a_whole_where_layers_save_little(planted):
    switched = f"{screening.FASTEST} with normalization"
    timed = planted({"dense": 1.0, "int8": 0.9}, {"dense": 100.0, screening.FASTEST: 99.7, switched: 90.0})
    found = look(*make(normalized=True))
    assert switched in timed
    assert found.gain == pytest.approx(0.1)
    assert found.timed.extras == {"normalization": pytest.approx(9.7)}


def test_where_no_layer_is_faster_normalization_is_not_looked_for(planted):
    timed = planted({"dense": 1.0}, {"dense": 100.0})
    assert look(*make(normalized=True)).gain == 0
    assert screening.FASTEST not in timed


def test_nothing_is_found_without_a_finite_gradient():
    model, _ = make()
    assert look(model, lambda: model(torch.full((4, 8), float("nan"))).sum()) is None


def test_a_plan_that_treats_no_gradient_has_a_guard_all_the_same():
    batches = [(torch.randn(16, 8), torch.randn(16, 2)) for _ in range(4)]
    model, _ = make()
    found = lograd.profile(model, batches, nn.functional.mse_loss, noise=1, times=True, methods=["int8"])
    plan = found.plan(objective="progress")
    forward = lograd.Plan({"2": method("int8-forward").plan}, expected=plan.expected)
    assert isinstance(travel_of(forward, []), Bound)
    with lograd.attach(model, forward, guard=True) as handle:
        model(batches[0][0]).square().mean().backward()
        handle.step()
        assert handle.guard.waiting == []


class Pictures(nn.Module):
    """Convolutions; what reads the last may ask for one layout."""

    def __init__(self, reads=""):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
        self.reads = reads

    def forward(self, x):
        y = self.layers(x)
        if self.reads == "check" and not y.is_contiguous():
            raise ValueError("planes are needed")
        return y.view(len(y), -1) if self.reads == "view" else y.flatten(1)


def looked(model, names=("dense", "int8"), keep=()):
    x = torch.randn(2, 8, 9, 9)
    return screen(model, lambda: model(x).square().mean(), names, keep, 0.03)


NATIVE = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")


@NATIVE
@pytest.mark.parametrize(("seconds", "expected"), [(0.9, True), (0.98, False), (1.1, False)])
def test_a_layout_is_taken_where_it_is_faster_by_more_than_chance(planted, monkeypatch, seconds, expected):
    timed = planted({"dense": 1.0, "int8": 0.5}, {"dense": 1.0, screening.TURNED: seconds, screening.FASTEST: 0.5})
    plans = []
    real = screening.Timer.timing

    def timing(timer, name, *rest):
        plans.append((timer, name))
        return real(timer, name, *rest)

    monkeypatch.setattr(screening.Timer, "timing", timing)
    assert looked(Pictures()).turned is expected
    rounds = 1 if expected else 2
    assert timed[: 4 * rounds] == ([screening.AS_IT_IS] * 2 + [screening.TURNED] * 2) * rounds
    assert timed[4 * rounds] == "dense"
    used = {name: timer._plans[name].channels_last for timer, name in plans}
    assert used["int8"] is used[screening.FASTEST] is expected  # methods are timed in the layout of the plan


@NATIVE
@pytest.mark.parametrize("reads", ["view", "check"])
def test_a_model_that_does_not_run_in_a_layout_keeps_its_own(planted, reads):
    planted({"dense": 1.0}, {"dense": 1.0, screening.TURNED: 0.5})
    model = Pictures(reads)
    before = [(one.data_ptr(), one.stride()) for one in model.parameters()]
    found = looked(model)
    assert not found.turned
    assert found.shortest == 1
    assert type(model.layers[0]) is nn.Conv2d
    assert [(one.data_ptr(), one.stride()) for one in model.parameters()] == before


class Unlucky(Exception):
    """An error of the user's own."""


@NATIVE
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("trial", [screening.TURNED, screening.PLAIN_TURNED])
def test_an_error_of_the_loss_in_a_trial_of_a_layout_is_raised_as_it_is(planted, monkeypatch, trial, lasting):
    planted({"dense": 1.0, "int8": 0.5}, {"dense": 3.0, screening.FASTEST: 2.0})
    model, errors, tried = Pictures(), [], []
    before = [(one.data_ptr(), one.stride()) for one in model.parameters()]
    real = screening.Timer.timing

    def timing(timer, name, *rest):
        tried.append(name)
        return real(timer, name, *rest)

    def loss():
        if trial in tried and (lasting or not errors):
            errors.append(Unlucky("no luck"))
            raise errors[-1]
        return model(x).square().mean()

    monkeypatch.setattr(screening.Timer, "timing", timing)
    x = torch.randn(2, 8, 9, 9)
    with pytest.raises(Unlucky) as caught:
        screen(model, loss, ("dense", "int8"), (), 0.03)
    assert caught.value is errors[0]
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert type(model.layers[0]) is nn.Conv2d
    assert [(one.data_ptr(), one.stride()) for one in model.parameters()] == before


def test_layouts_are_timed_for_convolutions_in_integers_alone(planted):
    timed = planted({"dense": 1.0}, {"dense": 1.0})
    looked(Pictures(), ("dense", "prune95"))
    looked(nn.Sequential(nn.Flatten(), nn.Linear(648, 4)))
    looked(Pictures(), keep=("layers.*",))
    assert screening.AS_IT_IS not in timed


def test_weights_lie_channels_last_for_a_while():
    model = Pictures()
    nn.utils.parametrizations.weight_norm(model.layers[2])  # its weight is computed, and left alone
    before = [(one.data_ptr(), one.stride()) for one in model.parameters()]
    x, plain = torch.randn(2, 8, 9, 9), model.layers[0]

    def broken():
        with screening.weights_channels_last(model):
            assert plain.weight.is_contiguous(memory_format=torch.channels_last)
            assert plain(x).is_contiguous(memory_format=torch.channels_last)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert [(one.data_ptr(), one.stride()) for one in model.parameters()] == before


@NATIVE
@pytest.mark.parametrize(("seconds", "shortest"), [(2.5, 2.5 / 3), (2.95, 1.0), (9.0, 1.0)])
def test_a_gain_is_that_over_dense_in_the_better_layout(planted, seconds, shortest):
    planted({"dense": 1.0, "int8": 0.5}, {"dense": 3.0, screening.FASTEST: 2.0, screening.PLAIN_TURNED: seconds})
    found = looked(Pictures())
    assert found.shortest == pytest.approx(shortest)
    assert found.gain == pytest.approx(1 - 2 / (3 * shortest))
    planted({"dense": 1.0, "int8": 0.5}, {"dense": 3.0, screening.FASTEST: 2.0, screening.PLAIN_TURNED: seconds})
    assert looked(Pictures().to(memory_format=torch.channels_last)).shortest == 1
