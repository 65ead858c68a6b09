"""Sparse products under attach: the same gradients as dense ones, the same counts, and a choice that is kept."""

import pytest
import torch
from everyday import daily
from networks import Conv1D, conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Plan
from lograd.engine.backends import choice as choosing
from lograd.engine.backends import sparse as multiplying
from lograd.engine.backends.choice import DENSE, SPARSE, UNDECIDED
from lograd.plan import LayerPlan
from lograd.treatments import ProductPlan, recipe

pytestmark = pytest.mark.skipif(not lograd.native.status().available, reason="sparse kernels are native")


def layers():
    return {
        "linear": (nn.Linear(40, 33), torch.randn(70, 40)),
        "linear of a sequence": (nn.Linear(24, 17, bias=False), torch.randn(5, 9, 24)),
        "linear, column-major": (nn.Linear(24, 17), torch.randn(24, 50).t()),
        "Conv1D": (Conv1D(17, 24), torch.randn(5, 9, 24)),
        "conv2d": (nn.Conv2d(9, 20, 3, padding=1), torch.randn(4, 9, 11, 13)),
        "conv2d channels last, stride": (
            nn.Conv2d(16, 8, 3, 2, 1).to(memory_format=torch.channels_last),
            torch.randn(4, 16, 12, 12).to(memory_format=torch.channels_last),
        ),
        "conv2d grouped, dilated": (nn.Conv2d(16, 6, 3, dilation=2, groups=2, bias=False), torch.randn(3, 16, 9, 9)),
        "conv2d one sample": (nn.Conv2d(8, 6, 5), torch.randn(8, 9, 9)),
        "conv1d": (nn.Conv1d(12, 6, 3, padding=2), torch.randn(3, 12, 30)),
    }


PLANS = {
    "prune85": Plan.uniform("prune85"),
    "prune, then fp6": Plan.uniform("prune80+fp6"),
    "top-k": Plan.uniform("topk80"),
    "another for dW": Plan.uniform("prune70/prune90"),
    "dW alone": Plan.uniform("identity/prune85"),
    "dX alone, dW rounded": Plan.uniform("prune85/fp6"),
    "pruned operands": Plan(
        every=LayerPlan(
            input_gradient=recipe("prune80").input_gradient,
            weight_gradient=ProductPlan(
                recipe("prune80").weight_gradient.gradient, activations=recipe("topk50").weight_gradient.gradient
            ),
        )
    ),
}


