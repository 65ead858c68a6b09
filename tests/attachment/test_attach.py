"""Attach, layer by layer: unchanged bits where nothing is treated, exact counters where something is, and the undo."""

import copy
import math
import re

import pytest
import torch
from torch import nn

import lograd
from lograd import InvalidType, InvalidValue, Plan, ops
from lograd.attachment.refresh import Drift
from lograd.engine.autograd import DoubleBackward
from lograd.engine.layer import LayerEngine
from lograd.errors import LogradWarning
from lograd.plan import LayerPlan
from lograd.treatments import ProductPlan, Prune, Quantize, recipe

FP4 = recipe("fp4").input_gradient.gradient

IDENTITY = Plan.uniform("identity")


class Conv1D(nn.Module):
    """As in transformers, which need not be installed: the weight is (inputs, outputs)."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, outputs, inputs):
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


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


def gradients_of(model, x, head=lambda y: y.float().square().sum(), context=None):
    """Output and all gradients of one pass; a ReLU overwrites the output."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    model.zero_grad()
    with context or torch.autocast("cpu", enabled=False):
        y = model(x)
        torch.relu_(y)
    head(y).backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


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


def ready(model, plan, x, steps=2, **options):
    """An attached model that has its statistics."""
    handle = lograd.attach(model, plan, **options)
    for _ in range(steps):
        gradients_of(model, x)
        handle.step()
    return handle


def caught(model, x, layer):
    """The gradient of a layer's output, by autograd itself."""
    found = []
    hook = layer.register_forward_hook(lambda module, inputs, output: output.register_hook(found.append) and None)
    gradients_of(model, x)
    hook.remove()
    return found[0]


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


def test_a_convolution_takes_two_gradients():
    torch.manual_seed(0)
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(4, 3, 8, 8)
    plain = gradients_of(layer, x)
    handle = ready(layer, Plan({"": LayerPlan(weight_gradient=ProductPlan(FP4))}), x)
    _, d_x, d_weight, d_bias = gradients_of(layer, x)
    assert torch.equal(d_x, plain[1])
    assert not torch.equal(d_weight, plain[2])
    assert not torch.equal(d_bias, plain[3])
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


# -- what is left alone --


def test_frozen_layers_give_only_what_is_needed():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)), torch.randn(32, 6)
    model[1].requires_grad_(False)
    expected = gradients_of(model, x)
    with lograd.attach(model, IDENTITY):
        assert_same(gradients_of(model, x), expected)
    handle = ready(model, Plan.uniform("prune50"), x)
    gradients_of(model, x)
    assert model[1].weight.grad is None
    assert all(count.treated == 2 for count in handle.counters().layers.values())
    model.requires_grad_(False)
    passes = handle.counters().total.passes
    assert not model(x).requires_grad
    handle.remove()
    assert handle.counters().total.passes == passes


def test_evaluation_is_untouched():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), torch.randn(2, 3, 8, 8)
    expected = model(x)
    with lograd.attach(model, Plan.uniform("fp4")) as handle:
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                assert torch.equal(model(x), expected)
        assert handle.counters().total.passes == 0


def test_hooks_and_keywords_of_the_user_go_on_working():
    layer, x = nn.Linear(6, 5), torch.randn(4, 6)
    seen = []
    layer.register_forward_hook(lambda module, inputs, output: seen.append("forward"))
    layer.register_full_backward_hook(lambda module, d_input, d_output: seen.append("backward"))
    with lograd.attach(layer, IDENTITY):
        layer(x.requires_grad_()).sum().backward()
        assert seen == ["forward", "backward"]
        assert torch.equal(layer(input=x), layer(x))
        assert isinstance(layer, nn.Linear)
    transposed = nn.ConvTranspose2d(2, 2, 3, stride=2)
    y = torch.randn(1, 2, 4, 4)
    with lograd.attach(transposed, IDENTITY):
        assert transposed(y, output_size=[10, 10]).shape[-2:] == (10, 10)


