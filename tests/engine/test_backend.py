"""What is no backend is refused, and so is one that a run has no use for."""

import pytest
from torch import nn

import lograd
from lograd import InvalidValue, Plan


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"backend": "spars"},
            r"backend must be 'auto', 'sparse', 'integer' or 'dense'; got 'spars'\. Did you mean 'sparse'\?",
        ),
    ],
)
def test_what_is_no_backend_is_refused(given, words):
    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(InvalidValue, match=words):
        lograd.attach(model, Plan.uniform("prune85"), **given)
    assert type(model[0]) is nn.Linear
