"""The commands on a model of the user's, and files that are not replaced unasked."""

import sys

import pytest
from own_models import MINE

import lograd
from lograd.cli import main

MORE = """
def broken():
    return network(), loader(), lambda x, y: 1 / 0

def raises():
    raise RuntimeError("no data")

def alone():
    return network()

def swapped():
    return loader(), network()

def epochs():
    return network(), lambda epoch: loader(), cross_entropy
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mine", None)
    (tmp_path / "mine.py").write_text(MINE + MORE)
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


@pytest.mark.parametrize("name", ["make", "three", "five", "epochs"])
def test_what_a_function_may_return(name, folder, run):
    code, _, err = run("profile", f"mine:{name}", "-o", "run", "--steps", "2")
    assert (code, err) == (0, "")
    assert list(lograd.Profile.load(folder / "run" / "profile.npz").layers) == ["0", "4"]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("resnet8", "'resnet8' is not MODULE:FUNCTION"),
        ("mine:", "'mine:' is not MODULE:FUNCTION"),
        ("nowhere:make", "there is no module 'nowhere'"),
        ("mine:mkae", "Did you mean 'make'?"),
        ("mine:INPUTS", "mine has no function 'INPUTS'"),
        ("mine:alone", "mine:alone must return (model, batches"),
        ("mine:swapped", "in place of the model"),
        ("mine:broken", "a step of the model raised ZeroDivisionError: division by zero ("),
        ("mine:raises", "mine:raises raised RuntimeError: no data ("),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(target, sentence, folder, run):
    code, _, err = run("profile", target, "-o", "x")
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (folder / "x").exists()


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
