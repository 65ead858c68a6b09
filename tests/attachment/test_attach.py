"""Attach, layer by layer: unchanged bits where nothing is treated, exact counters where something is."""

import copy
import math

import pytest
import torch
from attached import IDENTITY, assert_same, caught, gradients_of, ready
from networks import Conv1D
from torch import nn

import lograd
from lograd import InvalidType, InvalidValue, Plan, ops
from lograd.engine.autograd import DoubleBackward, NotTransformed
from lograd.plan import LayerPlan
from lograd.treatments import ProductPlan, Prune, Quantize, recipe

FP4 = recipe("fp4").input_gradient.gradient


def columns(*shape):
    return torch.randn(*shape[::-1]).t()


LAYERS = {
    "linear 1d": (lambda: nn.Linear(6, 5), lambda: torch.randn(6)),
    "linear": (lambda: nn.Linear(6, 5), lambda: torch.randn(7, 6)),
    "linear, column-major": (lambda: nn.Linear(6, 5), lambda: columns(7, 6)),
    "linear 3d": (lambda: nn.Linear(6, 5), lambda: torch.randn(3, 7, 6)),
    "linear 4d": (lambda: nn.Linear(6, 5), lambda: torch.randn(2, 3, 7, 6)),
    "linear 3d with gaps": (lambda: nn.Linear(6, 5), lambda: torch.randn(7, 3, 6).transpose(0, 1)),
    "linear without bias": (lambda: nn.Linear(64, 33, bias=False), lambda: torch.randn(3, 70, 64)),
    "linear of one sample": (lambda: nn.Linear(6, 1), lambda: torch.randn(1, 6)),
    "Conv1D": (lambda: Conv1D(5, 6), lambda: torch.randn(3, 7, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), lambda: torch.randn(2, 4, 9)),
    "conv1d same, even kernel": (lambda: nn.Conv1d(4, 6, 4, padding="same"), lambda: torch.randn(2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), lambda: torch.randn(2, 4, 9, 9)),
    "conv2d channels last": (
        lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last),
    ),
    "conv2d one sample": (lambda: nn.Conv2d(4, 6, 3, bias=False), lambda: torch.randn(4, 9, 9)),
    "conv2d depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), lambda: torch.randn(2, 8, 9, 9)),
    "conv2d grouped, dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, groups=2), lambda: torch.randn(2, 4, 9, 9)),
    "conv2d same": (lambda: nn.Conv2d(4, 6, (3, 4), padding="same"), lambda: torch.randn(2, 4, 9, 9)),
    "conv2d valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), lambda: torch.randn(2, 4, 9, 9)),
    "conv2d circular": (
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
        lambda: torch.randn(2, 4, 9, 9),
    ),
    "conv2d reflect, same": (
        lambda: nn.Conv2d(4, 6, 4, padding="same", padding_mode="reflect"),
        lambda: torch.randn(2, 4, 9, 9),
    ),
    "conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=(1, 0, 1)), lambda: torch.randn(2, 2, 5, 5, 5)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), lambda: torch.randn(2, 4, 9)),
    "transposed 2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        lambda: torch.randn(2, 4, 5, 5),
    ),
    "transposed 2d one sample": (lambda: nn.ConvTranspose2d(4, 6, 3, bias=False), lambda: torch.randn(4, 5, 5)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 3, dilation=2), lambda: torch.randn(2, 2, 4, 4, 4)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("name", LAYERS)
def test_identity_changes_no_bit(name, precision):
    torch.manual_seed(0)
    model, x = (build() for build in LAYERS[name])
    context = None
    if precision == "bfloat16":
        model, x = model.bfloat16(), x.bfloat16()
    elif precision == "autocast":
        context = torch.autocast("cpu", torch.bfloat16)
    expected = gradients_of(model, x, context=context)
    with lograd.attach(model, IDENTITY) as handle:
        assert_same(gradients_of(model, x, context=context), expected)
        assert handle.counters().total.passes == 1
    assert_same(gradients_of(model, x, context=context), expected)
    assert handle.counters().total.passes == 1


