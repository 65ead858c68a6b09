"""Training runs: what is written, numbers that leave the range, and events for TensorBoard."""

import json
import math
import sys
import types

import pytest
import torch
import training_files as files
from everyday import slow

import lograd
from experiments.lab import Config, Diverged, Run, load_data, resume, train
from experiments.lab import session as sessions
from experiments.lab import work as works
from experiments.lab.events import TensorBoardEvents
from experiments.lab.folder import RunFolder
from experiments.lab.loop import load_work
from experiments.lab.measuring import width_of
from experiments.lab.session import Session
from lograd.treatments import recipe

# -- what a run leaves behind --


@pytest.mark.parametrize(
    ("model", "kind", "width", "metric"),
    [
        ("resnet8", "images", 4, "accuracy"),
        slow(("resnet20", "images", 2, "accuracy")),
        slow(("resnet18", "images", 1, "accuracy")),
        ("charlm", "text", 8, "bits_per_character"),
        ("bert-mini", "sentences", 8, "accuracy"),
    ],
)
@pytest.mark.parametrize("recipe", [None, "prune85+fp6"])
def test_every_model_trains(model, kind, width, metric, recipe, data, tmp_path):
    config = Config(model, data[kind], recipe=recipe, width=width, batch=4, steps=4, log_every=2, threads=1)
    run = train(config, tmp_path / "run")
    assert run.status == "finished"
    assert [(line["kind"], line["step"]) for line in run.lines][-2:] == [("train", 4), ("test", 4)]
    final = run.summary["final"]
    assert math.isfinite(final[metric])
    if recipe is None:
        assert (final["sparsity"], final["bits"], run.summary["counters"]) == (None, 32.0, None)
    else:
        assert final["bits"] == 6
        assert final["sparsity"] > 0.6  # thresholds of the first steps are one step old
        assert run.summary["counters"]["total"]["treated"] > 0


def test_vgg_trains(tmp_path):
    path = files.images(tmp_path / "x.npz", train=4, test=2, side=32)
    assert train(Config("vgg", path, width=1, batch=2, steps=1, threads=1), tmp_path / "run").status == "finished"


def test_the_folder_tells_everything(tiny, data, tmp_path):
    plan = lograd.Plan.uniform("fp6")
    plan.save(tmp_path / "mine.json")
    config = tiny(plan=tmp_path / "mine.json", evaluate_every=5)
    run = train(config, tmp_path / "a" / "run")
    assert {path.name for path in run.path.iterdir()} == {
        "config.json", "metrics.jsonl", "plan.json", "checkpoint.pt", "summary.json",
    }  # fmt: skip
    record = json.loads((run.path / "config.json").read_text())
    assert Config.from_json(record["settings"]) == config == run.config
    assert record["plan"] == plan.hash() == lograd.Plan.load(run.path / "plan.json").hash()
    assert record["data"] == {
        "fingerprint": load_data(config).fingerprint, "train": 64, "test": 32, "classes": 4,
    }  # fmt: skip
    assert record["versions"]["torch"] == torch.__version__
    assert (record["steps_per_epoch"], record["total_steps"], record["threads"]) == (8, 12, 1)
    places = [(line["kind"], line["step"]) for line in run.lines]
    assert places == [("train", 5), ("test", 5), ("train", 10), ("test", 10), ("train", 12), ("test", 12)]
    for line in run.lines:
        assert set(line) == {"kind", "step", "epoch", "loss", "accuracy", "lr", "seconds", "sparsity", "bits"}
        assert line["epoch"] == line["step"] / 8
    assert run.summary["final"] == run.lines[-1]
    assert run.summary["best"]["accuracy"] == max(line["accuracy"] for line in run.tests)
    assert 0 < run.summary["seconds_per_step"] < run.summary["seconds"]


def test_a_run_learns(data, tmp_path):
    config = Config("resnet8", data["images"], width=8, batch=16, epochs=6, lr=0.05, augment=False, threads=1)
    run = train(config, tmp_path / "run")
    assert run.summary["final"]["accuracy"] > 0.9  # one bright row among four
    assert run.summary["steps"] == 24


def test_metrics_of_an_interval_are_means_over_it(tiny, tmp_path):
    losses = []
    run = train(tiny(), tmp_path / "run", progress=lambda status: losses.append(status.loss))
    assert len(losses) == 12
    for line, part in zip([x for x in run.lines if x["kind"] == "train"], (slice(5), slice(5, 10), slice(10, 12)),
                          strict=True):  # fmt: skip
        assert line["loss"] == pytest.approx(sum(losses[part]) / len(losses[part]))


