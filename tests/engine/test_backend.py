"""The choice between dense and sparse products is called backend everywhere; its former name still works."""

import warnings

import pytest
from torch import nn

import lograd
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
