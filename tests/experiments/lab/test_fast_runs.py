"""Fast runs: their plan is found before they begin, kept in the folder, and not looked for again."""

import json

import pytest
import torch
from training_runs import assert_same_run, crashed, settings
from typer.testing import CliRunner

from experiments.lab import Config, Run, Session, fast, load_data, loop, resume, train
from experiments.lab.fast import Found, find_plan
from experiments.lab.work import BuiltIn
from lograd import InvalidType, InvalidValue, Plan
from lograd.cli import app


@pytest.fixture
def planned(monkeypatch):
    """Let fast runs find this plan; the works for which one was looked for are listed."""

    def plan(found):
        asked = []

        def find(work):
            asked.append(work)
            return Found(found, "twice as fast.", 1.5)

        monkeypatch.setattr(loop, "find_plan", find)
        return asked

    return plan


def test_the_plan_is_kept_in_the_folder_and_guarded(tiny, tmp_path, planned):
    asked = planned(Plan.uniform("int8-full"))
    told = []
    run = train(tiny(fast=True), tmp_path / "run", tell=told.append)
    assert told == ["twice as fast."]
    assert Plan.load(tmp_path / "run" / "plan.json") == Plan.uniform("int8-full")
    assert run.record["planning"] == {"words": "twice as fast.", "seconds": 1.5}
    assert "layers treated" in run.summary["guard"]
    assert run.config.treatment == "fast"
    assert len(asked) == 1


def test_it_resumes_to_the_same_bits_without_another_search(tiny, tmp_path, planned):
    asked = planned(Plan.uniform("int8-full"))
    train(tiny(fast=True), tmp_path / "whole")
    crashed(tiny(fast=True), tmp_path / "cut", 7)
    assert len(asked) == 2
    resume(tmp_path / "cut", expected=tiny(fast=True).to_json())
    assert len(asked) == 2
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_where_nothing_is_gained_the_run_is_dense(tiny, tmp_path, planned):
    planned(None)
    train(tiny(fast=True), tmp_path / "fast")
    train(tiny(), tmp_path / "dense")
    assert not (tmp_path / "fast" / "plan.json").exists()
    assert_same_run(tmp_path / "fast", tmp_path / "dense")


def test_a_run_that_replaces_another_does_not_keep_its_plan(tiny, tmp_path, planned):
    planned(Plan.uniform("int8-full"))
    train(tiny(fast=True), tmp_path / "run")
    planned(None)
    train(tiny(fast=True), tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_plan_in_the_folder_is_not_replaced_unasked(tiny, tmp_path, planned):
    asked = planned(Plan.uniform("int8-full"))
    (tmp_path / "run").mkdir()
    mine = Plan.uniform("fp6").save(tmp_path / "run" / "plan.json")
    with pytest.raises(InvalidValue, match=r"plan\.json exists, and a fast run finds a plan of its own"):
        train(tiny(fast=True), tmp_path / "run")
    assert asked == []
    assert Plan.load(mine) == Plan.uniform("fp6")
    train(tiny(fast=True), tmp_path / "run", overwrite=True)
    assert Plan.load(mine) == Plan.uniform("int8-full")


def test_a_run_of_two_steps_is_not_measured(tiny, tmp_path):
    run = train(tiny(fast=True, steps=2), tmp_path / "run")
    assert run.record["planning"]["words"] == "the step stays as it is: a run of 2 steps is too short."
    assert not (tmp_path / "run" / "plan.json").exists()


def test_the_search_sees_batches_and_loss_of_the_run(tiny, monkeypatch):
    seen = {}

    def fastest(model, batches, loss, **options):
        seen.update(model=model, losses=[float(loss(model, batch).detach()) for batch in batches])
        return Plan(), "nothing."

    monkeypatch.setattr(fast, "fastest_plan", fastest)
    config = tiny(fast=True, augment=False, lr=1e-12)
    data = load_data(config)
    before = torch.get_rng_state()
    found = find_plan(BuiltIn(config, data))
    assert (found.plan, found.words) == (None, "nothing.")
    assert torch.equal(before, torch.get_rng_state())
    with Session(BuiltIn(tiny(augment=False, lr=1e-12), data), None) as session:
        assert seen["losses"] == pytest.approx([session.step() for _ in seen["losses"]], rel=1e-4)
    assert seen["model"].training


def test_a_model_of_the_users_runs_fast(mine, planned):
    asked = planned(Plan.uniform("int8-full"))
    run = train(settings(fast=True), mine() / "run")
    assert run.status == "finished"
    assert len(asked) == 1


def test_a_real_search_leaves_the_run_as_it_is(tiny, tmp_path):
    """Its random numbers, batches and model are its own, whatever it finds."""
    whole = train(tiny(fast=True, steps=4), tmp_path / "fast")
    words = whole.record["planning"]["words"]
    assert words.endswith(".")
    assert whole.record["planning"]["seconds"] > 0
    if "stays as it is" in words:
        train(tiny(steps=4), tmp_path / "dense")
        assert_same_run(tmp_path / "fast", tmp_path / "dense")
    else:
        plan = str(tmp_path / "fast" / "plan.json")
        again = train(tiny(steps=4, plan=plan, guard=True), tmp_path / "again")
        assert again.summary["final"]["loss"] == whole.summary["final"]["loss"]


def test_settings(tiny):
    config = tiny(fast=True)
    assert config.to_json()["fast"] is True
    assert Config.from_json(config.to_json()) == config
    assert "fast" not in tiny().to_json()
    for other in ({"recipe": "fp6"}, {"plan": "plan.json"}, {"start": 5}, {"backend": "auto"}, {"backend": "integer"}):
        with pytest.raises(
            InvalidValue, match="finds its own plan and begins by itself; leave out plan, recipe, start"
        ):
            tiny(fast=True, **other)
    with pytest.raises(InvalidType, match="fast must be true or false"):
        tiny(fast=1)


def test_the_command_says_what_was_found(data, tmp_path, planned):
    planned(Plan.uniform("int8-full"))
    given = ["train", "--model", "resnet8", "--data", str(data["images"]), "--width", "2", "--batch", "8"]
    told = CliRunner().invoke(app, [*given, "--steps", "3", "--fast", "-o", str(tmp_path / "run")])
    assert told.exit_code == 0, told.output
    assert "lograd: twice as fast." in told.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["fast"] is True
    assert Run.load(tmp_path / "run").status == "finished"
    refused = CliRunner().invoke(app, [*given, "--fast", "--recipe", "fp6", "-o", str(tmp_path / "other")])
    assert isinstance(refused.exception, InvalidValue)
    assert "leave out plan, recipe, start and backend" in str(refused.exception)
    assert not (tmp_path / "other").exists()
