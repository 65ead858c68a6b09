"""The observer: it counts the gradients themselves, step by step, and training does not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lograd
from lograd.errors import InvalidValue, LogradWarning
from lograd.laws import Empirical
from lograd.measure.model_profile import MOST_STEPS


def references(model, x, y):
    """Gradients at the outputs of all modules, by autograd's own means, on a model without in-place modules."""
    outputs = {}
    for name, module in model.named_children():
        outputs[name] = x = module(x)
        x.retain_grad()
    cross_entropy(x, y).backward()
    return {name: output.grad for name, output in outputs.items()}


def test_records_count_the_gradient_before_an_in_place_relu_and_the_weight_gradient():
    (batch,) = image_batches(1)
    expected = references(plain := conv_net(inplace=False), *batch)

    profile = lograd.profile(conv_net(inplace=True), [batch], cross_entropy)

    assert list(profile.layers) == ["0", "3", "7"]
    assert profile.missed == {}
    for name, layer in profile.layers.items():
        (record,) = layer.records
        assert record.law == Empirical.fit(expected[name])
        assert record.elements == expected[name].numel() == layer.elements
        (weight,) = layer.weight_records
        assert weight.law == Empirical.fit(plain.get_submodule(name).weight.grad)
        assert set(layer.sample) <= set(expected[name].flatten().tolist())
        assert layer.sample.size == min(8192, record.elements)


def test_masked_is_the_zero_share_behind_the_batch_norm():
    (batch,) = image_batches(1)
    expected = references(conv_net(inplace=False), *batch)
    profile = lograd.profile(conv_net(), [batch], cross_entropy)
    assert profile["0"].masked == float((expected["1"] == 0).double().mean())
    assert profile["3"].masked == float((expected["4"] == 0).double().mean())
    assert 0.2 < profile["0"].masked < 0.8
    assert profile["7"].masked is None


def test_zero_nan_and_infinite_gradients_are_counted_apart():
    model = mlp()
    factors = [0.0, float("nan"), float("inf"), 1.0]
    batches = [(*batch, factor) for batch, factor in zip(vector_batches(4), factors, strict=True)]
    with pytest.warns(LogradWarning, match="NaN or infinite gradients in 2 of 2 layers"):
        profile = lograd.profile(model, batches, lambda model, b: (model(b[0])[:, 0] * b[2]).sum())
    zero, nan, infinite, plain = profile["2"].records
    assert zero.law is None
    assert zero.zero_share == 1
    assert np.isnan([zero.mu, zero.sigma, zero.largest]).all()
    assert nan.nan == 16
    assert infinite.infinities == 16
    assert plain.zeros == 32
    assert profile["2"].last is plain
    assert profile["2"].sigma == plain.sigma == 0.0
    assert "2^" in str(profile)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    profile = lograd.profile(mlp().to(dtype), [(x.to(dtype), y) for x, y in vector_batches(1)], cross_entropy)
    assert profile["0"].elements == 16 * 8
    assert profile["0"].sample.dtype == np.float32


def test_autocast():
    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model(batch["x"]), batch["y"])

    x, y = vector_batches(1)[0]
    profile = lograd.profile(mlp(), [{"x": x, "y": y}], loss)
    assert profile["2"].elements == 48


def train(model, batches, run=None):
    for x, y in batches:
        cross_entropy((run or model)(x), y).backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_counts_each_gradient_once(reentrant):
    batches = image_batches(3)
    model = conv_net()
    with lograd.observe(model, every=1) as expected:
        train(model, batches)
    model = conv_net()

    def run(x):
        x = x.requires_grad_()
        x = checkpoint(model[:3], x, use_reentrant=reentrant)
        return model[6:](checkpoint(model[3:6], x, use_reentrant=reentrant))

    with lograd.observe(model, every=1) as profile:
        train(model, batches, run)
    assert profile.steps == 3
    assert list(profile.layers) == ["0", "3", "7"]
    for name, layer in profile.layers.items():
        assert layer.flops_weight == expected[name].flops_weight
        assert layer.masked == expected[name].masked
        assert [record.law for record in layer.records] == [record.law for record in expected[name].records]
        assert [record.law for record in layer.weight_records] == [
            record.law for record in expected[name].weight_records
        ]


def test_every_second_step_with_evaluation_in_between():
    model = mlp()
    with lograd.observe(model, every=2) as profile:
        for x, y in vector_batches(5):
            cross_entropy(model(x), y).backward()
            with torch.no_grad():
                model(x)
            model(x)  # a forward without a backward is no step
    assert profile.steps == 5
    assert [record.step for record in profile["0"].records] == [0, 2, 4]
    assert [record.step for record in profile["0"].weight_records] == [0, 2, 4]
    assert profile["0"].last.elements == 16 * 8


def test_a_shared_module_counts_both_uses():
    linear = nn.Linear(6, 6)
    model = nn.Sequential(linear, nn.ReLU(), linear, nn.Linear(6, 3))
    profile = lograd.profile(model, vector_batches(2), cross_entropy)
    assert list(profile.layers) == ["0", "3"]
    assert profile["0"].elements == 2 * 16 * 6
    assert profile["0"].flops_weight == 2 * (2 * 16 * 36)
    assert profile["0"].flops_input == 2 * 16 * 36


