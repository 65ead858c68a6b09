"""Training runs: what is written, and that a run which ends in any way is resumed to the same bits."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace

import pytest
import torch
import training_files as files
from torch import nn

import lograd
from lograd.training import TASKS, Config, Diverged, Interrupted, Run, load_data, resume, train
from lograd.training import session as sessions
from lograd.training import work as works
from lograd.training.journal import Journal
from lograd.training.loop import load_work
from lograd.training.measuring import width_of
from lograd.training.session import Session
from lograd.treatments import recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "images": files.images(folder / "images.npz"),
        "text": files.text(folder / "text.txt"),
        "sentences": files.sentences(folder / "sentences"),
    }


@pytest.fixture
def tiny(data):
    """A config of a few milliseconds a step."""
    usual = {"batch": 8, "width": 2, "steps": 12, "log_every": 5, "checkpoint_every": 4, "threads": 1}
    return lambda **changes: Config("resnet8", data["images"], **(usual | changes))


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def assert_same_run(one, other):
    """Weights bit for bit, metrics and counters but for times."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    runs = [Run.load(folder) for folder in (one, other)]
    lines = [[{k: v for k, v in line.items() if k != "seconds"} for line in run.lines] for run in runs]
    assert lines[0] == lines[1]
    assert runs[0].summary["counters"] == runs[1].summary["counters"]


# -- what a run leaves behind --


@pytest.mark.parametrize(
    ("model", "kind", "width", "metric"),
    [
        ("resnet8", "images", 4, "accuracy"),
        ("resnet20", "images", 2, "accuracy"),
        ("resnet18", "images", 1, "accuracy"),
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


# -- resuming --


def dropout_net(classes, width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 8 * width), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8 * width, classes)
    )


class Crash(Exception):
    pass


@pytest.mark.parametrize("recipe", [None, "prune85+fp6"])
def test_a_crash_anywhere_is_resumed_to_the_same_bits(recipe, tiny, tmp_path, monkeypatch):
    """In one process, at every step; dropout depends on torch's own random state."""
    monkeypatch.setitem(TASKS, "resnet8", replace(TASKS["resnet8"], build=dropout_net))
    config = tiny(recipe=recipe, steps=10, log_every=3, checkpoint_every=4, evaluate_every=5)
    train(config, tmp_path / "whole")
    for last in range(1, 11):
        folder = tmp_path / f"crash{last}"

        def crash(status, last=last):
            if status.step == last:
                raise Crash

        with pytest.raises(Crash):
            train(config, folder, progress=crash)
        torch.rand(3)
        assert resume(folder).status == "finished"
        assert_same_run(tmp_path / "whole", folder)


def test_kill_9_at_a_random_moment_is_resumed_to_the_same_bits(tiny, tmp_path):
    config = tiny(recipe="prune85", steps=40, log_every=1, checkpoint_every=7, evaluate_every=10)
    train(config, tmp_path / "whole")
    folder = tmp_path / "killed"
    (tmp_path / "settings.json").write_text(json.dumps(config.to_json()))
    code = (
        "import json, sys, time; from lograd.training import Config, train; "
        "train(Config.from_json(json.load(open(sys.argv[1]))), sys.argv[2], progress=lambda s: time.sleep(0.01))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "settings.json"), str(folder)])
    wanted, deadline = random.randrange(1, 35), time.monotonic() + 120
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= wanted):
        assert process.poll() is None, "the process ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(random.random() * 0.05)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert Run.load(folder).status == "unfinished"
    run = resume(folder)
    assert run.status == "finished", f"killed after line {wanted}"
    assert_same_run(tmp_path / "whole", folder)


