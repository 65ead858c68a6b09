"""Attached models and sparse layers under torch.func, forward-mode AD, batched gradients, tracing and export."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from networks import Conv1D
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap

import lograd
from lograd import InvalidValue, Plan
from lograd.engine.autograd import DoubleBackward
from lograd.errors import LogradWarning

IDENTITY = Plan.uniform("identity")
LAYERS = 4


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"), nn.Tanh(), nn.ConvTranspose2d(8, 2, 3, bias=False), nn.Flatten(),
        nn.Linear(2 * 64, 7), nn.Tanh(), Conv1D(5, 7),
    )  # fmt: skip


def data(size=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 6, 6, generator=generator), torch.randint(0, 5, (size,), generator=generator)


def detached(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def loss_of(model):
    return lambda parameters, x, t: F.cross_entropy(functional_call(model, parameters, (x,)), t)


def loss_of_one(model):
    return lambda parameters, x, t: F.cross_entropy(functional_call(model, parameters, (x[None],)), t[None])


def per_sample(model):
    return vmap(grad(loss_of_one(model)), (None, 0, 0))(detached(model), *data())


def stacked():
    parameters, _ = stack_module_state([network(seed) for seed in range(3)])
    return {name: parameter.detach() for name, parameter in parameters.items()}


def batched_gradients(model):
    y = model(data()[0])
    g = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad(y, list(model.parameters()), g, is_grads_batched=True)


def dual(model):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(data()[0], torch.ones(4, 3, 6, 6)))).tangent


WAYS = {
    "grad": (lambda model: grad(loss_of(model))(detached(model), *data()), 1),
    "grad, compiled": (
        lambda model: torch.compile(grad(loss_of(model)), backend="aot_eager")(detached(model), *data()),
        1,
    ),
    "per-sample gradients": (per_sample, 4),
    "gradient of a vmap": (
        lambda model: grad(lambda p: vmap(loss_of_one(model), (None, 0, 0))(p, *data()).mean())(detached(model)),
        1,
    ),
    "vjp": (lambda model: vjp(model, data()[0])[1](torch.ones(4, 5)), 1),
    "jacrev": (lambda model: jacrev(lambda p: functional_call(model, p, (data()[0][:1],)))(detached(model)), 5),
    "jvp by input": (lambda model: jvp(model, (data()[0],), (torch.ones(4, 3, 6, 6),)), 0),
    "jvp by parameters": (
        lambda model: jvp(lambda p: functional_call(model, p, (data()[0],)), (detached(model),), (detached(model),)),
        0,
    ),
    "jacfwd": (lambda model: jacfwd(model)(data()[0][:1]), 0),
    "linearize": (lambda model: linearize(model, data()[0])[1](data()[0]), 0),
    "batched gradients": (batched_gradients, 3),
    "jacobian, vectorized": (
        lambda model: torch.autograd.functional.jacobian(model, data()[0][:1], vectorize=True),
        5,
    ),
    "dual numbers": (dual, 0),
}
MANY = {
    "gradients of each of several models": lambda model: vmap(grad(loss_of(model)), (0, None, None))(
        stacked(), *data()
    ),
    "gradient of the sum of several models": lambda model: grad(
        lambda p, x, t: vmap(loss_of(model), (0, None, None))(p, x, t).sum()
    )(stacked(), *data()),
}


def assert_close(first, second):
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(first), leaves(second), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")
@pytest.mark.parametrize("way", WAYS | MANY)
def test_identity_gives_what_the_plain_model_gives(way):
    compute, passes = (WAYS | {name: (many, 3) for name, many in MANY.items()})[way]
    torch._dynamo.reset()
    expected = compute(network())
    model = network()
    with lograd.attach(model, IDENTITY) as handle:
        assert_close(compute(model), expected)
        assert handle.counters().total.passes == LAYERS * passes


@pytest.mark.parametrize("backend", ["dense", "sparse"])
@pytest.mark.parametrize("plan", ["fp4", "prune80", "prune80+fp6", "int4"])
def test_each_sample_of_a_vmap_is_one_gradient(plan, backend):
    """The gradients, counters and random numbers of a loop over the samples."""

    def trained():
        model = network()
        handle = lograd.attach(model, Plan.uniform(plan), backend=backend)
        F.cross_entropy(model(data()[0]), data()[1]).backward()
        handle.step()
        return model, handle

    def keys(handle):
        return [layer.gradient.sites["gradient"].key.tolist() for layer in handle.layers.values()]

    model, handle = trained()
    got, counters, keys_after = per_sample(model), handle.counters(), keys(handle)
    model, handle = trained()
    before = keys(handle)
    head = list(detached(model))[-1]  # before other layers' noise comes in, forwards being equal only nearly
    each = [grad(loss_of_one(model))(detached(model), x, t) for x, t in zip(*data(), strict=True)]
    torch.testing.assert_close(got[head], torch.stack([one[head] for one in each]), rtol=1e-4, atol=1e-6)
    assert counters.total.treated == handle.counters().total.treated == 4 * LAYERS
    assert counters.total.elements == handle.counters().total.elements
    assert keys_after == keys(handle) != before


def test_batched_gradients_are_treated_one_by_one_with_their_own_numbers():
    layer, x = nn.Linear(6, 5), torch.randn(64, 6, requires_grad=True)
    g = torch.randn(64, 5).expand(3, 64, 5)

    def ready():
        handle = lograd.attach(layer, Plan.uniform("prune80"), seed=5)
        layer(x).square().sum().backward()
        handle.step()
        return handle

    with ready() as handle:
        (together,) = torch.autograd.grad(layer(x), layer.weight, g, is_grads_batched=True)
        counters = handle.counters()
    with ready() as handle:
        single = [torch.autograd.grad(layer(x), layer.weight, one)[0] for one in g]
        assert handle.counters() == counters
    assert torch.equal(together, torch.stack(single))
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("second", ["hessian", "gradient of a gradient", "jvp of a gradient", "create_graph"])
def test_second_derivatives_are_refused_in_one_sentence(second):
    model, x = network(), data()[0]

    def energy(x):
        return model(x).square().sum()

    asked = {
        "hessian": lambda: hessian(energy)(x),
        "gradient of a gradient": lambda: grad(lambda x: grad(energy)(x).square().sum())(x),
        "jvp of a gradient": lambda: jvp(grad(energy), (x,), (x,)),
        "create_graph": lambda: torch.autograd.grad(energy(x.requires_grad_()), x, create_graph=True),
    }[second]
    with lograd.attach(model, IDENTITY), pytest.raises(DoubleBackward, match="cannot be differentiated again"):
        asked()


def test_a_whole_graph_of_a_transform_is_refused_in_one_sentence():
    model = network()
    torch._dynamo.reset()
    with (
        lograd.attach(model, IDENTITY),
        pytest.raises(RuntimeError, match=r"under torch\.func an attached or sparse layer runs eagerly"),
    ):
        torch.compile(grad(loss_of(model)), backend="eager", fullgraph=True)(detached(model), *data())


# -- what writes the forward down --


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", ["trace", "export"])
def test_a_traced_or_exported_model_is_plain_and_says_so(way):
    model, x = network(), data()[0]

    def made():
        return torch.jit.trace(model, x) if way == "trace" else torch.export.export(model, (x,)).module()

    expected = made()(x)  # on some machines a traced convolution is rounded otherwise than an eager one
    assert torch.allclose(expected, model(x), rtol=1e-5, atol=1e-6)
    with lograd.attach(model, IDENTITY) as handle:
        with pytest.warns(LogradWarning, match="is a plain model"):
            found = made()
        assert torch.equal(found(x), expected)
        found(x).sum().backward()
        assert handle.counters().total.passes == 0
        model(x).sum().backward()
        assert handle.counters().total.passes == LAYERS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_is_refused_with_what_works():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), torch.randn(4, 6)
    with lograd.attach(model, IDENTITY) as handle:
        with pytest.raises(InvalidValue, match=r"script copy\.deepcopy\(model\), which is plain"):
            torch.jit.script(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogradWarning)
            scripted = torch.jit.script(copy.deepcopy(model))
        assert torch.equal(scripted(x), model(x))
        model(x).sum().backward()
        assert handle.counters().total.passes == 1