def test_a_long_run_is_thinned_evenly():
    model = nn.Sequential(nn.Linear(2, 1))
    x = torch.ones(1, 2)
    with lograd.observe(model, every=1, sample=0) as profile:
        for _ in range(MOST_STEPS + 10):
            model(x).sum().backward()
    steps = [record.step for record in profile["0"].records]
    assert profile.every == 2
    assert steps == list(range(0, MOST_STEPS + 10, 2))
    assert steps == [record.step for record in profile["0"].weight_records]
    assert profile["0"].sample.size == 0


def test_a_gradient_after_the_observer_is_not_counted():
    model = mlp()
    ((x, y),) = vector_batches(1)
    with lograd.observe(model, every=1) as profile:
        loss = cross_entropy(model(x), y)
    loss.backward()
    assert profile.layers == {}
    assert profile.missed == {"0": "no gradient reached it", "2": "no gradient reached it"}


def test_training_under_observation_gives_the_same_bits():
    def trained(observed):
        model = conv_net()
        nn.utils.parametrizations.spectral_norm(model[7])  # to look at its weight is to change a buffer
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lograd.observe(model, every=2) if observed else torch.enable_grad():
            for x, y in image_batches(4):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        return state_of(model)

    torch.manual_seed(0)
    expected = trained(False)
    torch.manual_seed(0)
    assert equal_states(trained(True), expected)


def test_an_observer_can_be_used_again():
    model, batches = mlp(), vector_batches(2)
    observer = lograd.observe(model, every=1)
    with observer as first:
        train(model, batches)
    with observer as second:
        train(model, batches)
    assert first == second
    assert first is not second


def test_a_computed_weight_is_not_looked_at():
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert profile["0"].weight_shape is None
    assert profile["0"].weight_records == []
    assert profile["0"].flops_weight == 2 * 16 * 8 * 6


def test_compiled_models_are_observed_eagerly_under_their_plain_names():
    batches = vector_batches(3)
    expected = lograd.profile(mlp(), batches, cross_entropy)

    whole = torch.compile(mlp(), backend="eager")
    part = mlp()
    part[0] = torch.compile(part[0], backend="eager")
    in_place = mlp()
    in_place.compile(backend="eager")
    for model in (whole, part, in_place):
        cross_entropy(model(batches[0][0]), batches[0][1]).backward()  # compiled before it is observed
        model.zero_grad()
        assert lograd.profile(model, batches, cross_entropy) == expected
        with lograd.observe(model, every=1) as profile:
            train(model, batches)
        assert profile.layers["0"].records == expected["0"].records
    calls = []
    torch._dynamo.reset()
    function = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: (calls.append(1), graph.forward)[1])
    function(torch.ones(1))
    assert calls == [1], "compilation must work again afterwards"


def test_distributed_data_parallel():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        with lograd.observe(model, every=1) as profile:
            train(model, vector_batches(2))
    finally:
        torch.distributed.destroy_process_group()
    assert profile.layers == lograd.profile(mlp(), vector_batches(2), cross_entropy).layers


def test_layers_without_a_gradient_are_named_with_the_reason():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(6, 6)
            self.attention = nn.MultiheadAttention(6, 1)
            self.dangling = nn.Linear(6, 6)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            x = self.frozen(x)
            self.dangling(x)
            return self.head(self.attention(x, x, x)[0])

    model = Model()
    model.frozen.requires_grad_(False)
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert list(profile.layers) == ["head"]
    assert profile.missed == {
        "frozen": "its output needed no gradient",
        "attention.out_proj": "its forward did not run at an observed step",
        "dangling": "no gradient reached it",
    }
    assert "attention.out_proj: not observed, its forward did not run" in str(profile)
    with pytest.raises(InvalidValue, match="It was missed: its forward did not run"):
        profile["attention.out_proj"]


# -- kinds of layers --


LAYERS = {
    "Linear, three dimensions": (nn.Linear(5, 4), (2, 3, 5)),
    "Conv1d": (nn.Conv1d(4, 6, 3, padding="same", groups=2), (2, 4, 9)),
    "Conv2d": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
    "Conv3d": (nn.Conv3d(2, 3, 2, dilation=2), (2, 2, 5, 5, 5)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 2, 3, stride=2), (2, 3, 5)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "ConvTranspose3d": (nn.ConvTranspose3d(2, 2, 2), (2, 2, 3, 3, 3)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer_and_its_products(kind):
    module, shape = LAYERS[kind]
    x = torch.randn(shape, requires_grad=True)
    model = nn.Sequential(module)
    with lograd.observe(model, every=1) as profile:
        output = model(x)
        output.retain_grad()
        (output**3).sum().backward()
    layer = profile["0"]
    assert layer.last.law == Empirical.fit(output.grad)
    # The cost of a product, counted by torch itself on the forward pass.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x)
    assert layer.flops_input == layer.flops_weight == counter.get_total_flops()


def test_products_that_are_not_needed_cost_nothing():
    model = mlp()
    model[2].weight.requires_grad_(False)
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert profile["0"].flops_input == 0
    assert profile["0"].flops_weight == 2 * 16 * 8 * 6
    assert profile["2"].flops_input == 2 * 16 * 8 * 3
    assert profile["2"].flops_weight == 0
    assert profile["2"].weight_records == []


def test_filter_chooses_any_module():
    profile = lograd.profile(
        conv_net(), image_batches(1), cross_entropy, filter_fn=lambda module, name: isinstance(module, nn.BatchNorm2d)
    )
    assert list(profile.layers) == ["1", "4"]
    assert profile["1"].flops_weight is None
    assert profile["1"].weight_records
