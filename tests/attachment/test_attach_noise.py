"""Noise of pruning that explodes over depth is warned of, once, by what was measured."""

import warnings

import pytest
import torch
from torch import nn
from zoo import ZOO

import lograd
from experiments.models import CifarResNet
from lograd import Plan
from lograd.attachment import guard as amplifying
from lograd.errors import LogradWarning
from lograd.plan import LayerPlan
from lograd.treatments import recipe

EXPLODES = "noise of pruning explodes over the .* layers"


def deep(layers=60):
    """Linear layers in a row, with a gain that keeps the energy of a gradient: all noise adds up."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32)) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(32, 4)), torch.randn(64, 32)


def train(model, x, handle, steps, scales=None):
    for step in range(steps):
        model.zero_grad()
        scale, after = (1.0, None) if scales is None else scales[step : step + 2]
        (scale * model(x).square().mean()).backward()
        handle.step(loss_scale=after)


def warned(model, x, steps=12, plan="prune85", scales=None, **options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with lograd.attach(model, Plan.uniform(plan), backend="dense", **options) as handle:
            train(model, x, handle, steps, scales)
            explained = str(handle.explain())
    said = [str(one.message) for one in found if issubclass(one.category, LogradWarning)]
    return said, explained


def test_a_deep_chain_is_warned_of_once_and_explained():
    said, explained = warned(*deep(), steps=20)
    assert len(said) == 1
    for word in ("61 layers", "products='weight_gradient'", "less sparsity", "fewer layers", "attach(start=100)"):
        assert word in said[0]
    assert f"Warning: {said[0]}" in explained


@pytest.mark.parametrize("plan", ["identity/prune85", "fp6", "prune20"])
def test_nothing_is_said_where_noise_does_not_add_up(plan):
    said, explained = warned(*deep(), plan=plan)
    assert said == []
    assert "Warning" not in explained


def test_a_shallow_model_is_not_warned_of():
    assert warned(*deep(4), steps=20)[0] == []


def test_a_residual_network_is_not_warned_of():
    torch.manual_seed(0)
    every, x = LayerPlan.of(recipe("prune85")), torch.randn(16, 3, 32, 32)
    model, labels = CifarResNet(20), torch.randint(100, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with lograd.attach(model, Plan(kept={"fc": "the last layer"}, every=every), backend="dense") as handle:
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
            handle.step()


def test_mobilenet_is_warned_of():
    torch.manual_seed(0)
    model, inputs = ZOO["mobilenet_v2"]()
    with lograd.attach(model, Plan.uniform("prune85"), backend="dense") as handle, pytest.warns(match=EXPLODES):
        train(model, inputs["x"], handle, 9)


def test_another_loss_scale_is_no_growth():
    scales = [2.0 ** (4 * step) for step in range(13)]
    said, _ = warned(*deep(4), steps=12, scales=scales, loss_scale=1.0)
    assert said == []
    said, _ = warned(*deep(), steps=12, scales=[2.0**-step for step in range(13)], loss_scale=1.0)
    assert len(said) == 1


def test_a_loss_that_grows_is_no_noise():
    model, x = deep(4)
    with lograd.attach(model, Plan.uniform("prune85"), backend="dense") as handle:
        for step in range(8):
            model.zero_grad()
            (10.0**step * model(x).square().mean()).backward()
            handle.step()


def test_a_resumed_run_does_not_say_it_again():
    model, x = deep()
    handle = lograd.attach(model, Plan.uniform("prune85"), backend="dense")
    with pytest.warns(LogradWarning, match=EXPLODES):
        train(model, x, handle, 10)
    state, explained = handle.state_dict(), str(handle.explain())
    handle.remove()
    with lograd.attach(model, Plan.uniform("prune85"), backend="dense") as handle:
        handle.load_state_dict(state)
        assert str(handle.explain()) == explained
        train(model, x, handle, 3)


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
def test_compiled(monkeypatch):
    monkeypatch.setattr(amplifying, "LIMIT", 2.0)  # a few layers reach it, and compile quickly
    torch._dynamo.reset()
    model, x = deep(6)
    compiled = torch.compile(model, backend="aot_eager")
    with lograd.attach(model, Plan.uniform("prune90"), backend="dense") as handle, pytest.warns(match=EXPLODES):
        train(compiled, x, handle, 4)
