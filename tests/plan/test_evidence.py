"""The evidence beside a plan: words, file and checks."""

from __future__ import annotations

import json

import pytest

from lograd import InvalidValue
from lograd.plan import Evidence, Expected, Forecast, StepWork, Untreated

WHOLE = Expected(0.1, 2.0, penalty=0.1, seconds=0.05, dense_seconds=0.1)
STEP = StepWork(100, 200, 10, (Untreated("lstm", "LSTM", "recurrent layers are not treated", 10, 20),))
EVIDENCE = Evidence({"conv": (3, 4)}, STEP, Forecast("conv", 2.5, 3), {"fc": "it is small"}, WHOLE)


def test_speed_noise_and_progress_follow():
    assert WHOLE.total == pytest.approx(0.2)
    assert WHOLE.speed == 2.0
    assert WHOLE.progress == pytest.approx(2 / 1.2)
    assert Expected(0.1, 2.0).speed is None
    assert Expected(0.1, 2.0).progress is None
    assert Expected(None, 2.0, "rows decide").total is None


def test_words_tell_time_and_both_parts_of_the_noise():
    for words in ("50 ms against 100 ms", "2.00 times", "adds 0.2", "rho 0.1", "pi 0.1", "83 % of the samples"):
        assert words in WHOLE.words()
    assert WHOLE.brief == "2.00 times as fast, adds 0.2 of the minibatch's variance"


@pytest.mark.parametrize(
    "evidence",
    [
        EVIDENCE,
        Evidence(),
        Evidence(expected=Expected(0.1, 2.0)),
        Evidence(expected=Expected(None, 2.0, "rows decide")),
    ],
)
def test_plain_values_have_an_exact_inverse(evidence):
    assert Evidence.from_dict(json.loads(json.dumps(evidence.to_dict()))) == evidence


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("expected", {"seconds": "fast"}, "seconds of expected of the evidence of a plan must be a finite number"),
        ("expected", {"pace": 1.0}, "no field 'pace'"),
        ("growth", {"handing_on": 1.5}, "handing_on of growth of the evidence of a plan must be a whole number"),
        ("step", {"forward": 1.5}, "forward of step"),
        ("step", {"untreated": [{"name": "lstm"}]}, "untreated of step of the evidence of a plan needs its field"),
        ("work", {"conv": [1]}, "'conv' of work of the evidence of a plan must be a list of 2"),
    ],
)
def test_wrong_values_in_a_file_are_refused(part, change, message):
    data = EVIDENCE.to_dict()
    with pytest.raises(InvalidValue, match=message):
        Evidence.from_dict(data | {part: data[part] | change})
