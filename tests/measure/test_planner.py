"""Plans from a profile: by amounts of bits and zeros, and for a goal of noise or progress."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from menued import menus_of, observed
from networks import conv_net, image_batches, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidType, InvalidValue, Plan
from lograd.cli import main
from lograd.errors import LogradWarning
from lograd.measure.prediction import rise_of
from lograd.measure.timing import method
from lograd.plan import Evidence
from lograd.theory import risen
from lograd.treatments import BACKWARD


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


# -- goals --


@pytest.fixture
def timed():
    found = observed()
    return replace(found, menus=menus_of(found))


def methods_of(plan, timed):
    """The method of each treated layer, by the plan that a method has."""
    known = {method(name).plan.words(): name for name in timed.menus.methods}
    return {name: known.get(layer.words(), layer.words()) for name, layer in plan.layers.items()}


def test_a_budget_of_noise_is_kept_and_its_time_is_that_of_the_menus(timed):
    plan = timed.plan(noise=0.1)
    assert plan.evidence.expected.total <= 0.1
    assert plan.evidence.expected.unit == pytest.approx(timed.minibatch.unit, rel=1e-5)
    chosen = methods_of(plan, timed)
    assert plan.evidence.expected.seconds == pytest.approx(timed.menus.seconds(chosen), rel=1e-5)
    assert plan.evidence.expected.dense_seconds == pytest.approx(timed.menus.step, rel=1e-5)
    assert timed.plan(noise=0.01).evidence.expected.seconds >= plan.evidence.expected.seconds
    assert "times as fast" in str(plan)
    assert "of the minibatch's variance" in " ".join(str(plan).split())
    assert plan.skipped == 0.0  # integer products skip no zeros


def test_rho_is_the_noise_that_travels(timed):
    plan = timed.plan(noise=0.1)
    chosen = methods_of(plan, timed)
    candidates = {name: timed.menus.layers[name][chosen.get(name, "dense")] for name in timed.noise.layers}
    ratios = [[getattr(one, f"{side}_noise") for one in candidates.values()] for side in ("input", "weight")]
    rises = [
        [
            rise_of(method(candidates[name].method).plan.site(product, "gradient"), timed[name], ratio)
            for name, ratio in zip(candidates, column, strict=True)
        ]
        for product, column in zip(BACKWARD, ratios, strict=True)
    ]
    energy, _ = risen(timed.noise.energies, ratios, rises)
    assert plan.evidence.expected.rho == pytest.approx(energy / timed.minibatch.unit, rel=1e-5)
    assert plan.evidence.expected.penalty == pytest.approx(
        sum(one.penalty for one in candidates.values()) / timed.minibatch.unit, rel=1e-5
    )


def test_progress_weighs_time_against_noise(timed):
    steady = timed.plan(objective="progress")
    assert steady.evidence.expected.progress >= timed.plan(noise=0.1).evidence.expected.progress
    assert steady.evidence.expected.progress >= timed.plan(noise=1.0).evidence.expected.progress


def test_backends_are_fixed_so_that_runs_repeat(timed):
    plan = timed.plan(noise=0.1)
    for layer in plan.layers.values():
        for name in ("output", "input_gradient", "weight_gradient"):
            product = getattr(layer, name)
            assert product.backend != "auto" or not product.treats


def test_layers_that_are_left_alone_say_why():
    found = observed()
    slow = list(found.layers)[1]
    plan = replace(found, menus=menus_of(found, slow=slow)).plan(noise=0.1)
    assert plan.kept[slow] == "nothing is faster than dense here (2.00 ms)"
    timid = replace(found, menus=menus_of(found)).plan(noise=1e-9)
    assert not timid.layers
    assert all("would save" in reason and "minibatch's variance" in reason for reason in timid.kept.values())
    assert timid.evidence.expected.speed == pytest.approx(1.0)
    kept = replace(found, menus=menus_of(found)).plan(noise=0.1, keep="first")
    assert kept.kept[next(iter(found.layers))] == "the first layer"


def test_methods_restrict_the_choice(timed):
    assert set(methods_of(timed.plan(noise=0.1, methods="int8"), timed).values()) == {"int8"}
    with pytest.warns(LogradWarning, match="it explodes"):
        pruned = timed.plan(noise=1e4, methods=["prune*"])
    assert set(methods_of(pruned, timed).values()) == {"prune95"}
    with pytest.raises(InvalidValue, match="Did you mean 'int8'"):
        timed.plan(noise=0.1, methods="int88")
    with pytest.raises(InvalidType, match="methods must be a name"):
        timed.plan(noise=0.1, methods=3)


def test_the_plan_survives_its_file_and_its_hash_leaves_expectations_out(timed, tmp_path):
    plan = timed.plan(noise=0.1)
    again = Plan.load(plan.save(tmp_path / "plan.json"))
    assert again == plan
    assert again.evidence.expected == plan.evidence.expected
    assert replace(plan, evidence=Evidence()).hash() == plan.hash()
    assert max(map(len, (tmp_path / "plan.json").read_text().splitlines())) < 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise": 0.1, "bits": 4}, "bits="),
        ({"noise": 0.2, "sparsity": 0.9, "split": True}, "sparsity= and split="),
        ({"noise": 0.1, "objective": "progress"}, "both"),
        ({"objective": "speed"}, "'progress'"),
        ({"noise": -1.0}, "-1.0"),
        ({"noise": True}, "noise"),
        ({"bits": 4, "methods": ["int8"]}, "methods="),
    ],
)
def test_goals_are_not_mixed_with_other_plans(timed, arguments, message):
    with pytest.raises(InvalidValue, match=message):
        timed.plan(**arguments)


def test_a_profile_that_lacks_measurements_says_what_to_do():
    with pytest.raises(InvalidValue, match=r"times=True.*this one lacks times\."):
        observed().plan(noise=0.1)
    with pytest.raises(InvalidValue, match="lacks times and noise and the minibatch's variance"):
        lograd.Profile().plan(objective="progress")


def test_the_command_line_makes_plans_for_goals(timed, tmp_path, capsys, monkeypatch):
    timed.save(tmp_path / "profile.npz")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["lograd", "plan", str(tmp_path), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        return ended.value.code, " ".join(found.out.split()), " ".join(found.err.split())

    code, out, _ = run("--noise", "0.1", "--method", "int*")
    assert not code
    assert "times as fast" in out
    assert Plan.load(tmp_path / "plan.json") == timed.plan(noise=0.1, methods="int*")
    assert "a goal" in run()[2]
    assert "bits=" in run("--noise", "0.1", "--bits", "4")[2]


def test_a_plan_for_a_goal_can_be_attached(timed):
    model, (batch, *_) = conv_net(), image_batches(1)
    with lograd.attach(model, timed.plan(noise=0.1)):
        cross_entropy(model(batch[0]), batch[1]).backward()
    assert all(one.grad.isfinite().all() for one in model.parameters())
