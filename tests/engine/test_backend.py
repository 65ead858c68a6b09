"""The choice between dense and sparse products is called backend everywhere; its former name still works."""

import warnings

import pytest
import training_files as files
from torch import nn

import lograd
from experiments.lab import Config, train
from lograd import InvalidValue, Plan
from lograd.errors import LogradWarning


def test_the_former_name_of_the_backend_works_and_says_the_new_one():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    with (
        pytest.warns(
            LogradWarning, match=r"attach\(products='sparse'\) has a new name; write attach\(backend='sp"
        ) as w,
        lograd.attach(model, Plan.uniform("prune85"), products="sparse") as handle,
    ):
        assert handle.layers["0"].choices["gradient"].fixed
    assert w[0].filename == __file__, "the warning points at the call"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lograd.attach(model, Plan.uniform("prune85"), backend="sparse").remove()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"backend": "spars"},
            r"backend must be 'auto', 'sparse', 'integer' or 'dense'; got 'spars'\. Did you mean 'sparse'\?",
        ),
        ({"products": "weight"}, r"part of the plan: profile\.plan\(\.\.\., products='weight_gradient'\)"),
        ({"products": "dense", "backend": "sparse"}, "products is the former name of backend; got both"),
    ],
)
def test_what_is_no_backend_is_refused(given, words):
    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(InvalidValue, match=words):
        lograd.attach(model, Plan.uniform("prune85"), **given)
    assert type(model[0]) is nn.Linear


def test_settings_of_older_runs_are_read():
    config = Config("resnet8", "x.npz", recipe="prune85", backend="sparse")
    old = config.to_json()
    old["products"] = old.pop("backend")
    assert Config.from_json(old) == config
    with pytest.raises(InvalidValue, match="no setting 'products'"):
        Config.from_json(config.to_json() | {"products": "dense"})


def test_a_plan_that_prunes_nothing_has_no_use_for_sparse_products(tmp_path):
    data = files.images(tmp_path / "images.npz")
    Plan.uniform("fp6").save(tmp_path / "plan.json")
    for treated in ({}, {"recipe": "fp6"}, {"plan": tmp_path / "plan.json"}):
        with pytest.raises(
            InvalidValue, match="backend 'auto' is for gradients that are pruned, and this run prunes none"
        ):
            train(Config("resnet8", data, backend="auto", width=2, batch=8, steps=1, **treated), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config = Config("resnet8", data, backend="sparse", recipe="prune85", width=8, batch=8, steps=2, threads=1)
    assert train(config, tmp_path / "run").status == "finished"


def test_a_run_trains_in_integers_where_its_recipe_has_levels(tmp_path):
    data = files.images(tmp_path / "images.npz")
    with pytest.raises(InvalidValue, match="backend 'integer' is for operands that are levels, and this run has none"):
        train(Config("resnet8", data, backend="integer", recipe="fp6", width=8, batch=8, steps=1), tmp_path / "run")
    for backend in ("integer", "auto"):
        config = Config("resnet8", data, backend=backend, recipe="int6-full", width=8, batch=8, steps=2, threads=1)
        assert train(config, tmp_path / backend).status == "finished"