class OwnForward(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 2


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


class Named(nn.Linear):
    """A subclass that changes nothing about the forward."""


def test_what_is_not_treated_is_explained():
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda input: input
    model = nn.ModuleDict(
        {
            "own": OwnForward(4, 4),
            "convolution": OwnConvolution(1, 1, 1),
            "wide": nn.Linear(4, 4).double(),
            "lazy": nn.LazyLinear(4),
            "replaced": replaced,
            "named": Named(4, 4),
            "kept": nn.Linear(4, 4),
            "attention": nn.MultiheadAttention(4, 2),
        }
    )
    plan = Plan(kept={"kept": "the last layer"}, every=LayerPlan.of(recipe("fp6")))
    with lograd.attach(model, plan) as handle:
        assert sorted(handle.layers) == ["attention.out_proj", "named"]
        x = torch.randn(3, 2, 4)
        for _ in range(3):
            (model["attention"](x, x, x)[0] + model["named"](x)).sum().backward()
            handle.step()
        lines = handle.explain().layers
        text = str(handle.explain())
    assert "OwnForward has its own forward" in lines["own"]
    assert "OwnConvolution has its own _conv_forward" in lines["convolution"]
    assert "float64" in lines["wide"]
    assert "not initialised" in lines["lazy"]
    assert "has its own forward" in lines["replaced"]
    assert lines["kept"] == "kept: the last layer"
    assert "its forward did not run (a parent such as nn.MultiheadAttention" in lines["attention.out_proj"]
    assert "not treated" in lines["attention"]
    assert re.search(r"1-4-1 scale max \(scale .*\); .*predicted cosine 0\.99", lines["named"])
    assert "3 steps; 2 gradients treated, 1 passed through before there were statistics" in text
    with lograd.attach(model, Plan()) as handle:
        assert handle.explain().layers["named"] == "not in the plan"
        assert not handle.layers


def test_layers_that_became_double_pass_through():
    layer = nn.Linear(4, 4)
    handle = ready(layer, Plan.uniform("fp4"), torch.randn(8, 4))
    layer.double()
    x = torch.randn(8, 4, dtype=torch.float64)
    expected = gradients_of(nn.Linear(4, 4).double().requires_grad_(), x)
    count = handle.counters().total
    assert gradients_of(layer, x)[1].dtype == expected[1].dtype
    assert handle.counters().total.passed_through == count.passed_through + 1
    handle.remove()


# -- statistics --


def test_gradients_pass_through_until_there_are_statistics():
    torch.manual_seed(0)
    model, x = nn.Linear(6, 5), torch.randn(64, 6)
    plain = gradients_of(model, x)
    handle = lograd.attach(model, Plan.uniform("fp4"))
    assert "waits for its first gradient" in str(handle.explain())
    assert_same(gradients_of(model, x), plain)
    assert_same(gradients_of(model, x), plain)
    assert "passes through until" in str(handle.explain())
    assert (handle.counters().total.passed_through, handle.counters().total.treated) == (2, 0)
    handle.step()
    assert not torch.equal(gradients_of(model, x)[2], plain[2])
    assert handle.counters().total.treated == 1
    handle.remove()


def test_nobody_calls_step_and_is_told():
    model, x = nn.Linear(6, 5), torch.randn(64, 6)
    with (
        pytest.warns(LogradWarning, match="no gradient was treated: 1 passed through"),
        lograd.attach(model, Plan.uniform("fp4")),
    ):
        gradients_of(model, x)


def thresholds(handle):
    return [layer.gradient.sites["gradient"].numbers.item() for layer in handle.layers.values()]


def test_statistics_are_taken_every_so_many_steps():
    torch.manual_seed(0)
    model, x = nn.Linear(6, 5), torch.randn(256, 6)
    handle = lograd.attach(model, Plan.uniform("prune80"), refresh=4)
    history = []
    for step in range(100):
        gradients_of(model, x * (1 + step))
        handle.step()
        history += thresholds(handle)
    changes = [step for step in range(100) if step == 0 or history[step] != history[step - 1]]
    # In every step at first, at intervals of a twentieth of the run so far then, of 4 in the end.
    assert changes == [*range(40), *range(41, 60, 2), *range(62, 80, 3), *range(81, 100, 4)]
    assert handle.cost.refreshes == handle.cost.steps == len(changes) == 61
    assert handle.cost.milliseconds > 0
    assert re.search(r"61 statistics taken at .* ms each in 61% of the steps", str(handle.explain()))
    handle.remove()


def test_statistics_are_taken_at_epochs():
    model, x = nn.Linear(6, 5), torch.randn(256, 6)
    handle = ready(model, Plan.uniform("prune80"), x, steps=21, refresh="epoch")
    first = thresholds(handle)
    for epoch in range(2):
        for _ in range(3):
            gradients_of(model, 8 * x)
            handle.step()
        assert (thresholds(handle) == first) == (epoch == 0)
        handle.epoch()
    handle.remove()


def test_a_short_batch_is_passed_over_once():
    """The last batch of an epoch: its gradients are larger, and thresholds from them would be wrong for all others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    handle = lograd.attach(model, Plan.uniform("prune80"), refresh=1)

    def step(batch):
        model(torch.randn(batch, 8)).square().mean().backward()
        handle.step()
        return {name: statistics.step for name, statistics in handle._gradients.items()}

    assert step(64) == {"0": 0, "1": 0}
    assert step(8) == {"0": 0, "1": 0}, "waits for another"
    assert step(64) == {"0": 2, "1": 2}
    assert step(8) == {"0": 2, "1": 2}
    assert step(8) == {"0": 4, "1": 4}, "batches have become small"
    handle.remove()


def test_statistics_are_taken_when_the_gradient_drifts():
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    handle = ready(model, Plan.uniform("prune80"), torch.randn(8192, 16), steps=22, refresh=Drift(every=2))
    sampled, history = [], []
    for step in range(12):
        sampled.append(int(handle.layers[""].gradient.control[1]))
        gradients_of(model, torch.randn(8192, 16) * (1 if step < 6 else 8))
        handle.step()
        history += thresholds(handle)
    assert sampled[:6] == [32, 0, 32, 0, 32, 0]  # a sample of 4096 elements every other step; no need for more
    assert sampled[6:9] == [32, 1, 32]  # the sample of step 6 shows the change, step 7 takes all
    assert len(set(history[:7])) == 1
    assert history[7] > 7 * history[6]
    handle.remove()


def test_useless_statistics_are_said_and_taken_again():
    model, x = nn.Linear(6, 5), torch.randn(64, 6)
    handle = lograd.attach(model, Plan.uniform("prune80"))
    gradients_of(model, x, head=lambda y: y.sum() * math.inf)
    handle.step()
    assert "the gradient had" in str(handle.explain())
    gradients_of(model, x, head=lambda y: y.sum() * 0)
    handle.step()
    assert "were zero" in str(handle.explain())
    assert not handle.layers[""].gradient.control[0]
    gradients_of(model, x)
    handle.step()
    assert handle.layers[""].gradient.control[0]
    gradients_of(model, x, head=lambda y: y.sum() * math.nan)
    assert handle.counters().total.nan > 0
    handle.remove()


def test_numbers_follow_the_loss_scale():
    model, x = nn.Linear(6, 5), torch.randn(256, 6)
    handle = lograd.attach(model, Plan.uniform("prune80"), refresh=1000)
    for _ in range(2):
        gradients_of(model, x, head=lambda y: y.square().sum() * 1024)
        handle.step(loss_scale=1024.0)
    first = thresholds(handle)
    handle.step(loss_scale=512.0)
    assert thresholds(handle) == [first[0] / 2]
    handle.step(loss_scale=4096.0)
    assert thresholds(handle) == [first[0] * 4]
    with pytest.raises(InvalidValue, match="loss_scale must be positive"):
        handle.step(loss_scale=0.0)
    handle.remove()


class Block(nn.Module):
    """conv-BatchNorm-ReLU twice and a head: the gradients have the two modes of the paper."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95])
def test_sparsity_asked_is_sparsity_got(sparsity):
    torch.manual_seed(0)
    model = Block()
    handle = lograd.attach(model, Plan.uniform(f"prune{sparsity * 100:.0f}"), refresh=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = {}
    for step in range(12):
        x, target = torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
        if step == 3:
            before = handle.counters().layers
    for name, count in handle.counters().layers.items():
        elements = count.elements - before[name].elements
        got = (count.zeros_after - before[name].zeros_after) / elements
        band = 4 * math.sqrt(sparsity * (1 - sparsity) / elements)
        assert abs(got - sparsity) < 0.01 + band, name
    handle.remove()


# -- saving --


def train(model, handle, optimizer, steps, first=0):
    for step in range(first, first + steps):
        torch.manual_seed(step)
        x, target = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()


@pytest.mark.parametrize("refresh", [3, Drift(every=2, bound=0.01)])
def test_a_killed_run_resumes_with_the_same_bits(refresh, tmp_path):
    plan = Plan.uniform("prune80+fp6")

    def start():
        torch.manual_seed(0)
        model = Block()
        handle = lograd.attach(model, plan, seed=3, refresh=refresh)
        return model, handle, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, handle, optimizer = start()
    train(model, handle, optimizer, 64)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "handle": handle.state_dict()}
    torch.save(saved, tmp_path / "checkpoint.pt")
    train(model, handle, optimizer, 6, first=64)

    other, resumed, optimizer = start()
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    resumed.load_state_dict(loaded["handle"])
    train(other, resumed, optimizer, 6, first=64)

    assert_same(list(model.state_dict().values()), list(other.state_dict().values()))
    assert handle.counters() == resumed.counters()
    assert handle.steps == resumed.steps == 70
    handle.remove()
    resumed.remove()


def test_states_that_do_not_fit():
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)), torch.randn(64, 6)
    handle = ready(model, Plan.uniform("fp4"), x)
    state = handle.state_dict()
    handle.remove()
    with lograd.attach(model, Plan.uniform("fp5")) as other:
        with pytest.raises(InvalidValue, match="belongs to another plan"):
            other.load_state_dict(state)
        with pytest.raises(InvalidValue, match="got version None"):
            other.load_state_dict({})
    with lograd.attach(model[0], Plan.uniform("fp4")) as other, pytest.raises(InvalidValue, match="has a layer '0'"):
        other.load_state_dict(state)
    del state["layers"]["1"], state["statistics"]["1"]
    with lograd.attach(model, Plan.uniform("fp4")) as partial:  # a missing layer costs a warm-up
        partial.load_state_dict(state)
        before = partial.counters()
        gradients_of(model, x)
        after = partial.counters()
        assert after.layers["0"].treated == before.layers["0"].treated + 1
        assert after.layers["1"].passed_through == 1
        partial.step()
        gradients_of(model, x)
        assert partial.counters().layers["1"].treated == 1


