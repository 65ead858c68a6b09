"""Plans from profiles: formats and thresholds by theory, changes that say what they change, predictions that hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from experiments.data import digits
from lograd import Plan, theory
from lograd.errors import InvalidValue
from lograd.plan import LayerPlan
from lograd.theory import float_formats
from lograd.treatments import Prune, Quantize, Statistics, apply, numbers_of, predict


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(conv_net(), image_batches(2), cross_entropy)


def treatments(plan, name, product="input_gradient"):
    return plan.layers[name].site(product, "gradient")


# -- building --


def test_bits_choose_the_best_split_for_each_law(profile):
    plan = profile.plan(bits=6)
    assert list(plan.layers) == ["0", "3"]
    assert dict(plan.kept) == {"7": "the last layer"}
    for name, layer in plan.layers.items():
        best = theory.best_format(profile[name].law, 6, scale="max")
        errors = [predict((Quantize(one),), Statistics(profile[name].law)).relative_error for one in float_formats(6)]
        assert layer.predicted_input_gradient.relative_error == pytest.approx(min(errors), rel=1e-2), (
            "for the scale that is used"
        )
        assert layer.input_gradient.gradient == layer.weight_gradient.gradient == (Quantize(best, "max", "stochastic"),)
        assert layer.elements == profile[name].elements
        assert layer.masked == pytest.approx(profile[name].masked, abs=1e-6)
        expected = predict(layer.input_gradient.gradient, Statistics(profile[name].law))
        assert layer.predicted_input_gradient.cosine == pytest.approx(expected.cosine, rel=1e-5)
        assert layer.predicted_input_gradient == layer.predicted_weight_gradient


def test_sparsity_of_each_layer_or_of_all_together(profile):
    uniform = profile.plan(sparsity=0.85, law="lognormal")
    assert treatments(uniform, "0") == treatments(uniform, "3") == (Prune(0.85, "lognormal"),)
    assert profile.plan(sparsity=0.85).layers["0"].predicted_input_gradient.sparsity == pytest.approx(0.85, abs=1e-3)

    cosine = profile.plan(sparsity=0.85, allocation="cosine", keep=())
    shares = np.array([treatments(cosine, name)[0].sparsity for name in profile.layers])
    counts = np.array([layer.flops_input + layer.flops_weight for layer in profile.layers.values()])
    assert shares @ counts / counts.sum() == pytest.approx(0.85, abs=2e-4)
    cosines = [layer.predicted_input_gradient.cosine for layer in cosine.layers.values()]
    assert cosines == pytest.approx([cosines[0]] * 3, abs=2e-3)
    assert len(set(shares)) == 3


def test_both_prune_then_quantize(profile):
    plan = profile.plan(bits=5, sparsity=0.8).override("[03]", scale="quantile(0.999)", rounding="nearest")
    prune, quantize = treatments(plan, "0")
    assert prune == Prune(0.8)
    assert (quantize.format.bits, quantize.scale, quantize.rounding) == (5, "quantile(0.999)", "nearest")


def test_one_product_only(profile):
    plan = profile.plan(sparsity=0.9, products="weight_gradient")
    assert treatments(plan, "0", "input_gradient") == ()
    assert treatments(plan, "0", "weight_gradient") == (Prune(0.9),)
    assert plan.layers["0"].predicted_input_gradient.cosine == 1
    assert plan.layers["0"].predicted_weight_gradient.cosine < 1


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ((), {}),
        ("first", {"0": "the first layer"}),
        (("first", "last"), {"0": "the first layer", "7": "the last layer"}),
        (("[03]",), {"0": "it matches '[03]'", "3": "it matches '[03]'"}),
    ],
)
def test_kept_layers(profile, keep, kept):
    plan = profile.plan(bits=8, keep=keep)
    assert dict(plan.kept) == kept
    assert [*plan.layers, *plan.kept] != []
    assert set(plan.layers) == {"0", "3", "7"} - set(kept)


def test_what_cannot_be_treated_is_left_out_or_kept_with_the_reason():
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    seen = lograd.profile(model, vector_batches(1), cross_entropy, filter_fn=lambda module, name: name != "")
    plan = seen.plan(bits=6, keep="last")
    assert (list(plan.layers), dict(plan.kept)) == (["0"], {"2": "the last layer"})
    norms = lograd.profile(model, vector_batches(1), cross_entropy, filter_fn=lambda module, name: name == "1")
    with pytest.raises(InvalidValue, match="a profile of a linear layer or convolution"):
        norms.plan(bits=6)
    still = lograd.profile(mlp(), [torch.zeros(4, 6)], lambda model, x: model(x).sum() * 0)
    with pytest.raises(InvalidValue, match=r"all 2 are kept .*its gradient was zero in the profile"):
        still.plan(bits=6)


def test_refusals_of_a_plan(profile):
    with pytest.raises(InvalidValue, match="a plan needs bits=, sparsity= or both"):
        profile.plan()
    with pytest.raises(
        InvalidValue,
        match=r"allocation must be 'uniform', 'cosine' or 'noise'; got 'cosines'. Did you mean 'cosine'",
    ):
        profile.plan(sparsity=0.5, allocation="cosines")
    with pytest.raises(InvalidValue, match=r"law of a pruning threshold .* Did you mean 'lognormal'"):
        profile.plan(sparsity=0.5, law="log-normal")
    with pytest.raises(InvalidValue, match=r"keep must be 'first', 'last' or a pattern .* Did you mean 'last'"):
        profile.plan(bits=6, keep="lst")
    with pytest.raises(
        InvalidValue,
        match=r"products must be 'input_gradient', .* or both; got 'weights_gradient'. Did you mean 'weight_gra",
    ):
        profile.plan(bits=6, products=("weights_gradient",))
    with pytest.raises(InvalidValue, match=r"products must be .* got none"):
        profile.plan(bits=6, products=())
    for sparsity in (0.0, 1.0, 85):
        with pytest.raises(InvalidValue, match="sparsity must be above 0 and below 1"):
            profile.plan(sparsity=sparsity)
        with pytest.raises(InvalidValue, match="sparsity must be above 0 and below 1"):
            profile.plan(sparsity=sparsity, allocation="cosine")
    with pytest.raises(InvalidValue, match="bits must be a whole number from 2 to 8"):
        profile.plan(bits=1)
    with pytest.raises(InvalidValue, match="scale rule must be one of"):
        profile.plan(bits=6).override("0", scale="maximum")


def test_profile_plan_attach_and_observe_what_is_attached(profile):
    model = conv_net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = profile.plan(sparsity=0.9)
    with lograd.attach(model, plan, refresh=1) as handle, lograd.observe(model, every=1) as seen:
        for x, y in image_batches(3):
            cross_entropy(model(x), y).backward()
            handle.step()
    assert list(seen.layers) == ["0", "3", "7"]
    assert [layer.kind for layer in seen.layers.values()] == ["Conv2d", "Conv2d", "Linear"]
    assert seen["3"].zero_share < 0.5, "a layer's own gradient is seen before it is treated"
    assert seen["3"].records[0].law == profile["3"].records[0].law
    assert {name for name in before if not torch.equal(before[name], model.state_dict()[name])} == {
        f"{norm}.{name}" for norm in ("1", "4") for name in ("running_mean", "running_var", "num_batches_tracked")
    }


# -- predicted and measured --


def trained_gradients():
    """Real gradients: every layer's, after some steps of training on handwritten digits."""
    images, labels, _, _ = digits()
    batches = list(zip(images.split(64), labels.split(64), strict=True))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(inplace=True), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for x, y in batches[:10]:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    # With room for every element, the sample is the gradient.
    return lograd.profile(model, batches[10:11], cross_entropy, sample=2**20)