def test_training_leaves_torch_as_it_was(tiny, tmp_path):
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train(tiny(steps=1, threads=2), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("name", "bits"),
    [("fp6", 6), ("prune85", 32), ("prune85+int4", 4), ("identity", 32), ("mxfp4", 4.25), ("mxfp4-rht", 4.25)],
)
def test_bits_of_a_sentence(name, bits):
    assert width_of(recipe(name).input_gradient.gradient) == bits


def test_bits_are_those_of_both_products(tiny, tmp_path):
    run = train(tiny(recipe="int4-psq", steps=2), tmp_path / "run")
    products = Session(load_work(run.config), run.config.load_plan()).handle.plan.every
    assert (width_of(products.input_gradient.gradient), width_of(products.weight_gradient.gradient)) == (4, 8)
    assert 5.5 < run.summary["final"]["bits"] < 6.5  # the first layer has no product for dX


# -- numbers that leave the range --


def test_a_loss_that_is_not_finite_stops_the_run(tiny, tmp_path):
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) at step \d+ of 12; a lower learning rate than 1e\+30"):
        train(tiny(lr=1e30, log_every=1), tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert run.status == "diverged"
    assert run.summary["steps"] == len([line for line in run.lines if line["kind"] == "train"]) > 0
    with pytest.raises(lograd.InvalidValue, match=r"diverged \(the loss is .*\); start anew with other settings"):
        resume(tmp_path / "run")


def test_an_evaluation_that_is_not_finite_stops_the_run(tiny, tmp_path):
    with pytest.raises(Diverged, match=r"the loss of the evaluation is (nan|inf) after step 1 of 1; a lower"):
        train(tiny(lr=1e38, steps=1), tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert (run.status, run.tests, run.summary["final"]) == ("diverged", [], None)


def test_a_format_that_overflows_gets_a_dynamic_loss_scale(tiny, tmp_path, monkeypatch):
    config, plan = tiny(), lograd.Plan.uniform("fp8-dynamic")
    work = load_work(config)
    assert Session(work, lograd.Plan.uniform("fp8")).scaler is None
    assert Session(work, lograd.Plan.uniform("fp8-dynamic-rht")).scaler is not None
    session = Session(work, plan)
    for _ in range(3):
        session.step()
    assert session.scaler.get_scale() == session.handle.state_dict()["loss_scale"] == 2.0**16
    session.save(tmp_path / "checkpoint.pt", 0)
    other = Session(work, lograd.Plan.uniform("fp8-dynamic"))
    other.load(tmp_path / "checkpoint.pt")
    assert other.scaler.state_dict() == session.scaler.state_dict()
    assert other.step() == session.step()

    monkeypatch.setattr(sessions, "INITIAL_LOSS_SCALE", 2.0**127)
    usual = works.loss_of
    monkeypatch.setattr(works, "loss_of", lambda logits, targets: 1e3 * usual(logits, targets))
    session = Session(work, plan)
    before = [parameter.clone() for parameter in session.model.parameters()]
    session.step()
    assert session.scaler.get_scale() == session.handle.state_dict()["loss_scale"] == 2.0**126
    assert all(torch.equal(a, b) for a, b in zip(before, session.model.parameters(), strict=True))


# -- TensorBoard --


def test_tensorboard_gets_the_metrics(tiny, tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    run = train(tiny(steps=5, tensorboard=True), tmp_path / "run")
    assert written[0] == (str(tmp_path / "run" / "tensorboard"), 5)
    assert ("train/loss", run.lines[0]["loss"], 5) in written
    assert ("test/accuracy", run.lines[1]["accuracy"], 5) in written
    assert written[-1] == "closed"


def test_tensorboard_gets_intervals_by_layer(tmp_path):
    written = {}
    writer = types.SimpleNamespace(add_scalar=lambda name, value, step: written.update({name: (value, step)}))
    events = TensorBoardEvents(lambda *_, **__: writer, RunFolder(tmp_path))
    interval = {"step": 7, "gamma": 0.5}
    events.write({"kind": "train", "step": 9, "loss": 1.5, "sparsity": None, "intervals": {"fc": interval}})
    assert written == {"train/loss": (1.5, 9), "train/intervals/fc/gamma": (0.5, 9)}


def test_without_tensorboard_there_is_a_sentence(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(lograd.InvalidValue, match="TensorBoard was asked for and is not installed; pip install"):
        train(tiny(tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
