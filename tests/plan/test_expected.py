"""Predictions of a plan: words, file and checks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lograd import InvalidValue
from lograd.plan import Expected

WHOLE = Expected(0.1, 2.0, penalty=0.1, seconds=0.05, dense_seconds=0.1)


def test_speed_noise_and_progress_follow():
    assert WHOLE.total == pytest.approx(0.2)
    assert WHOLE.speed == 2.0
    assert WHOLE.progress == pytest.approx(2 / 1.2)
    assert Expected(0.1, 2.0).speed is None
    assert Expected(0.1, 2.0).progress is None
    assert Expected(None, 2.0, "rows decide").total is None


def test_words_tell_time_and_both_parts_of_the_noise():
    assert WHOLE.words() == (
        "A step is predicted to take 50 ms against 100 ms of the plain one, 2.00 times as fast. Noise adds 0.2 of the "
        "minibatch's variance (rho 0.1 by the backward, pi 0.1 by the forward): a step is worth about one with 83 % of "
        "the samples."
    )
    assert WHOLE.brief == "2.00 times as fast, adds 0.2 of the minibatch's variance"


@pytest.mark.parametrize("expected", [WHOLE, Expected(0.1, 2.0), Expected(None, 2.0, "rows decide")])
def test_the_file_is_an_exact_inverse(expected):
    assert Expected.from_json(json.loads(json.dumps(expected.to_json()))) == expected


def test_fields_of_earlier_files_are_passed_over():
    assert Expected.from_json(WHOLE.to_json() | {"budget": 0.3, "travel": {"layers": []}}) == WHOLE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": -1.0}, "seconds of a plan must be"),
        ({"pace": 1.0}, "has no field 'pace'"),
    ],
)
def test_hostile_files_are_refused_in_a_sentence(change, message):
    with pytest.raises(InvalidValue, match=message):
        Expected.from_json(WHOLE.to_json() | change)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seconds": 1.0}, "both seconds and dense_seconds"),
        ({"penalty": np.inf}, "penalty of a plan must be finite"),
    ],
)
def test_fields_are_checked(fields, message):
    with pytest.raises(InvalidValue, match=message):
        Expected(0.1, 1.0, **fields)