# -- the undo --


def test_remove_gives_the_model_back():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 3, 8, 8)
    classes = [type(module) for module in model.modules()]
    attributes = [sorted(vars(module)) for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    handle = lograd.attach(model, Plan.uniform("fp4"))
    assert list(model.state_dict()) == list(state)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in Block().named_modules()]
    assert str(model) == str(Block())
    handle.remove()
    handle.remove()
    assert [type(module) for module in model.modules()] == classes
    assert [sorted(vars(module)) for module in model.modules()] == attributes
    assert_same(list(model.state_dict().values()), list(state.values()))
    gradients_of(model, x)
    assert handle.counters().total.passes == 0


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


def test_an_empty_batch():
    model = nn.Linear(6, 5)
    handle = ready(model, Plan.uniform("prune80+fp6"), torch.randn(64, 6))
    assert gradients_of(model, torch.randn(0, 6))[2].abs().max() == 0
    handle.remove()


def test_the_operators_keep_the_rules_of_torch_library():
    layer = LayerEngine(LayerPlan.of(recipe("prune80+fp6")), torch.device("cpu"), None)
    operand, site = layer.gradient, layer.gradient.sites["gradient"]
    site.numbers.copy_(torch.tensor([0.5, 2.0]))
    gradients = {
        (0, 0): torch.randn(3, 1).expand(3, 4),
        (1, 1): torch.randn(3, 5, 7).transpose(1, 2),
        (1, 100): torch.randn(3, 7, 5),
    }
    for control, g in gradients.items():
        operand.control.copy_(torch.tensor(control))
        observed = (g, operand.control, operand.histogram, operand.seen)
        treated = (g, site.text, [1], site.numbers, operand.control, site.key, site.memory, site.counters)
        torch.library.opcheck(torch.ops.lograd.observe.default, observed)
        torch.library.opcheck(torch.ops.lograd.treat.default, treated)


def test_remove_also_follows_an_error():
    model = nn.Linear(3, 3)
    with pytest.raises(ZeroDivisionError), lograd.attach(model, IDENTITY):
        raise ZeroDivisionError
    assert type(model) is nn.Linear


def test_second_derivatives_are_refused():
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with lograd.attach(model, IDENTITY), pytest.raises(DoubleBackward, match="cannot be differentiated again"):
        torch.autograd.grad(model(x).square().sum(), x, create_graph=True)


def test_what_cannot_work_is_refused_in_one_sentence():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    layer = LayerPlan.of((Quantize("1-4-1"),))
    cases = [
        (InvalidType, lambda: lograd.attach("model", IDENTITY), "model must be a torch.nn.Module"),
        (InvalidType, lambda: lograd.attach(model, "fp6"), r"plan must be a Plan; make one with .*Plan.uniform"),
        (InvalidType, lambda: lograd.attach(model, IDENTITY, seed=0.5), "seed must be a whole number"),
        (InvalidValue, lambda: lograd.attach(model, IDENTITY, refresh="epochs"), "Did you mean 'epoch'"),
        (InvalidValue, lambda: lograd.attach(model, IDENTITY, refresh=0), "refresh must be a number of steps"),
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
