"""Every method in training: it acts, is counted, resumes to the same bits and compiles; then what single methods do."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from everyday import daily
from methods import EXAMPLES, NAMES, gradient
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Plan
from lograd.plan import LayerPlan
from lograd.treatments import OPERANDS, PRODUCTS, Interval, Quantize, apply, recipe

MODELS = {"conv": (conv_net, image_batches), "linear": (mlp, vector_batches)}
SOME = ("prune85", "fp6", "int6-full", "mxfp4-rht")
"""Zeros, fewer bits, whole numbers and a transform: those of every day where all would take minutes."""


def train(model, handle, batches, optimizer, wrap=lambda model: model):
    run = wrap(model)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(run(x), y).backward()
        optimizer.step()
        handle.step()


def start(kind, name):
    build, make_batches = MODELS[kind]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scale = 1.0 if name == "fp4-dynamic" else None
    return (
        model,
        optimizer,
        lograd.attach(model, Plan.uniform(name, keep=()), seed=5, loss_scale=scale),
        make_batches(6),
    )


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("name", "kind"),
    daily(
        [(name, kind) for name in NAMES for kind in MODELS],
        lambda row: row[0] in EXAMPLES if row[1] == "linear" else row[0] in SOME,
    ),
)
def test_training_acts_is_counted_and_resumes_to_the_same_bits(name, kind, tmp_path):
    model, optimizer, handle, batches = start(kind, name)
    train(model, handle, batches[:3], optimizer)
    torch.save([model.state_dict(), optimizer.state_dict(), handle.state_dict()], tmp_path / "run.pt")
    train(model, handle, batches[3:], optimizer)
    assert all(bool(weight.isfinite().all()) for weight in weights(model)) or name == "fp4-dynamic"
    count, sites = handle.counters().total, handle.counters().sites
    plan = LayerPlan.of(recipe(name))
    if plan.input_gradient.gradient or plan.weight_gradient.gradient:
        assert count.treated > 0
        assert count.elements > 0
    last = list(sites.values())[-1]  # the first layer needs no dX, and so no weights
    assert [name for name in last if "gradient" not in name.partition(".")[2] and "." in name] == (
        # Where the output's product has the same treatment, one site serves both products, and has the operand's name.
        [
            f"{product}.{operand}"
            for operand in ("weights", "activations")
            for product in PRODUCTS
            if operand in OPERANDS[product] and plan.site(product, operand) and not plan.shares(operand)
        ]
    )
    assert all(one.treated > 0 for one in last.values())
    assert str(handle.explain())
    handle.remove()

    again, again_optimizer, other, _ = start(kind, name)
    states = torch.load(tmp_path / "run.pt")
    for target, state in zip((again, again_optimizer, other), states, strict=True):
        target.load_state_dict(state)
    train(again, other, batches[3:], again_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(again), strict=True))

    plain, plain_optimizer, untreated, _ = start(kind, "identity")
    train(plain, untreated, batches, plain_optimizer)
    same = all(torch.equal(a, b) for a, b in zip(weights(model), weights(plain), strict=True))
    assert same == (name in ("identity", "rows-exact"))


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.parametrize("name", daily(NAMES, SOME))
def test_compiled_gives_the_bits_of_eager(name):
    found = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        model, optimizer, handle, batches = start("linear", name)
        train(model, handle, batches[:3], optimizer, wrap)
        handle.remove()
        found.append(weights(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# -- single methods --


def test_the_interval_starts_and_moves_as_the_paper_says():
    g = gradient(zeros=0.0).flatten()
    treatment = Interval(4, alpha=0.05)
    largest, target = float(g.abs().max()), 0.05 / 15

    def share(gamma):
        return float((g.abs() > gamma * largest).double().mean())

    gamma = treatment._search(g)
    assert share(gamma) > target >= share(gamma + 1e-3)
    model, optimizer, handle, batches = start("linear", "int4-interval")
    state = handle.layers["0"].gradient.sites["gradient"].memory
    before = []
    for batch in batches:
        train(model, handle, [batch], optimizer)
        before.append(float(state[0]))
    assert all(abs(abs(b - a) - 1e-3) < 1e-9 or a == b for a, b in pairwise(before))
    assert "gamma" in str(handle.explain())
    for broken in (0.0, math.nan):
        handle.model.zero_grad()
        (model(batches[0][0]).sum() * broken).backward()
        assert float(state[0]) == before[-1], "nothing to follow"
    handle.remove()


def test_atp_prunes_with_the_mean_of_the_last_thresholds():
    model, optimizer, handle, batches = start("linear", "atp80")
    product = handle.layers["0"].gradient.sites["gradient"]
    train(model, handle, batches, optimizer)
    state = product.memory.tolist()
    assert state[0] == 6
    assert all(threshold > 0 for threshold in state[1:])
    words = str(handle.explain())
    assert f"threshold {np.mean(state[1:]):.3g}" in words
    (model(batches[0][0]).sum() * math.nan).backward()
    assert product.memory.tolist() == state, "a broken gradient is not queued"
    product.rescale(4.0)
    assert product.memory.tolist() == [6, *(4 * one for one in state[1:])]
    handle.remove()


def test_dynamic_loss_scaling_sees_the_overflow_of_the_format():
    torch.manual_seed(0)
    model = mlp()
    with pytest.warns(lograd.errors.LogradWarning, match="is for a loss that a GradScaler scales"):
        lograd.attach(model, Plan.uniform("fp4-dynamic")).remove()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    handle = lograd.attach(model, Plan.uniform("fp4-dynamic"), loss_scale=scaler.get_scale())
    scales, before = [], weights(model)
    for x, y in vector_batches(14):
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        handle.step(loss_scale=scaler.get_scale())
        scales.append(scaler.get_scale())
        if len(scales) == 1:
            assert scales == [2.0**15], "1-3-0 ends at 16: a scale of 2^16 overflows"
            assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True)), "the step is skipped"
    assert scales[-1] < 2.0**9
    assert scales[-1] == scales[-2], "and a scale is found"
    assert handle.counters().total.clipped > 0
    handle.remove()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_overflow_begins_where_the_format_ends(rounding):
    treatment = Quantize("1-3-0", "2^0", rounding, "infinity")
    values = torch.tensor([16.0, 23.9, 24.0, 24.1, 32.0, -40.0, 3.0])
    found = apply((treatment,), values).result
    limit = 24.0 if rounding == "nearest" else 16.001
    assert torch.equal(found.isinf(), values.abs() >= limit)
    assert float(found[5]) == -math.inf


def test_static_loss_scaling_is_one_scale_for_all():
    g = gradient()
    scaled = lograd.ops.quantize(g * 2.0**13, lograd.FloatFormat(3, 0)) / 2.0**13
    assert torch.equal(apply(recipe("fp4-static13").input_gradient.gradient, g).result, scaled)


def test_common_cosine_is_solved_over_the_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    handle = lograd.attach(model, Plan.uniform("prune80-cosine"), refresh=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(512, 32, generator=generator), torch.randint(0, 10, (512,), generator=generator)) for _ in range(8)
    ]
    train(model, handle, batches, optimizer)
    predicted = [one.predictions(1.0)["gradient"] for one in handle.gradients.values()]
    assert np.ptp([one.cosine for one in predicted]) < 0.02
    work = [512 * layer.weight.numel() for layer in model if isinstance(layer, nn.Linear)]
    assert np.average([one.sparsity for one in predicted], weights=work) == pytest.approx(0.8, abs=2e-3)
    assert np.ptp([one.sparsity for one in predicted]) > 0.01, "layers differ, and so do their shares"
    again = lograd.attach(copy_of(model, handle), Plan.uniform("prune80-cosine"), refresh=1)
    again.load_state_dict(handle.state_dict())
    assert [one.allotted for one in again.gradients.values()] == [one.allotted for one in handle.gradients.values()]
    handle.remove()
    again.remove()


def copy_of(model, handle):
    with pytest.warns(lograd.errors.LogradWarning):
        return copy.deepcopy(model)


def test_operands_are_treated_in_the_backward_alone():
    torch.manual_seed(0)
    layer, x = nn.Linear(40, 30), torch.randn(50, 40, requires_grad=True)
    with lograd.attach(layer, Plan.uniform("saw80")):
        y = layer(x)
        g = torch.randn_like(y)
        y.backward(g)
    assert torch.equal(y, nn.functional.linear(x, layer.weight, layer.bias))
    (top,) = recipe("saw80").input_gradient.weights
    assert torch.equal(x.grad, g @ apply((top,), layer.weight.detach()).result)
    assert torch.equal(layer.weight.grad, g.T @ apply((top,), x.detach()).result)
