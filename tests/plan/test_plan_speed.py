"""Plans for speed: layers whose zeros save no time are left out, explosions are predicted, formats are recommended."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import torchvision

import lograd
from lograd import Plan, Profile, theory
from lograd.engine.backends import LEAST_WORK
from lograd.engine.layers import reason_unserved
from lograd.errors import InvalidValue, LogradWarning
from lograd.measure import prediction as precision
from lograd.measure.prediction import why_no_gain
from lograd.plan import evidence
from lograd.treatments import Prune, Quantize
from lograd.treatments.verdicts import GOOD_COSINE, verdict

GAINS = ["2", "9"]


def mixed():
    """Layers that gain ("2", "9") between others that cannot, each for a reason of its own; "14" is the last one."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),  # 0: three channels
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),  # 2
        nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ReLU(),  # 4: depthwise
        nn.Conv2d(32, 32, 1), nn.ReLU(), nn.AvgPool2d(2),  # 6: small
        nn.Conv2d(32, 128, 3, padding=1), nn.ReLU(),  # 9
        nn.AdaptiveAvgPool2d(2), nn.ConvTranspose2d(128, 8, 2), nn.Flatten(), nn.Linear(8 * 9, 5),  # 12: transposed
    )  # fmt: skip


def batches(count=2, size=8):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(size, 3, 16, 16, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(mixed(), batches(), cross_entropy, noise=2)


@pytest.fixture(scope="module")
def tiny():
    return lograd.profile(conv_net(), image_batches(2), cross_entropy)


def test_layers_that_gain_nothing_are_kept_with_the_reason(profile):
    plan = profile.plan(sparsity=0.6)
    assert list(plan.layers) == GAINS
    for name, words in (
        ("0", "3 input channels"),
        ("4", "depthwise"),
        ("6", f"sparse products are tried from {LEAST_WORK:,} on"),
        ("12", "transposed"),
        ("14", "the last layer"),
    ):
        assert words in plan.kept[name]
    assert list(plan.kept) == ["0", "4", "6", "12", "14"], "in the order in which they run"
    assert "zeros save no time here" in str(plan)
    total = sum(map(sum, plan.evidence.work.values()))
    work = plan.evidence.work
    assert sum(work[name][1] for name in work) > sum(work[name][1] for name in GAINS)
    mine = sum(sum(plan.evidence.work[name]) for name in GAINS)
    assert plan.skipped == pytest.approx(0.6 * mine / total, abs=2e-3), "the budget is that of the pruned layers"


def test_the_rule_is_the_one_by_which_attach_decides(profile):
    model = mixed()
    modules = dict(model.named_modules())
    for name, layer in profile.layers.items():
        small = layer.flops_weight // 2 < LEAST_WORK
        assert (why_no_gain(layer) is not None) == (reason_unserved(modules[name], "sparse") is not None or small)
        if reason := reason_unserved(modules[name], "sparse"):
            assert reason in why_no_gain(layer)
    plan = profile.plan(sparsity=0.6)
    with lograd.attach(model, plan) as handle:
        for images, labels in batches() * 2:
            cross_entropy(model(images), labels).backward()
            handle.step()
        for layer in handle.layers.values():
            assert layer.choices
            assert all(choice.times is not None for choice in layer.choices.values()), "timed, not too small"


def test_work_is_counted_in_the_products_that_are_pruned(profile):
    first = replace(profile["2"], flops_input=0)
    assert why_no_gain(first, ("weight_gradient",)) is None
    assert "nothing is computed" in why_no_gain(first, ("input_gradient",))
    half = replace(profile["2"], flops_weight=LEAST_WORK, flops_input=2 * LEAST_WORK)
    assert why_no_gain(half, ("input_gradient",)) is None
    assert f"{LEAST_WORK // 2:,} multiply-adds" in why_no_gain(half, ("weight_gradient",))


def test_a_mobilenet_is_pruned_where_it_gains():
    torch.manual_seed(0)
    model = torchvision().models.mobilenet_v3_small(num_classes=10)
    batch = (torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,)))
    profile = lograd.profile(model, [batch], cross_entropy)
    plan = profile.plan(sparsity=0.85)
    modules = dict(model.named_modules())
    assert (len(plan.layers), len(plan.kept)) == (15, 39)
    for name in plan.layers:
        assert modules[name].weight.shape[1] >= 8
        assert max(plan.evidence.work[name]) >= 2 * LEAST_WORK
    for name, module in modules.items():
        if getattr(module, "groups", 1) > 1:
            assert "depthwise" in plan.kept[name]


def test_everywhere_prunes_all(profile):
    plan = profile.plan(sparsity=0.6, everywhere=True, allocation="uniform")
    assert list(plan.kept) == ["14"]
    assert all(isinstance(layer.input_gradient.gradient[0], Prune) for layer in plan.layers.values())


def test_bits_stay_where_zeros_are_left_out(profile):
    plan = profile.plan(bits=6, sparsity=0.6)
    assert list(plan.kept) == ["14"]
    for name, layer in plan.layers.items():
        kinds = [type(one) for one in layer.input_gradient.gradient]
        assert kinds == ([Prune, Quantize] if name in GAINS else [Quantize])
    assert list(plan.evidence.unpruned) == ["0", "4", "6", "12"]
    assert "Not pruned: 4 of the rounded layers" in str(plan)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    changed = plan.override("4", sparsity=0.5)
    assert "4" not in changed.evidence.unpruned
    assert changed.evidence.growth is None


