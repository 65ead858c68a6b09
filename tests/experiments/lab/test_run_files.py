"""The files of a run as a crash, a disk or a person may leave them: gone on from, or refused in one sentence."""

import json
import shutil
import sys
import warnings

import pytest
import torch
import training_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import REFUSED, attempt, replaced

import lograd
from experiments.lab import Config, Run, compare, resume, train
from lograd import InvalidValue, LogradError, Plan
from lograd.cli import main
from lograd.errors import LogradWarning
from lograd.files.atomic import CannotRead


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two folders to copy from: a finished run, and one that was killed after its checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    data = training_files.images(folder / "images.npz", train=8, test=4, classes=2)
    config = Config(
        "resnet8", data, recipe="prune85", width=1, batch=4, steps=6, log_every=1, checkpoint_every=3, threads=1
    )

    def stop(status):
        if status.step == 5:
            raise Stop

    with pytest.raises(Stop):
        train(config, folder / "killed", progress=stop)
    return {"finished": train(config, folder / "finished").path, "killed": folder / "killed"}


@pytest.fixture
def copies(runs, tmp_path):
    """Fresh copies; a file may be replaced in them."""

    def copy(name, **files):
        target = tmp_path / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(runs[name], target)
        for file, content in files.items():
            path = target / {"config": "config.json", "summary": "summary.json", "metrics": "metrics.jsonl",
                             "plan": "plan.json", "checkpoint": "checkpoint.pt"}[file]  # fmt: skip
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return target

    return copy


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lograd", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        return done.value.code or 0, captured.err

    return call


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


# -- the metrics --


@pytest.mark.parametrize(
    "tail",
    [
        b"garbage\n",
        b"\xff\xfe\x00 not UTF-8\n",
        b"\0" * 4096,
        b"\0" * 4096 + b"\n",
        b'{"kind": "train", "st',
        b'{"kind": "train"}\n',
        b"[]\n[]\n",
        b'{"kind": "train", "step": NaN}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_resume_cuts_whatever_follows_the_checkpoint(tail, runs, copies, command):
    folder = copies("killed", metrics=(runs["killed"] / "metrics.jsonl").read_bytes() + tail)
    code, error = command("train", "--resume", "-o", folder)
    assert (code, "Traceback" in error) == (0, False), error
    run = Run.load(folder)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines]
    whole = [{k: v for k, v in line.items() if k != "seconds"} for line in Run.load(runs["finished"]).lines]
    assert (run.status, lines) == ("finished", whole)
    expected = weights(runs["finished"])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())


def test_compare_says_what_to_do_about_garbage(runs, copies, command):
    folder = copies("killed", metrics=(runs["killed"] / "metrics.jsonl").read_bytes() + b"garbage\n")
    code, error = command("compare", folder)
    assert code == 2
    assert "metrics.jsonl, line 8: it is not JSON" in error
    assert "lograd train --resume cuts what follows the checkpoint" in error
    assert error.count("\n") == 1


def test_metrics_before_the_checkpoint_are_needed_whole(runs, copies):
    content = (runs["killed"] / "metrics.jsonl").read_bytes()
    lines = content.split(b"\n")
    cut, shorter = content[: len(lines[0]) + 1], content[: len(lines[0]) + 3]
    broken = content.replace(b'"train"', b'"trainx"'[: len(b'"train"')], 1)
    for metrics, words in [
        (b"", "has lost lines that its checkpoint counts on"),
        (cut, "has lost lines that its checkpoint counts on"),
        (shorter, "has lost lines that its checkpoint counts on"),
        (b"x" + content[1:], "line 1: it is not JSON"),
        (broken, "line 1: "),
        (content.replace(b"\n", b" ", 4), "no line ends there|it is not JSON"),
    ]:
        folder = copies("killed", metrics=metrics)
        with pytest.raises(LogradError, match=words):
            resume(folder)
        assert (folder / "metrics.jsonl").read_bytes() == metrics, "a refused file stays as it is"


def test_a_checkpoint_that_ends_inside_a_line_is_refused(runs, copies):
    state = torch.load(runs["killed"] / "checkpoint.pt", weights_only=True)
    folder = copies("killed")
    torch.save(state | {"journal_bytes": state["journal_bytes"] - 1}, folder / "checkpoint.pt")
    with pytest.raises(CannotRead, match="no line ends there"):
        resume(folder)
    torch.save(state | {"journal_bytes": state["journal_bytes"] + 10**6}, folder / "checkpoint.pt")
    with pytest.raises(CannotRead, match="has lost lines"):
        resume(folder)