def test_a_signal_ends_between_two_steps_with_a_checkpoint(tiny, tmp_path):
    config, before = tiny(checkpoint_every=100), signal.getsignal(signal.SIGINT)

    def press(status):
        if status.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(
        Interrupted, match=r"stopped after step 3 of 12; go on with: lograd train --resume -o"
    ) as caught:
        train(config, tmp_path / "run", progress=press)
    assert caught.value.number == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    steps = []
    resume(tmp_path / "run", progress=lambda status: steps.append(status.step))
    assert steps == list(range(4, 13))
    train(config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_training_in_another_thread(tiny, tmp_path):
    thread = threading.Thread(target=train, args=(tiny(steps=1), tmp_path / "run"))
    thread.start()
    thread.join()
    assert Run.load(tmp_path / "run").status == "finished"


def test_a_finished_run_is_returned(tiny, tmp_path):
    first = train(tiny(), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in first.path.iterdir()}
    assert resume(tmp_path / "run", progress=lambda status: pytest.fail("it trained")).summary == first.summary
    assert {path.name: path.read_bytes() for path in first.path.iterdir()} == before


def test_an_end_without_a_summary_is_completed(tiny, tmp_path):
    train(tiny(), tmp_path / "run")
    before = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").unlink()
    assert resume(tmp_path / "run").summary == before


def test_other_settings_are_refused_by_name(tiny, data, tmp_path):
    train(tiny(recipe="fp6"), tmp_path / "run")
    for given, words in [
        ({"lr": 0.2, "seed": 3}, r"lr \(the run has 0.1, given is 0.2\), seed \(the run has 0, given is 3\)"),
        ({"recipe": "fp4"}, r"recipe \(the run has fp6, given is fp4\)"),
        ({"epochs": 3}, "epochs"),
        ({"lrr": 3}, "no setting 'lrr'"),
    ]:
        with pytest.raises(lograd.InvalidValue, match=words):
            resume(tmp_path / "run", expected=given)
    lograd.Plan.uniform("fp4").save(tmp_path / "fp4.json")
    with pytest.raises(lograd.InvalidValue, match=r"plan \(the run has [0-9a-f]+, .*fp4.json is"):
        resume(tmp_path / "run", expected={"plan": tmp_path / "fp4.json"})
    resume(tmp_path / "run", expected={"lr": 0.1, "recipe": "fp6", "batch": 8, "data": data["images"]})


def test_data_may_move_but_not_change(tiny, data, tmp_path):
    def crash(status):
        raise Crash

    with pytest.raises(Crash):
        train(tiny(), tmp_path / "run", progress=crash)
    other = files.images(tmp_path / "other.npz", train=65)
    with pytest.raises(lograd.InvalidValue, match=r"other.npz has other content \([0-9a-f]+\) than the data"):
        resume(tmp_path / "run", expected={"data": other})
    moved = tmp_path / "moved.npz"
    moved.write_bytes(data["images"].read_bytes())
    assert resume(tmp_path / "run", expected={"data": moved}).status == "finished"


def test_a_folder_with_a_run_is_refused(tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    train(tiny(steps=1), tmp_path / "run")
    with pytest.raises(lograd.InvalidValue, match="has a run already; go on with it by --resume, or replace it by"):
        train(tiny(), tmp_path / "run")
    assert train(tiny(steps=2), tmp_path / "run", overwrite=True).summary["steps"] == 2
    assert (tmp_path / "run" / "notes.txt").exists()


def test_nothing_is_touched_before_all_is_checked(tiny, tmp_path):
    train(tiny(steps=1), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    bad_plan = tmp_path / "bad.json"
    lograd.Plan(layers={"nowhere": lograd.Plan.uniform("fp6").every}).save(bad_plan)
    for config in (tiny(plan=bad_plan), tiny(batch=1000), tiny(plan=tmp_path / "none.json")):
        with pytest.raises(lograd.LogradError):
            train(config, tmp_path / "run", overwrite=True)
        with pytest.raises(lograd.LogradError):
            train(config, tmp_path / "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no fcntl")
def test_two_processes_do_not_share_a_folder(tiny, tmp_path):
    run = train(tiny(steps=2), tmp_path / "run")
    (run.path / "summary.json").unlink()
    held = Journal(run.path / "metrics.jsonl")
    for attempt in (lambda: resume(run.path), lambda: train(tiny(), run.path, overwrite=True)):
        with pytest.raises(lograd.InvalidValue, match="another process is training in"):
            attempt()
    held.close()
    assert resume(run.path).status == "finished"


def test_broken_folders_are_told_in_words(tiny, tmp_path):
    with pytest.raises(lograd.LogradError, match=r"it has no config\.json, so it is not the folder of a run"):
        resume(tmp_path)
    folder = train(tiny(recipe="fp6", steps=6), tmp_path / "run").path
    (folder / "summary.json").unlink()
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, content, words in [
        ("checkpoint.pt", whole["checkpoint.pt"][:1000], "Cannot read the checkpoint"),
        ("checkpoint.pt", b"", "Cannot read the checkpoint"),
        ("metrics.jsonl", b"", "has lost lines that its checkpoint counts on"),
        ("plan.json", whole["plan.json"].replace(b'"max"', b'"mean"'), "was changed after the run was started"),
        ("config.json", b"{", "it is not JSON"),
        ("config.json", b"[]", "an object is needed"),
        ("config.json", b"{}", "not of version 1"),
    ]:
        (folder / name).write_bytes(content)
        with pytest.raises(lograd.LogradError, match=words):
            resume(folder)
        (folder / name).write_bytes(whole[name])
    (folder / "metrics.jsonl").write_bytes(whole["metrics.jsonl"].split(b"\n")[0] + b"\n{\n")
    with pytest.raises(lograd.LogradError, match="line 2: it is not JSON"):
        Run.load(folder)


def test_other_versions_are_warned_of(tiny, tmp_path):
    folder = train(tiny(steps=2), tmp_path / "run").path
    (folder / "summary.json").unlink()
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace(torch.__version__, "1.0.0"))
    with pytest.warns(lograd.errors.LogradWarning, match=r"torch 1\.0\.0 is now"):
        resume(folder)


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


def test_without_tensorboard_there_is_a_sentence(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(lograd.InvalidValue, match="TensorBoard was asked for and is not installed; pip install"):
        train(tiny(tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
