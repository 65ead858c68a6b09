"""The whole chain on models that people train: profile, plan, file, attach, train, undo; and where its parts meet."""

from __future__ import annotations

import copy

import pytest
import torch
from everyday import daily
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import ZOO, build, loss_of

import lograd
from lograd import Plan, Profile
from lograd.errors import InvalidValue, LogradWarning

KINDS = {
    "bits": {"bits": 6},
    "sparsity": {"sparsity": 0.85, "everywhere": True, "allocation": "cosine"},
    "both": {"bits": 6, "sparsity": 0.85, "everywhere": True, "allocation": "cosine"},
}
MODELS = {
    "resnet18": (21, "both"), "mobilenet_v2": (53, "sparsity"), "densenet121": (121, "bits"),
    "vgg16_bn": (15, "sparsity"), "squeezenet1_1": (26, "both"), "convnext": (41, "bits"),
    "vit": (10, "sparsity"), "bert": (14, "both"), "gpt2": (9, "bits"),
}  # fmt: skip
"""Layers of each model, and the plan that it is trained with."""
STEPS = 3


def train(model, inputs, handle=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.manual_seed(1)  # for dropout
    for _ in range(STEPS):
        loss_of(model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        if handle is not None:
            handle.step()


def copied(state):
    return {key: tensor.clone() for key, tensor in state.items()}


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the packages themselves
@pytest.mark.parametrize("name", daily(ZOO, ("mobilenet_v2", "bert")))
def test_models_are_profiled_trained_with_the_plan_and_given_back(name, tmp_path):
    model, inputs = build(name)
    layers, kind = MODELS[name]
    start, classes = copied(model.state_dict()), [type(module) for module in model.modules()]

    profile = lograd.profile(model, [inputs] * 2, loss_of)
    assert same(model.state_dict(), start)
    assert (len(profile.layers), profile.missed) == (layers, {})
    profile = Profile.load(profile.save(tmp_path / "profile.npz"))
    plan = profile.plan(**KINDS[kind])
    assert (len(plan.layers), list(plan.kept)) == (layers - 1, list(profile.layers)[-1:])
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    plan = Plan.load(tmp_path / "plan.json")

    with lograd.attach(model, plan):
        assert list(model.state_dict()) == list(start)
    assert same(model.state_dict(), start)

    train(model, inputs)
    plain = copied(model.state_dict())
    assert all(tensor.isfinite().all() for tensor in plain.values())  # NaN would differ from itself
    model.load_state_dict(start)
    with lograd.attach(model, Plan.uniform("identity")) as handle:
        train(model, inputs, handle)
    assert same(model.state_dict(), plain)
    assert (len(handle.layers), handle.skipped) == (layers, {})
    assert all(count.passes == STEPS for count in handle.counters().layers.values())

    model.load_state_dict(start)
    with lograd.attach(model, plan) as handle:
        train(model, inputs, handle)
        assert list(model.state_dict()) == list(start)
    assert list(handle.layers) == [one for one in handle.explain().layers if one in plan.layers]
    assert list(handle.skipped.values()) == ["kept: the last layer"]
    assert not same(model.state_dict(), plain)
    for one, count in handle.counters().layers.items():
        assert (count.treated, count.passed_through) == (STEPS - 1, 1), one
        assert count.zeros_after > count.zeros_before or count.zeros_before > 0.8 * count.elements or kind == "bits"
    assert [type(module) for module in model.modules()] == classes
    assert all("_lograd_catcher" not in vars(module) for module in model.modules())


# -- what the plan predicts, and what attached layers count --


@pytest.mark.parametrize("kind", KINDS)
def test_predicted_zeros_are_the_zeros_counted(kind):
    # In the product for dW only: then every layer meets the very gradient of the profile.
    model, (batch,) = conv_net(), image_batches(1, size=64)
    plan = lograd.profile(model, [batch], cross_entropy).plan(**KINDS[kind], products="weight_gradient")
    with lograd.attach(model, plan) as handle:
        for _ in range(9):
            cross_entropy(model(batch[0]), batch[1]).backward()
            handle.step()
    for name, count in handle.counters().layers.items():
        predicted = plan.layers[name].predicted_weight_gradient.sparsity
        band = 4 * (predicted * (1 - predicted) / count.elements) ** 0.5
        assert abs(count.sparsity - predicted) < 0.002 + band, name
        assert count.treated == 8


def test_the_lognormal_law_prunes_what_batch_norm_refilled():
    model, batches = conv_net(), image_batches(1, size=64)
    profile = lograd.profile(model, batches, cross_entropy)
    few, many = (profile.plan(sparsity=sparsity, law="lognormal") for sparsity in (0.3, 0.8))
    for name, layer in few.layers.items():
        assert 0.4 < layer.masked == pytest.approx(profile[name].masked, abs=1e-6)
        assert layer.input_gradient.gradient[0].law == many.layers[name].input_gradient.gradient[0].law == "lognormal"
        # More is masked than asked for, so the threshold lies where the refilled positions end.
        assert 0.3 < layer.predicted_input_gradient.sparsity < layer.masked
        assert many.layers[name].predicted_input_gradient.sparsity == pytest.approx(0.8, abs=0.1)
    with lograd.attach(model, many, refresh=1) as handle:
        for _ in range(9):
            cross_entropy(model(batches[0][0]), batches[0][1]).backward()
            handle.step()
        assert all("prune 0.8 (lognormal) (threshold" in handle.explain().layers[name] for name in many.layers)
    for name, count in handle.counters().layers.items():
        assert count.sparsity == pytest.approx(0.8, abs=0.1), name


# -- where the parts meet --


def take_steps(model, handle, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()


def test_a_profile_of_an_attached_model_leaves_the_run_as_it_was():
    batches = image_batches(6)
    plan = lograd.profile(conv_net(), batches[:1], cross_entropy).plan(bits=6, sparsity=0.8)
    runs = []
    for look in (False, True):
        model = conv_net()
        handle = lograd.attach(model, plan)
        take_steps(model, handle, batches[:3])
        if look:
            before = handle.counters()
            seen = lograd.profile(model, batches[3:5], cross_entropy)
            assert handle.counters() == before
        take_steps(model, handle, batches[3:])
        runs.append((copied(model.state_dict()), handle.counters()))
        handle.remove()
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert [layer.kind for layer in seen.layers.values()] == ["Conv2d", "Conv2d", "Linear"]
    assert all(layer.zero_share < 0.01 for layer in seen.layers.values()), "gradients are seen before their treatment"


def test_a_profile_of_an_attached_model_shows_what_the_layers_behind_have_done():
    (batch,) = image_batches(1)
    plain = lograd.profile(conv_net(), [batch], cross_entropy)
    model = conv_net()
    with lograd.attach(model, plain.plan(sparsity=0.8, keep=("0", "last"))) as handle:
        cross_entropy(model(batch[0]), batch[1]).backward()
        handle.step()
        seen = lograd.profile(model, [batch], cross_entropy)
        cross_entropy(model(batch[0]), batch[1]).backward()
    assert seen["3"].law == plain["3"].law
    assert seen["0"].law != plain["0"].law
    assert seen["3"].weight_records[0].law != plain["3"].weight_records[0].law


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo uses what torch deprecates
@pytest.mark.parametrize("compiled", [False, True])
def test_attach_and_remove_while_observed(compiled):
    batches = image_batches(6)
    plan = lograd.profile(conv_net(), batches[:1], cross_entropy).plan(sparsity=0.8)
    plain = conv_net()
    classes = [type(module) for module in plain.modules()]
    model = torch.compile(plain, backend="eager") if compiled else plain
    with lograd.observe(model, every=1) as seen:
        handle = lograd.attach(model, plan)
        take_steps(model, handle, batches[:3])
        handle.remove()
        cross_entropy(model(batches[3][0]), batches[3][1]).backward()
    assert handle.counters().total.treated == 2 * len(plan.layers)
    assert {name: len(layer.records) for name, layer in seen.layers.items()} == {"0": 4, "3": 4, "7": 4}
    assert [type(module) for module in plain.modules()] == classes
    assert not any(module._forward_hooks for module in plain.modules())
    with lograd.attach(model, plan) as handle:  # and once more, after the observer
        take_steps(model, handle, batches[3:])
    assert handle.counters().total.treated == 2 * len(plan.layers)


def test_a_plan_for_another_model_is_refused_with_the_nearest_names():
    plan = lograd.profile(conv_net(), image_batches(1), cross_entropy).plan(bits=6)
    with pytest.raises(InvalidValue, match="'3'"):
        lograd.attach(mlp(), plan)
    named = nn.Sequential()
    named.add_module("features", conv_net())
    plan = lograd.profile(named, image_batches(1), cross_entropy).plan(bits=6)
    other = nn.Sequential()
    other.add_module("feature", conv_net())
    with pytest.raises(InvalidValue, match=r"'feature\.0'"):
        lograd.attach(other, plan)
    assert all("_lograd_catcher" not in vars(module) for module in other.modules())


class OwnForward(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 2


def test_layers_of_the_plan_that_cannot_be_treated_are_told_and_where_none_is_left_the_model_stays():
    model = nn.Sequential(OwnForward(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    with pytest.warns(LogradWarning, match="'0'"):
        handle = lograd.attach(model, profile.plan(bits=6))
    assert list(handle.layers) == ["2"]
    handle.remove()
    with pytest.raises(InvalidValue, match="OwnForward"):
        lograd.attach(model, profile.plan(bits=6, keep=("2", "4")))
    with pytest.raises(InvalidValue):
        lograd.attach(nn.ReLU(), Plan.uniform("fp6"))
    double = mlp().double()
    with pytest.raises(InvalidValue, match="float64"):
        lograd.attach(double, Plan.uniform("fp6"))
    assert type(double[0]) is nn.Linear
    assert not lograd.attach(model, Plan()).layers  # nothing asked for, nothing done


def test_training_another_copy_is_told():
    handle = lograd.attach(mlp(), Plan.uniform("fp6"))
    take_steps(mlp(), handle, vector_batches(2))
    with pytest.warns(LogradWarning, match="no gradient came by"):
        handle.remove()


def test_a_model_that_is_one_layer():
    model = nn.Linear(6, 3)
    plan = lograd.profile(model, vector_batches(1), cross_entropy).plan(bits=6, keep=())
    with lograd.attach(model, plan) as handle:
        take_steps(model, handle, vector_batches(3))
    assert handle.counters().layers[""].treated == 2
    assert type(model) is nn.Linear


def test_a_copy_of_an_attached_model_can_be_profiled_and_attached():
    batches = image_batches(3)
    model = conv_net()
    plan = lograd.profile(model, batches[:1], cross_entropy).plan(bits=6)
    with lograd.attach(model, plan):
        with pytest.warns(LogradWarning, match="plain model"):
            twin = copy.deepcopy(model)
        again = lograd.profile(twin, batches[:1], cross_entropy).plan(bits=6)
    assert again == plan
    with lograd.attach(twin, again) as handle:
        take_steps(twin, handle, batches)
    assert handle.counters().total.treated == 2 * len(plan.layers)
