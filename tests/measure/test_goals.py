"""Plans for a goal: from a profile's times and noise to methods by layer, and back from a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from menued import menus_of, observed
from networks import conv_net, image_batches
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


@pytest.fixture
def profile():
    found = observed()
    return replace(found, menus=menus_of(found))


def methods_of(plan, profile):
    """The method of each treated layer, by the plan that a method has."""
    known = {method(name).plan.words(): name for name in profile.menus.methods}
    return {name: known.get(layer.words(), layer.words()) for name, layer in plan.layers.items()}


def test_a_budget_of_noise_is_kept_and_its_time_is_that_of_the_menus(profile):
    plan = profile.plan(noise=0.1)
    assert plan.evidence.expected.total <= 0.1
    assert plan.evidence.expected.unit == pytest.approx(profile.minibatch.unit, rel=1e-5)
    chosen = methods_of(plan, profile)
    layers = profile.menus.layers.items()
    seconds = profile.menus.rest + sum(menu[chosen.get(name, "dense")].seconds for name, menu in layers)
    assert plan.evidence.expected.seconds == pytest.approx(seconds, rel=1e-5)
    assert plan.evidence.expected.dense_seconds == pytest.approx(profile.menus.step, rel=1e-5)
    assert profile.plan(noise=0.01).evidence.expected.seconds >= plan.evidence.expected.seconds
    assert "times as fast" in str(plan)
    assert "of the minibatch's variance" in " ".join(str(plan).split())
    assert plan.skipped == 0.0  # integer products skip no zeros


def test_rho_is_the_noise_that_travels(profile):
    plan = profile.plan(noise=0.1)
    chosen = methods_of(plan, profile)
    candidates = {name: profile.menus.layers[name][chosen.get(name, "dense")] for name in profile.noise.layers}
    ratios = [[getattr(one, f"{side}_noise") for one in candidates.values()] for side in ("input", "weight")]
    rises = [
        [
            rise_of(method(candidates[name].method).plan.site(product, "gradient"), profile[name], ratio)
            for name, ratio in zip(candidates, column, strict=True)
        ]
        for product, column in zip(BACKWARD, ratios, strict=True)
    ]
    energy, _ = risen(profile.noise.energies, ratios, rises)
    assert plan.evidence.expected.rho == pytest.approx(energy / profile.minibatch.unit, rel=1e-5)
    assert plan.evidence.expected.penalty == pytest.approx(
        sum(one.penalty for one in candidates.values()) / profile.minibatch.unit, rel=1e-5
    )


def test_progress_weighs_time_against_noise(profile):
    steady = profile.plan(objective="progress")
    assert steady.evidence.expected.progress >= profile.plan(noise=0.1).evidence.expected.progress
    assert steady.evidence.expected.progress >= profile.plan(noise=1.0).evidence.expected.progress


def test_backends_are_fixed_so_that_runs_repeat(profile):
    plan = profile.plan(noise=0.1)
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


def test_methods_restrict_the_choice(profile):
    assert set(methods_of(profile.plan(noise=0.1, methods="int8-full"), profile).values()) == {"int8-full"}
    with pytest.warns(LogradWarning, match="it explodes"):
        pruned = profile.plan(noise=1e4, methods=["prune*"])
    assert set(methods_of(pruned, profile).values()) == {"prune95"}
    with pytest.raises(InvalidValue, match="Did you mean 'int8-full'"):
        profile.plan(noise=0.1, methods="int88-full")
    with pytest.raises(InvalidType, match="methods must be a name"):
        profile.plan(noise=0.1, methods=3)


def test_the_plan_survives_its_file_and_its_hash_leaves_expectations_out(profile, tmp_path):
    plan = profile.plan(noise=0.1)
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
        ({"bits": 4, "methods": ["int8-full"]}, "methods="),
    ],
)
def test_goals_are_not_mixed_with_other_plans(profile, arguments, message):
    with pytest.raises(InvalidValue, match=message):
        profile.plan(**arguments)


def test_a_profile_that_lacks_measurements_says_what_to_do():
    with pytest.raises(InvalidValue, match=r"times=True.*this one lacks times\."):
        observed().plan(noise=0.1)
    with pytest.raises(InvalidValue, match="lacks times and noise and the minibatch's variance"):
        lograd.Profile().plan(objective="progress")


def test_the_command_line_makes_plans_for_goals(profile, tmp_path, capsys, monkeypatch):
    profile.save(tmp_path / "profile.npz")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["lograd", "plan", str(tmp_path), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        return ended.value.code, " ".join(found.out.split()), " ".join(found.err.split())

    code, out, _ = run("--noise", "0.1", "--method", "int*")
    assert not code
    assert "times as fast" in out
    assert Plan.load(tmp_path / "plan.json") == profile.plan(noise=0.1, methods="int*")
    assert "a goal" in run()[2]
    assert "bits=" in run("--noise", "0.1", "--bits", "4")[2]


def test_a_plan_for_a_goal_can_be_attached(profile):
    model, (batch, *_) = conv_net(), image_batches(1)
    with lograd.attach(model, profile.plan(noise=0.1)):
        cross_entropy(model(batch[0]), batch[1]).backward()
    assert all(one.grad.isfinite().all() for one in model.parameters())
