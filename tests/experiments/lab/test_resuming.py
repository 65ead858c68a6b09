"""A run that ends in any way is resumed to the same bits, and only with its own settings and data."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
import training_files as files
from everyday import daily
from torch import nn
from training_runs import Crash, assert_same_run

import lograd
from experiments.lab import TASKS, Interrupted, Run, Session, load_data, resume, train
from experiments.lab.journal import Journal
from experiments.lab.work import BuiltIn
from lograd import InvalidValue
from lograd.engine.layers import reason_not_channels_last


def dropout_net(classes, width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 8 * width), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8 * width, classes)
    )


@pytest.mark.parametrize("recipe", daily([None, "prune85+fp6", "int4wa-clips+fp6"], ["prune85+fp6"]))
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


@pytest.mark.parametrize("recipe", [None, "fp6"])
def test_channels_side_by_side_stay_so_when_a_run_is_resumed(recipe, tiny, tmp_path):
    config = tiny(recipe=recipe, channels_last=True, width=8, steps=6, checkpoint_every=2)
    session = Session(BuiltIn(config, load_data(config)), config.load_plan())
    session.step()
    kernels = [one for one in session.model.parameters() if one.dim() == 4]
    assert kernels
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in kernels)
    train(config, tmp_path / "whole")

    def crash(status):
        if status.step == 3:
            raise Crash

    with pytest.raises(Crash):
        train(config, tmp_path / "crashed", progress=crash)
    assert resume(tmp_path / "crashed").status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "crashed")
    planes = replace(config, channels_last=False)
    assert train(planes, tmp_path / "planes").summary["final"]["loss"] == pytest.approx(
        Run.load(tmp_path / "whole").summary["final"]["loss"], rel=1e-2
    )


def test_a_layout_in_which_torch_writes_beyond_its_memory_is_refused(tiny, tmp_path, monkeypatch):
    """Narrow strided convolutions of one pixel, on CPUs without AVX-512."""
    config = tiny(channels_last=True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(
        InvalidValue, match=r"channels_last cannot be: layer 'blocks.*' is .* 2 input channels.*8 channels"
    ):
        train(config, tmp_path / "run")
    for model in (nn.Conv2d(8, 16, 1, 2), nn.Conv2d(2, 4, 1), nn.Conv2d(2, 4, 3, 2), nn.Conv1d(2, 4, 1, 2)):
        assert reason_not_channels_last(model) is None
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert reason_not_channels_last(nn.Conv2d(2, 4, 1, 2)) is None


@pytest.mark.slow  # a process that is killed
def test_kill_9_at_a_random_moment_is_resumed_to_the_same_bits(tiny, tmp_path):
    config = tiny(recipe="prune85", steps=40, log_every=1, checkpoint_every=7, evaluate_every=10)
    train(config, tmp_path / "whole")
    folder = tmp_path / "killed"
    (tmp_path / "settings.json").write_text(json.dumps(config.to_json()))
    code = (
        "import json, sys, time; from experiments.lab import Config, train; "
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