SENTENCES = {
    **{f"prune {share}": (Prune(share),) for share in (0.5, 0.8, 0.9, 0.95)},
    **{f"FP{bits}": bits for bits in (4, 5, 6, 7, 8)},
    "FP6, nearest, mean": (Quantize("1-4-1", "mean", "nearest"),),
    "INT4": (Quantize("int4"),),
    "prune 0.8, then FP6": (Prune(0.8), Quantize("1-4-1")),
}


@pytest.fixture(scope="module")
def trained():
    with torch.random.fork_rng(devices=[]):
        return trained_gradients()


@pytest.mark.parametrize("sentence", SENTENCES)
def test_predictions_hold_on_real_gradients(trained, sentence):
    for name, layer in trained.layers.items():
        g = torch.from_numpy(layer.sample)
        assert g.numel() == layer.elements
        chosen = SENTENCES[sentence]
        if isinstance(chosen, int):
            chosen = treatments(trained.plan(bits=chosen, keep=()), name)
        statistics = Statistics(layer.law)
        predicted = predict(chosen, statistics)
        # The average of several draws: what is predicted is an expectation, and the last layers have few elements.
        errors, cosines = [], []
        x = g.double()
        nonzero = x != 0
        for seed in range(max(4, 200_000 // g.numel())):
            y_ = apply(chosen, g, seed, numbers=numbers_of(chosen, statistics)).result.double()
            errors.append(float((y_[nonzero] / x[nonzero] - 1).abs().mean()))
            cosines.append(float(x @ y_ / x.norm() / y_.norm()))
        assert predicted.relative_error == pytest.approx(np.mean(errors), rel=0.05), name
        assert predicted.cosine == pytest.approx(np.mean(cosines), rel=0.05), name


# -- changing --


def test_override_changes_what_is_given_and_predicts_anew(profile):
    plan = profile.plan(sparsity=0.85, bits=6)
    changed = plan.override("0", sparsity=0.9)
    prune, quantize = treatments(changed, "0")
    assert (prune, quantize) == (Prune(0.9), treatments(plan, "0")[1])
    assert changed.layers["0"].predicted_input_gradient.sparsity == pytest.approx(0.9, abs=1e-3)
    assert changed.layers["3"] == plan.layers["3"]
    assert plan.layers["0"].input_gradient.gradient[0] == Prune(0.85), "the plan itself must not change"

    assert treatments(plan.override("*", format="int8"), "3")[1].format == lograd.IntFormat(8)
    assert treatments(plan.override("3", bits=8), "3")[1].format == theory.best_format(profile["3"].law, 8, scale="max")
    other = plan.override("3", scale="mean", rounding="nearest", law="normal", products="weight_gradient")
    assert treatments(other, "3", "input_gradient") == treatments(plan, "3")
    prune, quantize = treatments(other, "3", "weight_gradient")
    assert (prune.law, quantize.scale, quantize.rounding) == ("normal", "mean", "nearest")
    assert other.layers["3"].predicted_weight_gradient != other.layers["3"].predicted_input_gradient


def test_override_adds_a_part_where_there_is_none(profile):
    plan = profile.plan(bits=6).override("0", sparsity=0.5)
    assert [one.kind for one in treatments(plan, "0")] == ["prune", "quantize"]
    plan = profile.plan(sparsity=0.8).override("0", format="1-5-2")
    assert [one.kind for one in treatments(plan, "0")] == ["prune", "quantize"]


def test_layers_are_left_alone_and_taken_in_again(profile):
    plan = profile.plan(sparsity=0.8)
    alone = plan.override("0", treat=False)
    assert list(alone.layers) == ["3"]
    assert dict(alone.kept) == {"7": "the last layer", "0": "left alone by override('0')"}
    again = alone.override("0", sparsity=0.8)
    assert list(again.layers) == ["0", "3"], "in the order of execution"
    assert again.layers["0"].masked == plan.layers["0"].masked
    assert again.layers["0"].predicted_input_gradient == plan.layers["0"].predicted_input_gradient


def test_predictions_without_laws_are_dropped_and_never_stale(profile, tmp_path):
    loaded = Plan.load(profile.plan(sparsity=0.85).save(tmp_path / "plan.json"))
    changed = loaded.override("0", sparsity=0.5, products="input_gradient")
    assert changed.layers["0"].predicted_input_gradient is None
    assert changed.layers["0"].predicted_weight_gradient == loaded.layers["0"].predicted_weight_gradient
    with pytest.raises(
        InvalidValue, match="bits= needs the law of layer '0', which only a plan straight from a profile"
    ):
        loaded.override("0", bits=4)


def test_uniform_plans_take_names():
    plan = Plan.uniform("prune85+fp6").override("fc", treat=False).override("conv1", sparsity=0.5)
    assert dict(plan.kept) == {"fc": "left alone by override('fc')"}
    assert plan.layers["conv1"].input_gradient.gradient[0] == Prune(0.5)
    assert plan.layers["conv1"].input_gradient.gradient[1] == plan.every.input_gradient.gradient[1]
    with pytest.raises(InvalidValue, match=r"the pattern 'conv\*' matches none; give a name"):
        Plan.uniform("fp6").override("conv*", treat=False)


def test_refusals_of_override(profile):
    plan = profile.plan(sparsity=0.8)
    with pytest.raises(InvalidValue, match="override needs something to change"):
        plan.override("0")
    with pytest.raises(InvalidValue, match="treat=False leaves layers alone"):
        plan.override("0", treat=False, sparsity=0.5)
    named = Plan({"layer1.conv": LayerPlan()})
    with pytest.raises(
        InvalidValue, match=r"'layer1.conf' matches no layer .* it has layer1.conv. Did you mean 'layer1.conv'"
    ):
        named.override("layer1.conf", sparsity=0.5)
    with pytest.raises(InvalidValue, match="layer '0' is not rounded, so scale= alone changes nothing"):
        plan.override("0", scale="mean")
    with pytest.raises(InvalidValue, match="layer '0' is not pruned, so law= alone changes nothing"):
        profile.plan(bits=6).override("0", law="normal")
    with pytest.raises(InvalidValue, match="got both"):
        plan.override("0", bits=6, format="1-4-1")
    with pytest.raises(InvalidValue, match="in both lists"):
        Plan({"a": LayerPlan()}, {"a": "the first layer"})


# -- reading --


def test_the_file_is_an_exact_inverse_and_short(profile, tmp_path):
    plan = profile.plan(sparsity=0.85, bits=6, allocation="cosine").override(
        "3", sparsity=0.5, products="input_gradient"
    )
    path = plan.save(tmp_path / "plan.json")
    assert Plan.load(path) == plan
    text = path.read_text()
    assert json.loads(text) == plan.to_dict() | {"checksum": json.loads(text)["checksum"]}
    assert max(map(len, text.splitlines())) <= 120


def test_the_table_shows_products_predictions_and_reasons(profile):
    text = str(profile.plan(sparsity=0.85).override("0", sparsity=0.5, products="input_gradient"))
    rows = [line.split() for line in text.splitlines()]
    assert ["7", "kept:", "the", "last", "layer"] in rows
    assert any(row[:4] == ["0", "dX", "prune", "0.5"] and "50.0%" in row for row in rows)
    assert any(row[:4] == ["0", "dW", "prune", "0.85"] for row in rows)
    assert any(row[:4] == ["3", "both", "prune", "0.85"] for row in rows)
    assert "(every other)" in str(Plan.uniform("fp6"))
