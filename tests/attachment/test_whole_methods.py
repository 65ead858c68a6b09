"""Whole methods in one table: integer = simulated, resumed, compiled, checkpointed, under autocast, in two processes.

A family of recipes joins by standing in `FULL_RECIPES`; its example is tested here without a further word.
"""

import pytest
import torch
from everyday import daily
from torch import nn
from torch.utils.checkpoint import checkpoint

import lograd
from lograd import Plan
from lograd.treatments import FULL_RECIPES

pytestmark = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")

NAMES = [
    *(entry.example for entry in FULL_RECIPES), "luq4-hindsight", "luq4-smp2-hindsight", "int4-full-po2",
    "int4wa-clips", "int4wa-lsq", "mxfp4-full-ht", "int4-squared", "int4-cosine",
]  # fmt: skip


STATISTICAL = ("int4-squared", "int4-cosine")
"""Those with scales from the statistics of an earlier step, and a plain forward."""


def plan(name):
    return Plan.uniform(name, keep=())


def network():
    """One convolution and two linear layers, whose sums are of whole blocks."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 64),
    )  # fmt: skip


def batch(step):
    return torch.randn(64, 8, 4, 4, generator=torch.Generator().manual_seed(step))


def train(model, handle, steps, call=None, start=0):
    learned = list(handle.parameters())
    optimizer = torch.optim.SGD([*model.parameters(), *learned], lr=0.05)
    for step in range(start, start + steps):
        optimizer.zero_grad()
        (call or model)(batch(step)).square().mean().backward()
        optimizer.step()
        handle.step()
    return [value.clone() for value in model.state_dict().values()]


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_integer_products_are_the_simulated_ones_up_to_rounding(name):
    found = []
    for backend in ("dense", "integer"):
        model = network()
        layer, g = model[6], torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        with lograd.attach(layer, plan(name), seed=2, backend=backend) as handle:
            for _ in range(2):  # ranges in hindsight have something to look back on
                x.grad = None
                layer.zero_grad()
                y = layer(x)
                y.backward(g)
                handle.step()
        found.append([y.detach(), x.grad, *gradients(layer)])
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= 3e-6 * float(a.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_goes_on_to_the_same_bits(name):
    model = network()
    with lograd.attach(model, plan(name), seed=2, backend="integer") as handle:
        train(model, handle, 2)
        state, weights = handle.state_dict(), {key: one.clone() for key, one in model.state_dict().items()}
        expected = train(model, handle, 2, start=2)
    again = network()
    again.load_state_dict(weights)
    with lograd.attach(again, plan(name), backend="integer") as handle:
        handle.load_state_dict(state)
        found = train(again, handle, 2, start=2)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.parametrize(
    "name", daily([name for name in NAMES if name not in STATISTICAL], ["luq4", "fqt5-bhq", "mxfp4-full-ht"])
)
def test_compiled_gives_the_bits_of_eager(name):
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = network()
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with lograd.attach(model, plan(name), seed=1, backend="integer") as handle:
            found.append((train(model, handle, 2, call), handle.counters()))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_gives_the_same_gradients(name):
    """In the first step that is treated: later ones look back on ranges of two forwards."""
    found = []
    for checkpointed in (False, True):
        model = network()
        x = batch(0).requires_grad_()
        with lograd.attach(model, plan(name), seed=1, backend="integer") as handle:
            for _ in range(2 if name in STATISTICAL else 1):
                x.grad = None
                model.zero_grad()
                y = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
                y.square().mean().backward()
                handle.step()
        found.append([x.grad, *gradients(model)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_rounds_what_it_narrows(name):
    model, plain = network(), network()
    with lograd.attach(model, plan(name), seed=1, backend="integer") as handle:
        for _ in range(2):  # those that take numbers from statistics begin with the second step
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                y = model(batch(0))
            y.float().square().mean().backward()
            handle.step()
        assert handle.counters().total.treated > 0 or name.startswith("int4wa")
        assert "the tensors are bfloat16" in str(handle.explain()) or name in STATISTICAL
    assert y.dtype == torch.bfloat16
    plain(batch(0)).square().mean().backward()
    a, b = (torch.cat([one.flatten() for one in gradients(each)]) for each in (model, plain))
    assert float(nn.functional.cosine_similarity(a, b, 0)) > 0.8