@pytest.mark.parametrize("steps", [-5, "x", None, 1.5, 10**6])
def test_steps_of_a_checkpoint(steps, runs, copies, command):
    folder = copies("killed")
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save(state | {"steps": steps}, folder / "checkpoint.pt")
    code, error = command("train", "--resume", "-o", folder)
    assert code == 2
    assert "steps of the checkpoint must be a whole number from 0 to 6" in error
    assert error.count("\n") == 1


def test_settings_that_were_changed_after_the_checkpoint_are_refused(runs, copies, command):
    config = (runs["killed"] / "config.json").read_bytes()
    code, error = command(
        "train", "--resume", "-o", copies("killed", config=config.replace(b'"lr": 0.1', b'"lr": 0.2'))
    )
    assert (code, error.count("\n")) == (2, 1), error
    assert "the settings in config.json were changed after the checkpoint was written" in error
    folder = copies("killed")
    moved = folder.parent / "moved.npz"
    shutil.copy(json.loads(config)["settings"]["data"], moved)
    assert resume(folder, expected={"data": moved}).status == "finished"


# -- files that are JSON, and wrong --


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


def config_of(runs):
    return json.loads((runs["finished"] / "config.json").read_text())


CONFIGS = {
    "no data": (lambda c: without(c, "data"), "it needs its field 'data'"),
    "data": (lambda c: c | {"data": []}, "data must be an object with fingerprint"),
    "fingerprint": (lambda c: c | {"data": {"fingerprint": 5}}, "fingerprint of the data must be a text"),
    "versions": (lambda c: c | {"versions": ["torch"]}, "versions must be an object"),
    "version": (lambda c: c | {"versions": {"torch": 2}}, "version of 'torch' must be a text"),
    "plan": (lambda c: c | {"plan": 5}, "plan must be a text"),
    "threads": (lambda c: c | {"threads": 0}, "threads must be a whole number from 1"),
    "many threads": (lambda c: c | {"threads": 10**9}, "threads must be a whole number from 1 to 4096"),
    "total": (lambda c: c | {"total_steps": "x"}, "total_steps must be a whole number"),
    "no settings": (lambda c: without(c, "settings"), "it needs its field 'settings'"),
    "settings": (lambda c: c | {"settings": 5}, "settings of a run must be an object"),
    "a setting": (lambda c: c | {"settings": c["settings"] | {"lr": "x"}}, "lr must be finite and above 0"),
    "a plan that is none": (lambda c: c | {"settings": c["settings"] | {"recipe": None, "plan": []}}, "plan must be"),
    "a recipe that is none": (lambda c: c | {"settings": c["settings"] | {"recipe": {}}}, "recipe must be a text"),
    "its threads": (lambda c: c | {"settings": c["settings"] | {"threads": 10**9}}, "threads must be a whole number"),
    "format": (lambda c: c | {"lograd_run": True}, "config.json is not of version 1"),
    "deep": (lambda c: b"[" * 200_000, "config.json: it is not JSON: nested more than 64 levels deep"),
    "long": (lambda c: b'{"lograd_run": 1' + b"0" * 5000 + b"}", "does not fit 64 bits"),
    "NaN": (lambda c: b'{"lograd_run": NaN}', "NaN is no number of JSON"),
    "twice": (lambda c: b'{"lograd_run": 1, "lograd_run": 1}', "stands twice in one object"),
    "bytes": (lambda c: b"\xff\xfe", "not UTF-8"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_cannot_be_is_one_sentence(name, runs, copies, command):
    change, words = CONFIGS[name]
    folder = copies("killed", config=change(config_of(runs)))
    for arguments in (["train", "--resume", "-o", folder], ["compare", folder]):
        code, error = command(*arguments)
        assert (code, error.count("\n")) == (2, 1), error
        assert words in error
        assert str(folder) in error


SUMMARIES = {
    "empty": (lambda s: {}, "it needs its field 'status'"),
    "list": (lambda s: [], "an object is needed"),
    "status": (lambda s: s | {"status": "done"}, "status must be one of 'finished', 'diverged'"),
    "no status": (lambda s: s | {"status": None}, "status must be one of"),
    "reason": (lambda s: s | {"reason": 5}, "reason must be a text"),
    "steps": (lambda s: s | {"steps": -1}, "steps must be a whole number"),
    "final": (lambda s: s | {"final": None}, "a line of metrics must be an object"),
    "metric": (lambda s: s | {"final": without(s["final"], "accuracy")}, "accuracy must be a finite number; got None"),
    "time": (lambda s: s | {"seconds_per_step": "x"}, "seconds_per_step must be a finite number"),
    "counters": (lambda s: s | {"counters": []}, "counters must be an object"),
    "deep": (lambda s: b'{"a":' * 100_000, "nested more than 64 levels deep"),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_that_cannot_be_is_one_sentence(name, runs, copies, command):
    change, words = SUMMARIES[name]
    summary = json.loads((runs["finished"] / "summary.json").read_text())
    folder = copies("finished", summary=change(summary))
    for arguments in (["train", "--resume", "-o", folder], ["compare", folder]):
        code, error = command(*arguments)
        assert (code, error.count("\n")) == (2, 1), error
        assert words in error
        assert "summary.json" in error


LINES = {
    "kind": ({"kind": "other"}, "kind must be one of 'train', 'test'"),
    "step": ({"step": "3"}, "step must be a whole number"),
    "true step": ({"step": True}, "step must be a whole number"),
    "negative step": ({"step": -3}, "step must be a whole number"),
    "loss": ({"loss": None}, "loss must be a finite number"),
    "seconds": ({"seconds": -1.0}, "seconds must be a finite number from 0"),
    "bits": ({"bits": []}, "bits must be a finite number"),
    "sparsity": ({"sparsity": {}}, "sparsity must be a finite number"),
    "accuracy": ({"kind": "test", "accuracy": "high"}, "accuracy must be a finite number"),
    "no accuracy": ({"kind": "test", "accuracy": None}, "accuracy must be a finite number"),
    "more": ({"more": [1]}, "more must be a finite number"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_metrics_that_cannot_be_is_one_sentence(name, runs, copies, command):
    changes, words = LINES[name]
    first, *others = (runs["finished"] / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    metrics = json.dumps(json.loads(first) | changes).encode() + b"\n" + b"".join(others)
    code, error = command("compare", copies("finished", metrics=metrics))
    assert (code, error.count("\n")) == (2, 1), error
    assert f"metrics.jsonl, line 1: {words}" in error


# -- anything at all --


@pytest.mark.parametrize("file", ["config", "summary", "metrics", "plan"])
def test_any_json_in_any_place_of_any_file_is_used_or_refused(file, runs, copies):
    name = {"config": "config.json", "summary": "summary.json", "metrics": "metrics.jsonl", "plan": "plan.json"}[file]
    content = (runs["finished"] / name).read_text()
    folder = copies("finished")

    @given(st.data())
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def check(data):
        if file == "metrics":
            lines = [json.loads(line) for line in content.splitlines()]
            place = data.draw(st.integers(0, len(lines) - 1))
            lines[place] = replaced(lines[place], data)
            text = "\n".join(map(json.dumps, lines))
        else:
            text = json.dumps(replaced(json.loads(content), data))
        (folder / name).write_text(text + "\n")
        for use in (lambda: compare([folder]).table(), lambda: compare([folder]).to_json(), lambda: resume(folder)):
            attempt(use)
        if file == "plan":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LogradWarning)
                attempt(lambda: str(Plan.load(folder / name)))

    check()


@given(st.binary(max_size=300))
@settings(max_examples=60)
def test_any_bytes_are_no_run(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(LogradError):
        Run.load(folder)
    (folder / "plan.json").write_bytes(content)
    with pytest.raises(InvalidValue):
        Plan.load(folder / "plan.json")


# -- plans --


def quantized(**changes):
    treatment = {"kind": "quantize", "format": "1-4-1", "scale": "max", "rounding": "stochastic"} | changes
    return {"lograd_plan": 1, "every": {"both": {"treatments": [treatment]}, "elements": 0, "masked": 0.0}}


def layer(**changes):
    return {"lograd_plan": 1, "layers": {"a": {"both": {"treatments": []}} | changes}}


def one(**treatment):
    return {"lograd_plan": 1, "every": {"both": {"treatments": [treatment]}}}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (quantized(format=[]), "format of treatment 'quantize' must be a text; got []"),
        (quantized(format={}), "format of treatment 'quantize' must be a text"),
        (quantized(format=5), "format of treatment 'quantize' must be a text"),
        (quantized(format="1-4-1:bias=" + "9" * 5000), "is not a format"),
        (quantized(format="1-2-1/" + "9" * 5000 + "/e8m0"), "is not a format"),
        (quantized(scale=1), "scale of treatment 'quantize' must be a text"),
        (quantized(rounding=None), "rounding of treatment 'quantize' must be one of"),
        (one(kind="prune", sparsity=True), "sparsity of treatment 'prune' must be a finite number"),
        (one(kind="prune", sparsity="0.5"), "sparsity of treatment 'prune' must be a finite number"),
        (one(kind="prune", sparsity=0.5, law=[]), "law of treatment 'prune' must be one of 'empirical'"),
        (one(kind="atp", share=0.5, depth=2.5), "depth of treatment 'atp' must be a whole number"),
        (one(kind="hadamard", inner=5), "inner of treatment 'hadamard' must be a treatment"),
        (one(kind="hadamard", inner={"kind": "luq", "bits": 4}, block=16.0), "block of treatment 'hadamard' must be a"),
        (one(kind="hadamard", inner={"kind": "luq", "bits": 4}, random=1), "random of treatment 'hadamard' must be tr"),
        (one(kind=[]), "the kind of a treatment must be one of"),
        (layer(elements=-1), "elements of a layer must be a whole number"),
        (layer(elements=True), "elements of a layer must be a whole number"),
        (layer(masked=1.5), "masked of a layer must be a finite number from 0 to 1"),
        (layer(both={"predicted": {"sparsity": 2, "cosine": 0, "relative_error": 0}}), "the sparsity of a prediction"),
        (layer(both={"treatments": [], "predicted": {"sparsity": 0}}), "a prediction needs its field 'cosine'"),
        ({"lograd_plan": 1, "kept": {"a": 5}}, "why layer 'a' is kept must be a text"),
        ({"lograd_plan": 1, "kept": []}, "must be objects with layer names"),
        ({"lograd_plan": 1, "work": {"a": [1, True]}}, "work of layer 'a' must be two counts"),
        ({"lograd_plan": True}, "this plan has version True"),
        ({"lograd_plan": []}, "this plan has version"),
        ({"lograd_plan": 1, "checksum": 5}, "the checksum of a plan must be a text"),
        (b'{"lograd_plan": 1, "layers": {"a": {"elements": 1' + b"0" * 400 + b"}}}", "does not fit 64 bits"),
        (b'{"lograd_plan": 1, "layers": {"a": {"masked": 1' + b"0" * 400 + b".0}}}", "is beyond float64"),
        (b'{"lograd_plan": NaN}', "NaN is no number of JSON"),
        (b'{"lograd_plan": 1, "kept": ' + b"[" * 200_000, "nested more than 64 levels deep"),
        (b'{"lograd_plan": 1, "layers": {"a": {}, "a": {}}}', "the name 'a' stands twice"),
    ],
)
def test_a_plan_that_cannot_be_is_one_sentence(plan, words, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(plan if isinstance(plan, bytes) else json.dumps(plan).encode())
    with pytest.raises(InvalidValue) as caught:
        Plan.load(path)
    message = str(caught.value)
    assert words in message
    assert message.startswith("Cannot read the plan")
    assert len(message) < 500
    assert "\n" not in message


@given(st.data())
@settings(max_examples=100)
def test_any_json_in_any_place_of_a_plan_is_refused_or_makes_one(data):
    recipe = data.draw(st.sampled_from(["prune85+fp6", "mxfp4-rht", "int5-bhq", "atp85", "topk85-sample", "hfp8"]))
    plan = replaced(Plan.uniform(recipe).to_json(), data)
    made = attempt(lambda: Plan.from_dict(plan))
    if made is not REFUSED:
        assert Plan.from_dict(made.to_dict()) == made
        str(made)
        made.hash()


def test_the_plan_of_a_run_is_refused_once(runs, copies, command):
    """By the hash that the run remembers; the checksum of the plan has nothing to add."""
    plan = (runs["killed"] / "plan.json").read_bytes()
    code, error = command("train", "--resume", "-o", copies("killed", plan=plan.replace(b"0.85", b"0.80")))
    assert code == 2
    assert "was changed after the run was started" in error
    assert error.count("\n") == 1


def test_settings_from_python(tmp_path):
    for changes, error in [({"lr": 10**400}, InvalidValue), ({"plan": 5}, lograd.InvalidType)]:
        with pytest.raises(error):
            Config("resnet8", tmp_path / "x.npz", **changes)
