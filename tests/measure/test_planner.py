"""Plans from a profile: by amounts of bits and zeros, and for a goal of noise or progress."""

from __future__ import annotations

import pytest
import torch
from networks import conv_net, image_batches, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Plan


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(conv_net(), image_batches(2), cross_entropy, noise=4)


def work_of(profile, plan):
    return {name: (profile[name].flops_input, profile[name].flops_weight) for name in plan.layers}


@pytest.mark.parametrize(
    "choice", [{"allocation": "cosine"}, {"allocation": "noise"}, {"allocation": "noise", "split": True}]
)
def test_sparsity_is_the_share_of_skipped_work(profile, choice):
    plan = profile.plan(sparsity=0.7, keep=(), **choice)
    work = work_of(profile, plan)
    skipped = sum(
        flops * prediction.sparsity
        for name, layer in plan.layers.items()
        for flops, prediction in zip(
            work[name], (layer.predicted_input_gradient, layer.predicted_weight_gradient), strict=True
        )
    )
    assert skipped / sum(map(sum, work.values())) == pytest.approx(0.7, abs=2e-3)
    assert plan.skipped == pytest.approx(0.7, abs=2e-3)
    words = " ".join(str(plan).split())
    assert f"skip {plan.skipped_of_step:.1%} of it, and 70.0% of the products for dX and dW" in words
    assert Plan.from_dict(plan.to_dict()) == plan


@pytest.mark.filterwarnings("ignore:noise of this plan is predicted")
def test_a_layer_that_is_to_be_spared_is_spared():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3))
    profile = lograd.profile(model, vector_batches(1), cross_entropy, noise=2)
    split = profile.plan(sparsity=0.02, split=True, keep=())
    assert split.skipped == pytest.approx(0.02, abs=2e-3)


def test_an_overridden_layer_keeps_its_work(profile):
    plan = profile.plan(sparsity=0.7, keep=("last",))
    again = plan.override("7", sparsity=0.7)
    assert again.skipped > plan.skipped
    assert again.override("7", treat=False).skipped == plan.skipped


def test_kept_layers_count_as_work_that_is_not_skipped(profile):
    plan = profile.plan(sparsity=0.7, allocation="uniform", keep=("last",))
    last = profile["7"]
    total = sum(layer.flops_input + layer.flops_weight for layer in profile.layers.values())
    assert plan.skipped == pytest.approx(0.7 * (1 - (last.flops_input + last.flops_weight) / total), abs=2e-3)


def test_noise_brings_less_noise_than_uniform_and_a_split_less_still(profile):
    def total(**choice):
        plan = profile.plan(sparsity=0.7, keep=(), **choice)
        sides = [
            [1 / getattr(layer, side).cosine ** 2 - 1 for layer in plan.layers.values()]
            for side in ("predicted_input_gradient", "predicted_weight_gradient")
        ]
        sides[0][0] = 0.0
        return profile.noise.factors.total(*sides)

    uniform, shared, split = total(allocation="uniform"), total(), total(split=True)
    assert split < shared < uniform


def test_the_two_products_of_a_split_plan_are_listed(profile):
    plan = profile.plan(sparsity=0.7, keep=(), allocation="noise", split=True)
    layer = plan.layers["3"]
    assert layer.input_gradient.gradient[0].sparsity != layer.weight_gradient.gradient[0].sparsity
    lines = [line.split() for line in str(plan).splitlines()]
    assert [line[1] for line in lines if line[:1] == ["3"]] == ["dX", "dW"]


def test_what_noise_needs_is_said(profile):
    without = lograd.profile(conv_net(), image_batches(1), cross_entropy)
    for act, message in (
        (lambda: without.plan(sparsity=0.5, allocation="noise"), "needs a profile in which noise was measured"),
        (lambda: without.plan(sparsity=0.5, split=True), "split=True needs allocation='noise'"),
        (
            lambda: profile.plan(sparsity=0.5, allocation="noise", split=True, products="weight_gradient"),
            "both products",
        ),
        (lambda: profile.plan(sparsity=0.5, allocation="nose"), "Did you mean 'noise'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            act()
    model = conv_net()
    with lograd.attach(model, Plan.uniform("prune85")), pytest.raises(InvalidValue, match="call remove"):
        lograd.profile(model, image_batches(1), cross_entropy, noise=1)
    with pytest.raises(InvalidValue, match="noise"):
        lograd.profile(model, image_batches(1), cross_entropy, noise=-1)