@pytest.mark.parametrize("name", ["prune85", "fp6", "prune80+fp4", "int4"])
def test_treated_products_and_counters_equal_direct_computation(name):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, padding=1)
    x = torch.randn(8, 4, 9, 9)
    g = caught(layer, x, layer)
    handle = ready(layer, Plan.uniform(name), x, seed=11)
    product = handle.layers[""].gradient.sites["gradient"]
    key, before = product.key.clone(), handle.counters().total
    numbers = iter(product.numbers.tolist())

    _, d_x, d_weight, d_bias = gradients_of(layer, x)

    y, clipped = g, 0
    for place, treatment in enumerate(recipe(name).input_gradient.gradient):
        number, seed = next(numbers), int(key[0]) + place
        if isinstance(treatment, Prune):
            y, counts = ops.stochastic_prune(y, number, seed, 0, counted=True)
        else:
            y, counts = ops.quantize(y, treatment.format, number, "stochastic", seed, 0, counted=True)
        clipped += int(counts[2])
    expected = torch.ops.aten.convolution_backward(
        y, x, layer.weight, [6], (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, True, True)
    )
    assert_same([d_x, d_weight, d_bias], expected)
    count = handle.counters().total
    assert count.treated - before.treated == 1
    assert count.elements - before.elements == g.numel()
    assert count.zeros_before - before.zeros_before == int((g == 0).sum())
    assert count.zeros_after - before.zeros_after == int((y == 0).sum())
    new = (count.pruned - before.pruned) + (count.underflowed - before.underflowed)
    assert new == int(((y == 0) & (g != 0)).sum())
    assert count.clipped - before.clipped == clipped
    assert count.nan == 0
    handle.remove()


def test_products_may_differ_without_a_second_forward():
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 5), torch.randn(64, 6)
    plain = gradients_of(layer, x)
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    plan = Plan({"": LayerPlan(input_gradient=ProductPlan(FP4))})
    handle = ready(layer, plan, x)
    calls.clear()
    _, d_x, d_weight, d_bias = gradients_of(layer, x)
    assert len(calls) == 1
    assert not torch.equal(d_x, plain[1])
    assert_same([d_weight, d_bias], plain[2:])
    assert list(handle.counters().sites[""]) == ["input_gradient.gradient"]
    handle.remove()

    handle = ready(
        layer,
        Plan(
            {
                "": LayerPlan(
                    input_gradient=recipe("prune50").input_gradient, weight_gradient=recipe("fp4").weight_gradient
                )
            }
        ),
        x,
    )
    keys = [site.key[0].item() for site in handle.layers[""].sites.values()]
    assert len(set(keys)) == 2
    gradients_of(layer, x)
    products = handle.counters().sites[""]
    dX, dW = products["input_gradient.gradient"], products["weight_gradient.gradient"]
    assert dX.treated == dW.treated == 2
    assert dX.zeros_after != dW.zeros_after
    handle.remove()


def test_treatment_is_unbiased_in_the_mean():
    """The weight gradient over many draws: each has its own random numbers, and their mean is the plain one."""
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 5), torch.randn(256, 6)
    plain = gradients_of(layer, x)[2]
    handle = ready(layer, Plan.uniform("prune80"), x)
    draws = []
    for _ in range(200):
        draws.append(gradients_of(layer, x)[2])
        handle.step()
    draws = torch.stack(draws).double()
    error = (draws.mean(0) - plain).abs() / (draws.std(0) / math.sqrt(len(draws)))
    assert draws.std(0).min() > 0
    assert error.max() < 4.5
    handle.remove()


# -- randomness --


def test_random_numbers_depend_on_seed_layer_step_and_use():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)), torch.randn(64, 6)

    def run(seed):
        plain = copy.deepcopy(model)
        handle = ready(plain, Plan.uniform("fp4"), x, seed=seed)
        keys = [layer.gradient.sites["gradient"].key[0].item() for layer in handle.layers.values()]
        first, second = gradients_of(plain, x), gradients_of(plain, x)  # accumulation: two passes in one step
        handle.step()
        keys += [layer.gradient.sites["gradient"].key[0].item() for layer in handle.layers.values()]
        offsets = [layer.gradient.sites["gradient"].key[1].item() for layer in handle.layers.values()]
        handle.remove()
        assert len(set(keys)) == 4
        assert offsets == [0, 0]
        return first, second

    (a, b), (again, _), (other, _) = run(1), run(1), run(2)
    assert_same(a, again)
    assert not torch.equal(a[2], b[2])
    assert not torch.equal(a[2], other[2])


