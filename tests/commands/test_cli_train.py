"""The commands from profile to compare, as a person meets them."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
import training_files as files

import lograd
from lograd.cli import main
from lograd.commands.progress import Bar, Lines, display
from lograd.training import Run, Status

TINY = ["--width", "2", "--batch", "8", "--steps", "4", "--log-every", "2", "--threads", "1"]

MINE = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(5)], cross_entropy

def fails():
    return {}["missing"]

def wants(argument):
    return make()

def wrong_loss():
    model, batches, _ = make()
    return model, batches, lambda output, target: cross_entropy(output, target[:3])

def one():
    return make()[:1]

def two():
    return make()[:2]

def no_model():
    return "model", *make()[1:]

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "train.py").write_text(MINE)
    (tmp_path / "mypkg" / "broken.py").write_text("import torch\n\n1 / 0\n")
    (tmp_path / "mypkg" / "syntax.py").write_text("def make(:\n")
    (tmp_path / "mypkg" / "needs.py").write_text("import not_installed_anywhere\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
        del sys.modules[name]
    files.images(tmp_path / "images.npz")
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the entry point in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lograd", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return done.value.code or 0, captured.out, captured.err

    return call


def test_from_profile_to_compare(folder, run):
    code, out, _ = run("profile", "--model", "resnet8", "--data", "images.npz", "--width", "2", "--batch", "8",
                       "--steps", "2", "-o", "run")  # fmt: skip
    assert code == 0
    assert "blocks.0.conv1" in out
    assert "run/profile.html" in out
    assert "Gradients of resnet8" in (folder / "run" / "profile.html").read_text()

    code, out, _ = run("plan", "run", "--bits", "6")
    assert code == 0
    assert "kept: the last layer" in out
    plan = lograd.Plan.load(folder / "run" / "plan.json")
    assert list(plan.kept) == ["fc"]

    code, out, err = run("train", "--model", "resnet8", "--data", "images.npz", "--plan", "run/plan.json", "-o", "run",
                         *TINY)  # fmt: skip
    assert code == 0, err
    assert "accuracy" in out
    assert "after 4 steps" in out
    assert err.startswith("step 4/4, epoch 0.5: test loss ")
    assert lograd.Plan.load(folder / "run" / "plan.json") == plan

    code, out, _ = run("train", "--model", "resnet8", "--data", "images.npz", "-o", "dense", "--json", *TINY)
    assert json.loads(out)["summary"]["status"] == "finished"

    code, out, _ = run("compare", "dense", "run", "-o", "compare.html")
    assert code == 0
    assert "plan.json" in out
    assert "<svg" in (folder / "compare.html").read_text()
    code, out, _ = run("compare", "dense", "run", "--json")
    groups = json.loads(out)["families"][0]["groups"]
    assert [group["treatment"] for group in groups] == ["dense", "plan.json"]
    assert 5.9 < groups[1]["bits"]["mean"] < 6.1


def test_noise_is_measured_after_some_steps_and_splits_the_sparsity(folder, run):
    small = ("--model", "resnet8", "--data", "images.npz", "--width", "2", "--batch", "8", "--steps", "1")
    for name, extra in (("fresh", ()), ("later", ("--after", "2", "--noise", "1"))):
        assert run("profile", *small, *extra, "-o", name)[0] == 0
    fresh, later = (lograd.Profile.load(folder / name / "profile.npz") for name in ("fresh", "later"))
    assert fresh["conv1"].records[0].law != later["conv1"].records[0].law, "two steps have changed the gradient"
    assert fresh.noise is None
    code, out, _ = run("plan", "later", "--sparsity", "0.7", "--allocation", "noise", "--split", "--json")
    assert code == 0
    layer = lograd.Plan.from_json(json.loads(out)["plan"]).layers["blocks.1.conv1"]
    assert layer.input_gradient.gradient[0].sparsity != layer.weight_gradient.gradient[0].sparsity
    code, _, err = run("plan", "fresh", "--sparsity", "0.7", "--allocation", "noise")
    assert code == 2
    assert "lograd profile --noise 2" in err


def test_profile_of_a_function(folder, run):
    code, out, err = run("profile", "mypkg.train:make", "-o", "mine", "--steps", "4", "--every", "2", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert [layer["name"] for layer in data["layers"]] == ["0", "2"]
    assert lograd.Profile.load(folder / "mine" / "profile.npz").every == 2
    code, out, _ = run("plan", "mine/profile.npz", "--sparsity", "0.85", "--allocation", "cosine", "--keep", "none",
                       "--law", "lognormal", "--products", "weight", "-o", "other.json", "--json")  # fmt: skip
    assert code == 0
    made = json.loads(out)
    assert lograd.Plan.load(folder / "other.json").hash() == made["hash"]
    assert made["plan"]["layers"]["2"]["input_gradient"].get("gradient", []) == []
    assert made["diff"] is None
    code, out, _ = run("plan", "mine", "--sparsity", "0.5", "--allocation", "floors", "--floor", "0=0.99", "--keep",
                       "none", "--json")  # fmt: skip
    assert code == 0
    assert json.loads(out)["plan"]["layers"]["0"]["both"]["predicted"]["cosine"] >= 0.985


def test_a_plan_beside_another(folder, run):
    run("profile", "mypkg.train:make", "-o", "mine", "--steps", "1")
    assert run("plan", "mine", "--bits", "6")[0] == 0
    code, out, _ = run("plan", "mine", "--bits", "6", "--rounding", "nearest", "--scale", "mean-3", "--diff",
                       "mine/plan.json", "--overwrite")  # fmt: skip
    assert code == 0
    assert "From mine/plan.json to this plan:" in out
    assert "~ 0: quantize rounding stochastic -> nearest" in out
    assert "nothing changes" in run("plan", "mine", "--bits", "6", "--rounding", "nearest", "--scale", "mean-3",
                                    "--diff", "mine/plan.json")[1]  # fmt: skip


IMAGES = ["--model", "resnet8", "--data", "images.npz"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["profile"], "profile needs MODULE:FUNCTION or --model NAME, one of them"),
        (["profile", "mypkg.train:make", *IMAGES], "one of them"),
        (["profile", "mypkg.train:make", "--seed", "1"], "--seed belongs to --model"),
        (["profile", *IMAGES, "--after", "-1"], "--after must be zero or more steps"),
        (["profile", "--model", "resnet8"], "--model resnet8 needs --data"),
        (["profile", "mypkg.train"], "'mypkg.train' is not MODULE:FUNCTION"),
        (["profile", "mypkg.train:"], "is not MODULE:FUNCTION"),
        (["profile", "nowhere.train:make"], "there is no module 'nowhere'"),
        (["profile", "mypkg.trian:make"], "there is no module 'mypkg.trian'"),
        (["profile", "mypkg.train:mke"], "mypkg.train has no function 'mke'. Did you mean 'make'?"),
        (["profile", "mypkg.train:number"], "it is of type int"),
        (["profile", "mypkg.train:wants"], "must be callable without arguments; missing a required argument"),
        (["profile", "mypkg.train:fails"], "mypkg.train:fails raised KeyError: 'missing' ("),
        (["profile", "mypkg.train:fails"], "mypkg/train.py:12)"),
        (["profile", "mypkg.train:one"], "must return (model, batches, loss function), or (model, batches)"),
        (["profile", "mypkg.train:one"], "it returned 1 of them"),
        (["profile", "mypkg.train:two"], "without a loss function a batch must be a dict"),
        (
            ["profile", "mypkg.train:no_model"],
            "in place of the model, a torch.nn.Module, it returned an object of type",
        ),
        (
            ["profile", "mypkg.train:wrong_loss"],
            "a step of the model raised ValueError: Expected input batch_size (16)",
        ),
        (["profile", "mypkg.broken:make"], "importing mypkg.broken raised ZeroDivisionError: division by zero ("),
        (["profile", "mypkg.syntax:make"], "importing mypkg.syntax raised SyntaxError"),
        (["profile", "mypkg.needs:make"], "raised ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        (["profile", "mypkg.train:make", "--steps", "0"], "steps must be"),
        (["profile", "mypkg.train:make", "-o", "images.npz/x"], "Cannot make the folder"),
        (["plan", "nowhere", "--bits", "6"], "Cannot read nowhere: No such file"),
        (["plan", ".", "--bits", "6"], "profile.npz: No such file"),
        (["plan", "images.npz", "--bits", "6"], "Cannot read the profile images.npz"),
        (["plan", "."], "a plan needs --bits, --sparsity or both"),
        (["plan", ".", "--bits", "6", "--law", "lognrmal"], "Did you mean 'lognormal'?"),
        (["plan", ".", "--bits", "6", "--allocation", "cosine"], "needs --sparsity"),
        (["plan", ".", "--sparsity", "0.8", "--rounding", "nearest"], "--rounding is of a format"),
        (["plan", ".", "--sparsity", "0.8", "--floor", "x"], "--floor must be PATTERN=COSINE"),
        (["plan", "nowhere", "--bits", "6", "-o", "no/such/plan.json"], "no/such does not exist"),
        (["train", "--data", "images.npz", "-o", "x"], "train needs --model"),
        (["train", "--model", "resnet8", "-o", "x"], "train needs --data"),
        (["train", *IMAGES], "Missing option"),
        (["train", *IMAGES, "-o", "x", "--recipe", "fp99"], "'fp99' is not a recipe"),
        (["train", *IMAGES, "-o", "x", "--plan", "none.json"], "Cannot read none.json"),
        (["train", *IMAGES, "-o", "x", "--lr", "-1"], "lr must be finite and above 0; got -1.0"),
        (["train", *IMAGES, "-o", "x", "--steps", "1", "--epochs", "1"], "by epochs or by steps; got both"),
        (["train", *IMAGES, "-o", "x", "--weights", "fp8"], "weights must be int8, e4m3fn, e5m2, another signed"),
        (["train", *IMAGES, "-o", "x", "--state-bits", "8"], "state_bits is for weights in low precision"),
        (["train", *IMAGES, "-o", "x", "--weights", "int8", "--state-bits", "4"], "state_bits must be 8, or nothing"),
        (["train", "--model", "resnet", "--data", "images.npz", "-o", "x"], "Did you mean 'resnet8'?"),
        (["train", "--model", "charlm", "--data", "images.npz", "-o", "x"], "it is not UTF-8"),
        (["train", *IMAGES, "-o", "x", "--resume", "--overwrite"], "give one of them"),
        (["train", "-o", "x", "--resume"], "Cannot read the run x: it has no config.json"),
        (["train", *IMAGES, *TINY, "-o", "images.npz"], "Cannot make the folder images.npz"),
        (["compare"], "Missing argument"),
        (["compare", "nowhere"], "Cannot read the run nowhere"),
        (["compare", "nowhere", "-o", "no/such/page.html"], "no/such does not exist"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, folder, run):
    before = sorted(folder.rglob("*[!c]"))
    code, _, err = run(*arguments)
    assert code == 2
    assert sentence in " ".join(err.replace("│", " ").split())
    if err.startswith("lograd: "):
        assert err.count("\n") == 1
    assert [path for path in sorted(folder.rglob("*[!c]")) if "__pycache__" not in path.parts] == before


def test_resume_and_overwrite(folder, run):
    train = ["train", *IMAGES, "-o", "x", *TINY]
    assert run(*train)[0] == 0
    code, _, err = run(*train)
    assert code == 2
    assert "go on with it by --resume, or replace it by --overwrite" in err
    code, out, err = run("train", "-o", "x", "--resume")
    assert code == 0
    assert "is finished; there is nothing to resume" in err
    assert "after 4 steps" in out
    code, _, err = run("train", "-o", "x", "--resume", "--lr", "0.3", "--recipe", "fp6")
    assert code == 2
    assert "these differ: recipe (the run has None, given is fp6), lr (the run has 0.1, given is 0.3)" in err
    assert run(*train, "--overwrite")[0] == 0


def test_weights_in_low_precision(folder, run):
    code, out, err = run("train", *IMAGES, "-o", "x", *TINY, "--weights", "int8", "--state-bits", "8")
    assert code == 0, err
    stored = Run.load(folder / "x").summary["weights"]
    assert f"int8 weights, {stored['bytes'] / stored['weights']:.2f} bytes each" in out
    code, _, err = run("train", "-o", "x", "--resume", "--weights", "e4m3fn")
    assert code == 2
    assert "these differ: weights (the run has int8, given is e4m3fn)" in err
    code, out, _ = run("train", "-o", "x", "--resume", "--json")
    settings = json.loads(out)["settings"]
    assert (settings["weights"], settings["state_bits"]) == ("int8", 8)


def test_a_diverged_run_is_exit_code_1(folder, run):
    code, _, err = run("train", *IMAGES, "-o", "x", *TINY, "--lr", "1e30")
    assert code == 1
    assert err.startswith("lograd: the loss is ")
    assert err.count("\n") == 1
    assert Run.load(folder / "x").status == "diverged"
    code, _, err = run("train", "-o", "x", "--resume")
    assert code == 2
    assert "start anew with other settings" in err


@pytest.mark.slow
def test_ctrl_c_in_a_real_process(folder):
    command = [sys.executable, "-c", "from lograd.cli import main; main()"]
    train = [*command, "train", *IMAGES, "-o", "x", "--width", "2", "--batch", "8", "--steps", "100000",
             "--log-every", "1", "--threads", "1"]  # fmt: skip
    process = subprocess.Popen(train, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not ((folder / "x" / "metrics.jsonl").exists() and (folder / "x" / "metrics.jsonl").stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: lograd train --resume -o x" in err
    assert "Traceback" not in err
    state = torch.load(folder / "x" / "checkpoint.pt", weights_only=True)
    assert state["steps"] == Run.load(folder / "x").steps


@pytest.mark.filterwarnings("default")
def test_warnings_are_sentences(folder, run):
    run("train", *IMAGES, "-o", "x", *TINY)
    (folder / "x" / "summary.json").unlink()
    config = folder / "x" / "config.json"
    config.write_text(config.read_text().replace(torch.__version__, "1.0.0"))
    code, _, err = run("train", "-o", "x", "--resume")
    assert code == 0
    assert err.startswith("lograd: the run was started with other versions (torch 1.0.0 is now")


# -- progress --


def line(kind, step, **numbers):
    return {"kind": kind, "step": step, "epoch": 0.5, "loss": 1.25, "sparsity": None, "bits": 32.0} | numbers


def test_lines_for_logs_tell_rate_and_remaining_time(capsys):
    times = iter([0.0, 2.0, 4.0])
    show = Lines(lambda: next(times))
    show(Status(1, 9, 1.0, 0.0))
    show(Status(3, 9, 1.0, 0.0, (line("train", 3, accuracy=0.1),)))
    show(Status(5, 9, 1.0, 0.0, (line("test", 5, accuracy=0.25, sparsity=0.853),)))
    assert capsys.readouterr().err == (
        "step 5/9, epoch 0.5: test loss 1.250, accuracy 25.0%, zeros 85.3%, 1.0 steps/s, 0:00:04 left\n"
    )


def test_the_rate_of_a_run_after_another_is_its_own(capsys):
    times = iter([0.0, 10.0, 20.0, 24.0])
    show = Lines(lambda: next(times))
    show(Status(7, 9, 1.0, 0.0))  # resumed
    show(Status(9, 9, 1.0, 0.0))
    show(Status(1, 9, 1.0, 0.0))
    show(Status(5, 9, 1.0, 0.0, (line("test", 5, accuracy=0.25),)))
    assert "1.0 steps/s, 0:00:04 left" in capsys.readouterr().err


def test_the_bar_shows_the_newest_numbers(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with display("charlm", quiet=False) as bar:
        assert isinstance(bar, Bar)
        bar(Status(40, 50, 3.0, 0.0))
        (task,) = bar.progress.tasks
        assert (task.completed, task.total, task.fields["numbers"]) == (40, 50, "loss 3.000")
        bar(Status(41, 50, 3.0, 0.0, (line("train", 41, bits_per_character=1.8), line("test", 41))))
        assert task.fields["numbers"] == "loss 1.250, 1.800 bits per character; test loss 1.250"
    with display("charlm", quiet=True) as nothing:
        assert nothing is None


def test_a_terminal_sees_a_bar(folder, run, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, err = run("train", *IMAGES, "-o", "x", *TINY)
    assert code == 0
    assert "after 4 steps" in out
    assert "resnet8" in err
    assert "4/4" in err
    assert "test loss" in err
