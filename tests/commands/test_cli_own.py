"""The commands on a model of the user's, the words about backends, and files that are not replaced unasked."""

import json
import signal
import subprocess
import sys
import time

import pytest
import training_files as files
from own_models import MINE

import lograd
from lograd.cli import main
from lograd.commands.progress import Lines
from lograd.training import Run, Status
from lograd.training.measuring import LOSS, own_metric

SHORT = ["--steps", "6", "--log-every", "3", "--threads", "1"]
IMAGES = ["--model", "resnet8", "--data", "images.npz", "--width", "2", "--batch", "8"]
MORE = """
def broken():
    return network(), loader(), lambda x, y: 1 / 0

def slow():
    import time
    return network(), loader(), lambda x, y: (time.sleep(0.02), cross_entropy(x, y))[1], None, accuracy
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mine", None)
    (tmp_path / "mine.py").write_text(MINE + MORE)
    files.images(tmp_path / "images.npz")
    yield tmp_path
    sys.modules.pop("mine", None)


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


# -- from profile to compare --


def test_from_profile_to_compare_with_a_model_of_ones_own(folder, run):
    assert run("profile", "mine:five", "-o", "run", "--steps", "2")[0] == 0, "what is for train alone is left aside"
    assert run("plan", "run", "--sparsity", "0.8", "--keep", "none")[0] == 0
    code, out, err = run("train", "mine:make", "-o", "dense", *SHORT)
    assert code == 0, err
    assert "accuracy 0." in out
    assert "after 6 steps" in out
    assert err.startswith("step 6/6, epoch 1: accuracy 0.")
    assert run("train", "mine:make", "--plan", "run/plan.json", "-o", "pruned", "--backend", "dense", *SHORT)[0] == 0
    code, out, _ = run("compare", "dense", "pruned", "-o", "page.html")
    assert code == 0
    assert "mine:make" in out
    assert "Final and best accuracy." in (folder / "page.html").read_text()
    code, out, err = run("train", "mine:make", "--resume", "-o", "dense")
    assert code == 0
    assert "nothing to resume" in err
    code, _, err = run("train", "mine:three", "--resume", "-o", "dense")
    assert code == 2
    assert "these differ: model (the run has mine:make, given is mine:three)" in err


def test_without_a_metric_the_training_loss_is_told(folder, run):
    code, out, err = run("train", "mine:three", "-o", "x", "--json", *SHORT)
    assert (code, err) == (0, "")
    assert json.loads(out)["summary"]["final"]["kind"] == "train"
    code, out, err = run("train", "mine:three", "-o", "y", *SHORT)
    assert out.startswith("training loss ")
    assert [line.split(",")[0] for line in err.splitlines()] == ["step 3/6", "step 6/6"]


@pytest.mark.slow  # a process of its own
def test_ctrl_c_is_resumed(folder):
    command = [sys.executable, "-c", "from lograd.cli import main; main()", "train"]
    process = subprocess.Popen([*command, "mine:slow", "-o", "x", "--steps", "1000", "--log-every", "1"],
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    metrics, deadline = folder / "x" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: lograd train --resume -o x" in err
    assert Run.load(folder / "x").steps >= 1


def test_lines_of_a_users_metric(capsys):
    line = {"kind": "test", "step": 1, "epoch": 0.5, "word_error": 0.25, "f1": None, "lr": 0.1, "sparsity": 0.8}
    Lines(lambda: 0.0)(Status(1, 9, 1.0, 0.0, (line,), own_metric("word_error", False)))
    assert capsys.readouterr().err == "step 1/9, epoch 0.5: word error 0.25, zeros 80.0%\n"
    other = {"kind": "train", "step": 1, "epoch": 0.5, "loss": 1.0, "lr": 0.1, "sparsity": None}
    Lines(lambda: 0.0)(Status(1, 9, 1.0, 0.0, (other, line), LOSS))
    assert capsys.readouterr().err == "step 1/9, epoch 0.5: loss 1.000\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "-o", "x"], "train needs --model or MODULE:FUNCTION; with --resume, a run knows its own"),
        (["train", "resnet8", "-o", "x"], "'resnet8' is not MODULE:FUNCTION"),
        (["train", "mine:make", *IMAGES, "-o", "x"], "train needs MODULE:FUNCTION or --model NAME, one of them"),
        (["train", "mine:make", "--width", "4", "-o", "x"], "width belongs to the built-in models"),
        (["train", "mine:make", "--batch", "4", "-o", "x"], "batch belongs to the built-in models"),
        (["train", "mine:make", "--data", "images.npz", "-o", "x"], "data belongs to the built-in models"),
        (["train", "mine:make", "--augment", "-o", "x"], "augment belongs to the built-in models"),
        (["train", "mine:", "-o", "x"], "'mine:' is not MODULE:FUNCTION"),
        (["train", "nowhere:make", "-o", "x"], "there is no module 'nowhere'"),
        (["train", "mine:four", "--optimizer", "sgd", "-o", "x"], "mine:four brings its own optimizer"),
        (["train", "mine:make", "--recipe", "fp6", "--backend", "sparse", "-o", "x"], "this run prunes none"),
        (["train", *IMAGES, "--backend", "auto", "-o", "x"], "'auto' is for gradients that are pruned"),
        (["train", *IMAGES, "--backend", "spars", "-o", "x"], "Did you mean 'sparse'?"),
        (["train", "mine:make", "--products", "weight", "-o", "x"], "former name of --backend, must be one of"),
        (["train", *IMAGES, "--backend", "dense", "--products", "dense", "-o", "x"], "give --backend alone"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, folder, run):
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (folder / "x").exists()


def test_an_error_in_the_users_code_is_one_sentence_with_its_place(folder, run):
    code, _, err = run("train", "mine:broken", "-o", "x", *SHORT)
    assert (code, err.count("\n")) == (2, 1)
    assert "a step of mine:broken raised ZeroDivisionError: division by zero (" in err
    assert "mine.py:" in err


# -- backends --


def test_dense_products_of_a_pruned_run_are_told(folder, run):
    code, out, err = run("train", "mine:make", "--recipe", "prune85", "-o", "x", *SHORT)
    assert code == 0
    assert err.startswith("lograd: pruned gradients take dense products, which save no time; --backend auto takes")
    assert err.count("dense products") == 1
    assert "dense products, which save no time (--backend auto)" in out
    code, out, err = run("train", "mine:make", "--recipe", "prune85", "--backend", "auto", "-o", "y", *SHORT)
    assert code == 0
    assert "dense products" not in out + err
    code, out, err = run("train", "mine:make", "--recipe", "fp6", "-o", "z", *SHORT)
    assert "dense products" not in out + err
    code, _, err = run("train", "mine:make", "--recipe", "prune85", "-o", "x", *SHORT)
    assert (code, err.count("\n")) == (2, 1), "said only once everything is checked"


def test_the_former_name_of_the_option_works(folder, run):
    code, _, err = run("train", "mine:make", "--recipe", "prune85", "--products", "sparse", "-o", "x", *SHORT)
    assert code == 0
    assert err.startswith("lograd: --products has a new name; write --backend sparse.")
    assert Run.load(folder / "x").config.backend == "sparse"
    assert "--products" not in run("train", "--help")[1]


# -- files that are data --


def test_a_plan_is_not_replaced_by_another_one_unasked(folder, run):
    run("profile", "mine:make", "-o", "run", "--steps", "1")
    assert run("plan", "run", "--bits", "6")[0] == 0
    assert run("plan", "run", "--bits", "6")[0] == 0, "the same plan is no loss"
    before = (folder / "run" / "plan.json").read_bytes()
    code, out, err = run("plan", "run", "--bits", "5")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "plan.json exists and is another plan" in err
    assert "--overwrite" in err
    assert (folder / "run" / "plan.json").read_bytes() == before
    code, _, err = run("train", "mine:make", "--recipe", "fp4", "-o", "run", *SHORT)
    assert code == 2
    assert "plan.json exists and is another plan" in err
    assert (folder / "run" / "plan.json").read_bytes() == before
    assert run("plan", "run", "--bits", "5", "--overwrite")[0] == 0
    assert lograd.Plan.load(folder / "run" / "plan.json").layers["0"].input_gradient.gradient[0].format.bits == 5
    (folder / "notes.txt").write_text("mine")
    assert "not a plan" in run("plan", "run", "--bits", "6", "-o", "notes.txt")[2]
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_profile_is_not_replaced_unasked(folder, run):
    assert run("profile", "mine:make", "-o", "run", "--steps", "1")[0] == 0
    before = (folder / "run" / "profile.npz").read_bytes()
    code, _, err = run("profile", "mine:make", "-o", "run", "--steps", "2")
    assert (code, err.count("\n")) == (2, 1)
    assert "has a profile already; replace it by --overwrite, or give another folder by -o" in err
    assert (folder / "run" / "profile.npz").read_bytes() == before
    assert run("profile", "mine:make", "-o", "run", "--steps", "2", "--overwrite")[0] == 0
    assert lograd.Profile.load(folder / "run" / "profile.npz").steps == 2