def gradients(layer, x, plan, backend, context=None):
    """Of a backward that is treated, after one that takes statistics; and the counts."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    found = []
    with lograd.attach(layer, plan, seed=3, backend=backend) as handle:
        for _ in range(2):
            x.grad = None
            layer.zero_grad()
            with context or torch.autocast("cpu", enabled=False):
                y = torch.relu_(layer(x))
            y.float().square().sum().backward()
            handle.step()
        found = [x.grad, *(parameter.grad for parameter in layer.parameters() if parameter.grad is not None)]
        modes = {one.mode for one in handle.layers[""].choices.values()}
        return found, handle.counters().total, modes, str(handle.explain())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", layers())
def test_sparse_products_are_the_dense_ones_up_to_summation(name, plan):
    torch.manual_seed(0)
    layer, x = layers()[name]
    dense, dense_count, none, words = gradients(layer, x, PLANS[plan], "dense")
    sparse, count, modes, sparse_words = gradients(layer, x, PLANS[plan], "sparse")
    assert (none, modes) == (set(), {SPARSE})
    assert "dense products: asked for" in words
    assert "sparse products" in sparse_words
    assert count == dense_count
    assert count.sparsity > (0.3 if "alone" in plan else 0.5)
    for a, b in zip(dense, sparse, strict=True):
        assert a.stride() == b.stride()
        assert torch.allclose(a, b, rtol=1e-4, atol=2e-5 * float(a.abs().max()))


@pytest.mark.parametrize("context", [torch.autocast("cpu", torch.bfloat16), None])
def test_sixteen_bits(context):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(16, 12, 3, padding=1), torch.randn(4, 16, 10, 10)
    if context is None:
        layer, x = layer.bfloat16(), x.bfloat16()
    dense, dense_count, _, _ = gradients(layer, x, PLANS["prune85"], "dense", context)
    sparse, count, _, _ = gradients(layer, x, PLANS["prune85"], "sparse", context)
    assert count == dense_count
    for a, b in zip(dense, sparse, strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2 * float(a.abs().max()))


# -- the choice --


@pytest.fixture
def times(monkeypatch):
    """Instead of a clock: what is faster is said here."""
    said = {"dense": 2.0, "sparse": 1.0, "asked": 0}

    def faster(dense, sparse):
        said["asked"] += 1
        dense(), sparse()
        return choosing.Times(said["dense"], said["sparse"])

    monkeypatch.setattr(multiplying, "timed", faster)
    monkeypatch.setattr(choosing, "LEAST_WORK", 0)
    return said


def run(model, handle, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        handle.step()


@pytest.mark.parametrize("winner", [DENSE, SPARSE])
def test_the_faster_way_is_taken_and_explained(times, winner):
    if winner == DENSE:
        times["dense"] = 0.5
    model = conv_net()
    with lograd.attach(model, Plan.uniform("prune80"), backend="auto") as handle:
        run(model, handle, image_batches(6))
        assert not handle.layers["0"].choices, "one input channel"
        assert [handle.layers[name].choices["gradient"].mode for name in ("3", "7")] == [winner, winner]
        explained = handle.explain().layers
        assert "dense products: 1 input channel in" in explained["0"]
        assert "sparse 1.00 ms at" in explained["3"]
        assert f"dense products of the same treated operands {times['dense']:.2f} ms" in explained["3"]
        assert times["asked"] >= 2


def test_more_zeros_are_a_reason_to_time_again(times):
    times["dense"] = 0.5
    model = conv_net()
    with lograd.attach(model, Plan.uniform("prune80")) as handle:
        run(model, handle, image_batches(8))
        choice = handle.layers["3"].choices["gradient"]
        before = times["asked"]
        choice.reconsider(choice.times.zeros + 0.05)
        choice.reconsider(choice.times.zeros - 0.5)
        assert choice.mode == DENSE, "fewer zeros speak for dense products all the more"
        choice.reconsider(choice.times.zeros + 0.15)
        assert choice.mode == UNDECIDED
        times["sparse"] = 0.1
        run(model, handle, image_batches(1))
        assert choice.mode == SPARSE
        assert times["asked"] > before


def test_a_resumed_run_goes_the_same_way(times, monkeypatch):
    monkeypatch.setattr(choosing, "CHANGE", 1.0)  # the zeros of eighty elements change from step to step
    batches = image_batches(8)
    model = conv_net()
    handle = lograd.attach(model, Plan.uniform("prune80"), seed=1)
    run(model, handle, batches[:4])
    state, weights = handle.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
    run(model, handle, batches[4:])
    handle.remove()
    times["dense"] = 0.1  # now dense products would win
    again = conv_net()
    again.load_state_dict(weights)
    other = lograd.attach(again, Plan.uniform("prune80"), seed=1)
    other.load_state_dict(state)
    run(again, other, batches[4:])
    other.remove()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_state_fits_whatever_backend_was_asked_for(times):
    model = conv_net()
    handle = lograd.attach(model, Plan.uniform("prune80"))
    run(model, handle, image_batches(4))
    auto = handle.state_dict()
    assert "gradient.choice" in auto["layers"]["3"]
    handle.remove()
    with lograd.attach(model, Plan.uniform("prune80"), backend="dense") as handle:
        handle.load_state_dict(auto)
        dense = handle.state_dict()
    with lograd.attach(model, Plan.uniform("prune80"), backend="sparse") as handle:
        handle.load_state_dict(dense)
        assert handle.layers["3"].choices["gradient"].mode == SPARSE
    with lograd.attach(model, Plan.uniform("prune80")) as handle:
        handle.load_state_dict(dense)
        assert handle.layers["3"].choices["gradient"].mode == UNDECIDED


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.parametrize("plan", daily(["prune80", "prune70/prune90", "identity/prune80"], ["identity/prune80"]))
def test_compiled_gives_the_bits_of_eager(plan):
    found = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
        run_model, x = wrap(model), torch.randn(8, 8, 6, 6)
        with lograd.attach(model, Plan.uniform(plan), backend="sparse") as handle:
            for _ in range(3):
                model.zero_grad()
                run_model(x).square().sum().backward()
                handle.step()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (lambda: nn.ConvTranspose2d(8, 8, 3), lambda: torch.randn(2, 8, 5, 5), "transposed"),
        (lambda: nn.Conv3d(8, 8, 3), lambda: torch.randn(2, 8, 5, 5, 5), "three dimensions"),
        (lambda: nn.Conv2d(8, 8, 3, groups=8), lambda: torch.randn(2, 8, 5, 5), "depthwise"),
    ],
)
def test_what_has_no_kernel_stays_dense_and_says_why(layer, x, reason):
    layer, x = layer(), x()
    dense, _, _, _ = gradients(layer, x, PLANS["prune85"], "dense")
    auto, _, modes, words = gradients(layer, x, PLANS["prune85"], "sparse")
    assert modes == set()
    assert f"dense products: {reason}" in words or reason in words
    assert all(torch.equal(a, b) for a, b in zip(dense, auto, strict=True))