def test_where_no_layer_gains_all_are_pruned_and_it_is_said(tiny):
    with pytest.warns(LogradWarning, match="zeros save no time in any layer of this plan .* everywhere=True"):
        plan = tiny.plan(sparsity=0.6)
    assert list(plan.layers) == ["0", "3"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tiny.plan(sparsity=0.6, everywhere=True) == plan
        tiny.plan(bits=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidValue, match="sparsity must be"):
            tiny.plan(sparsity=1.5)


def test_a_computed_weight_is_judged_by_its_layer():
    module = nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 16, 3, groups=16))
    assert "depthwise" in reason_unserved(module, "sparse")
    assert "transposed" in reason_unserved(
        nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(16, 16, 3)), "sparse"
    )


# -- noise that explodes --


def deep(layers=30):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(64, 5))


@pytest.fixture(scope="module")
def chain():
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(64, 64, generator=generator), torch.randint(0, 5, (64,), generator=generator))]
    return lograd.profile(deep(), data, cross_entropy, noise=2), data


def test_an_explosion_is_predicted_and_then_measured(chain):
    profile, data = chain
    with pytest.warns(LogradWarning, match=r"predicted to multiply .* it explodes; .*products='weight_gradient'"):
        plan = profile.plan(sparsity=0.85, everywhere=True, allocation="uniform")
    assert plan.evidence.growth.handing_on == 30
    assert "predicted to multiply the energy of a gradient by up to" in str(plan)
    model = deep()
    with lograd.attach(model, plan, backend="dense") as handle, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            cross_entropy(model(data[0][0]), data[0][1]).backward()
            handle.step()
        grown = max(one.energy / one.first_energy for one in handle.gradients.values())
    # Noise changes the laws that it was predicted from, so the orders of magnitude agree, and no digits.
    assert np.log10(grown) == pytest.approx(np.log10(plan.evidence.growth.factor), rel=0.35)


def test_little_noise_is_predicted_to_the_digit(chain):
    profile, data = chain
    plan = profile.plan(sparsity=0.3, everywhere=True, allocation="uniform")
    model = deep()
    with lograd.attach(model, plan, backend="dense") as handle:
        grown = []
        for _ in range(12):
            cross_entropy(model(data[0][0]), data[0][1]).backward()
            handle.step()
            grown.append(max(one.energy / one.first_energy for one in handle.gradients.values()))
    assert 1.0 < plan.evidence.growth.factor < evidence.LIMIT
    assert np.mean(grown[4:]) == pytest.approx(plan.evidence.growth.factor, rel=0.15)


def test_nothing_grows_where_only_dw_is_pruned(chain):
    profile, _ = chain
    plan = profile.plan(sparsity=0.85, everywhere=True, products="weight_gradient")
    assert plan.evidence.growth is None
    assert "multiply the energy" not in str(plan)


def test_without_measured_noise_no_growth_is_predicted(chain):
    profile, _ = chain
    assert Profile(profile.layers, steps=profile.steps).plan(sparsity=0.95, everywhere=True).evidence.growth is None


# -- recommended formats --


def test_recommended_formats_are_the_smallest_good_ones(profile):
    plan = profile.plan(bits="recommended", keep=())
    for name, layer in plan.layers.items():
        (rounding,) = layer.input_gradient.gradient
        assert layer.predicted_input_gradient.cosine >= GOOD_COSINE
        assert rounding == Quantize(precision.recommended_format(profile[name].law)), "the page recommends the same"
        for bits in range(precision.WIDTHS[0], rounding.format.bits):
            law = profile[name].law
            smaller = profile.plan(bits=bits, keep=()).layers[name]
            assert smaller.input_gradient.gradient[0].format == theory.best_format(law, bits, scale="max")
            assert smaller.predicted_input_gradient.cosine < GOOD_COSINE


def test_a_layer_without_a_good_format_is_kept(profile, monkeypatch):
    real = precision.recommended_format
    law = profile["4"].law
    monkeypatch.setattr(
        "lograd.measure.planner.recommended_format", lambda one, *rest: None if one is law else real(one, *rest)
    )
    plan = profile.plan(bits="recommended")
    assert plan.kept["4"] == precision.NO_FORMAT
    both = profile.plan(bits="recommended", sparsity=0.6, everywhere=True)
    assert [type(one) for one in both.layers["4"].input_gradient.gradient] == [Prune], "it is pruned all the same"


def test_other_words_for_bits_are_refused(profile):
    with pytest.raises(InvalidValue, match=r"bits must be a whole number from 2 to 8, or 'recommended'.*Did you mean"):
        profile.plan(bits="recomended")


# -- verdicts --


def test_verdicts_stand_beside_cosines(profile):
    text = str(profile.plan(sparsity=0.9, allocation="uniform"))
    for name in GAINS:
        cosine = profile.plan(sparsity=0.9, allocation="uniform").layers[name].predicted_input_gradient.cosine
        assert f"{cosine:.4f} {verdict(cosine)}" in text
    assert "good from a cosine of 0.98" in text
    assert "counts every element alike" in text, "a relative error above 1 is explained"
