"""The commands on a model of the user's, and files that are not replaced unasked."""

import json

import pytest

import lograd

FEW = ["--steps", "3", "--treated", "1", "--repeats", "4"]


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
    assert not any((folder / "x").glob("*"))


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
    assert "has profile.npz already; replace it by --overwrite, or give another folder by -o" in err
    assert (folder / "run" / "profile.npz").read_bytes() == before
    assert run("profile", "mine:make", "-o", "run", "--steps", "2", "--overwrite")[0] == 0
    assert lograd.Profile.load(folder / "run" / "profile.npz").steps == 2


# -- variance --


def test_a_recipe_on_a_model_of_ones_own(folder, run):
    code, out, err = run("variance", "mine:five", "--recipe", "int5-bhq", "-o", "run", *FEW)
    assert code == 0, err  # which has lines of progress where this takes long
    assert "Variance of the gradients: dX int5 bhq; dW int8 ptq" in out
    assert "Noise by layer" in out
    assert "The page: run/variance.html (open it in a browser)" in out
    assert "Variance of the gradients of mine:five" in (folder / "run" / "variance.html").read_text()
    found = lograd.Variance.load(folder / "run" / "variance.json")
    assert (found.batches, found.treated, found.repeats, found.seed) == (3, 1, 4, 0)
    code, out, err = run("variance", "mine:five", "--recipe", "int5-bhq", "-o", "run", *FEW)
    assert (code, out) == (2, "")
    assert "has variance.json already; replace it by --overwrite" in err


def test_a_plan_as_json(folder, run):
    lograd.Plan.uniform("int6-full").save(folder / "plan.json")
    options = ["-o", "run", "--seed", "3", "--no-contributions", "--json", *FEW]
    code, out, err = run("variance", "mine:three", "--plan", "plan.json", *options)
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
def test_bad_input_of_variance_is_one_sentence(arguments, sentence, folder, run):
    code, out, err = run("variance", *arguments, "-o", "x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert not any((folder / "x").glob("*"))
