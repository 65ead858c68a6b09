"""`lograd variance` on a model of the user's."""

import json
import sys

import pytest
from own_models import MINE

import lograd
from lograd.cli import main

FEW = ["--steps", "3", "--treated", "1", "--repeats", "4"]
BROKEN = """
def broken():
    return network(), loader(), lambda x, y: 1 / 0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mine", None)
    (tmp_path / "mine.py").write_text(MINE + BROKEN)
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


def test_a_recipe_on_a_model_of_ones_own(folder, run):
    code, out, err = run("variance", "mine:five", "--recipe", "int5-bhq", "-o", "run", *FEW)
    assert (code, err) == (0, "")
    assert "Variance of the gradients: dX int5 bhq; dW int8 ptq" in out
    assert "Noise by layer" in out
    assert "The page: run/variance.html (open it in a browser)" in out
    assert "Variance of the gradients of mine:five" in (folder / "run" / "variance.html").read_text()
    found = lograd.Variance.load(folder / "run" / "variance.json")
    assert (found.batches, found.treated, found.repeats, found.seed) == (3, 1, 4, 0)
    code, out, err = run("variance", "mine:five", "--recipe", "int5-bhq", "-o", "run", *FEW)
    assert (code, out) == (2, "")
    assert "has a variance already; replace it by --overwrite" in err


def test_a_plan_as_json(folder, run):
    lograd.Plan.uniform("int6-full").save(folder / "plan.json")
    arguments = [
        "variance",
        "mine:three",
        "--plan",
        "plan.json",
        "-o",
        "run",
        "--seed",
        "3",
        "--no-contributions",
        *FEW,
    ]
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["folder"], data["contributions"], data["seed"]) == ("run", None, 3)
    assert data["total"]["forward"]["cosine"] < 1
    assert lograd.Variance.load(folder / "run" / "variance.json").to_dict() == {
        name: value for name, value in data.items() if name != "folder"
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mine:make"], "variance needs --plan FILE or --recipe NAME, one of them"),
        (["mine:make", "--plan", "p", "--recipe", "fp6"], "variance needs --plan FILE or --recipe NAME, one of them"),
        (["mine:make", "--recipe", "int5-bqh"], "Did you mean 'int5-bhq'?"),
        (["mine:make", "--plan", "nowhere.json"], "nowhere.json"),
        (["mine:make", "--recipe", "fp6", "--repeats", "2"], "repeats"),
        (["mine:make", "--recipe", "identity"], "the plan treats no layer of this model"),
        (["mine:broken", "--recipe", "fp6"], "a step of the model raised ZeroDivisionError"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, folder, run):
    code, out, err = run("variance", *arguments, "-o", "x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert not (folder / "x").exists()