def test_a_shared_module_is_treated_at_both_uses():
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    model, x = nn.Sequential(shared, nn.Tanh(), shared), torch.randn(32, 6)
    expected = gradients_of(model, x)
    with lograd.attach(model, IDENTITY) as handle:
        assert_same(gradients_of(model, x), expected)
        assert list(handle.layers) == ["0"]
        assert handle.counters().total.passes == 2
    handle = ready(model, Plan({"2": LayerPlan.of(recipe("prune80"))}), x)
    gradients_of(model, x)
    assert handle.counters().layers["0"].treated == 4
    assert handle.layers["0"].gradient.sites["gradient"].key[1] >= 2 * 32 * 6, "each pass has its own numbers"
    handle.remove()


# -- odd layers, and what is refused --


def test_a_parametrized_layer_is_treated():
    model, x = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))), torch.randn(32, 6)
    expected = gradients_of(model, x)
    with lograd.attach(model, IDENTITY) as handle:
        assert_same(gradients_of(model, x), expected)
        assert handle.counters().total.passes == 1


@pytest.mark.parametrize("frozen", [False, True])
def test_a_computed_weight_is_computed_as_often_as_without(frozen):
    """Each look at a weight under spectral_norm changes its buffers."""

    def buffers(attached):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)) for _ in range(2)))
        model.requires_grad_(not frozen)
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if attached:
            handle = lograd.attach(model, IDENTITY)
            assert all(torch.equal(tensor, start[name]) for name, tensor in model.state_dict().items())
        x = torch.randn(3, 4)
        for _ in range(2):
            loss = model(x).square().sum()
            if not frozen:
                loss.backward()
        with torch.no_grad():
            model(x)
        if attached:
            assert handle.counters().total.passes == 4 * (not frozen)
            handle.remove()
        return model.state_dict()

    plain, treated = buffers(False), buffers(True)
    assert all(torch.equal(plain[name], treated[name]) for name in plain)


def test_second_derivatives_are_refused():
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with lograd.attach(model, IDENTITY), pytest.raises(DoubleBackward, match="cannot be differentiated again"):
        torch.autograd.grad(model(x).square().sum(), x, create_graph=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, of jvp
def test_transforms_of_torch_func_are_refused():
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with lograd.attach(model, IDENTITY):
        for transform in (
            lambda: torch.func.grad(lambda one: model(one).sum())(x.detach()),
            lambda: torch.func.vmap(model)(x.detach()),
            lambda: torch.func.jvp(model, (x.detach(),), (x.detach(),)),
            lambda: torch.autograd.grad(model(x), x, torch.randn(2, 2, 3), is_grads_batched=True),
        ):
            with pytest.raises(NotTransformed, match=r"torch\.func"):
                transform()
    assert torch.func.vmap(model)(x.detach()).shape == (2, 3)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore:a copy or pickle of an attached")
def test_traced_and_exported_models_are_plain():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    plain = model(x)
    with lograd.attach(model, Plan.uniform("int8-full")):
        assert torch.equal(torch.jit.trace(model, (x,), check_trace=False)(x), plain)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), plain)


def test_what_cannot_work_is_refused_in_one_sentence():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    layer = LayerPlan.of((Quantize("1-4-1"),))
    cases = [
        (InvalidType, lambda: lograd.attach("model", IDENTITY), "model must be a torch.nn.Module"),
        (InvalidType, lambda: lograd.attach(model, "fp6"), r"plan must be a Plan; make one with .*Plan.uniform"),
        (InvalidType, lambda: lograd.attach(model, IDENTITY, seed=0.5), "seed must be a whole number"),
        (InvalidValue, lambda: lograd.attach(model, IDENTITY, refresh=0), "refresh must be a whole number from 1"),
        (InvalidValue, lambda: lograd.attach(model, Plan({"1": layer})), "names the layer '1', and the model has no"),
        (InvalidValue, lambda: lograd.attach(model, Plan({"00": layer})), "Did you mean '0'"),
        (InvalidValue, lambda: lograd.attach(model, Plan(kept={"head": "why"})), "names the layer 'head'"),
    ]
    for kind, call, message in cases:
        with pytest.raises(kind, match=message):
            call()
    assert type(model[0]) is nn.Linear
    with lograd.attach(model, IDENTITY), pytest.raises(InvalidValue, match="has a plan attached already"):
        lograd.attach(model, IDENTITY)
