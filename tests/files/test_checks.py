"""Checks of plain values from files: what passes is returned, and what does not gets one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from lograd.errors import InvalidValue
from lograd.files.checks import check_flag, check_number, check_object, check_one_of, check_text, check_whole

PASSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "text": (check_text, ("",), ""),
    "flag": (check_flag, (False,), False),
    "whole": (check_whole, (2**53,), 2**53),
    "whole with ends": (check_whole, (-3, -3, 4), -3),
    "number": (check_number, (-1.5,), -1.5),
    "whole as number": (check_number, (2,), 2.0),
    "one of": (check_one_of, ("b", ("a", "b")), "b"),
    "object": (check_object, ({"a": 1, "b": 2}, ("a",), ("b",)), {"a": 1, "b": 2}),
    "open object": (check_object, ({"a": 1, "z": 2}, ("a",), None), {"a": 1, "z": 2}),
}

FAILS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "text": (check_text, (1,), "it must be a text; got 1."),
    "flag": (check_flag, (1,), "it must be true or false; got 1."),
    "bool as whole": (check_whole, (True,), "it must be a whole number from 0 to 9007199254740992; got True."),
    "float as whole": (check_whole, (1.0, 0, 9), "it must be a whole number from 0 to 9; got 1.0."),
    "whole outside": (check_whole, (10, 0, 9), "it must be a whole number from 0 to 9; got 10."),
    "NaN": (check_number, (math.nan,), "it must be a finite number; got nan."),
    "infinity": (check_number, (-math.inf,), "it must be a finite number; got -inf."),
    "whole beyond float64": (check_number, (10**400, 0.0), "it must be a finite number from 0; got 1000"),
    "bool as number": (check_number, (False,), "it must be a finite number; got False."),
    "number outside": (check_number, (2.0, 0.0, 1.0), "it must be a finite number from 0 to 1; got 2.0."),
    "one of": (
        check_one_of,
        ("dens", ("dense", "sparse")),
        "'sparse'; got 'dens'. Did you mean 'dense'?",
    ),
    "none of": (check_one_of, (1, ("dense",)), "it must be one of 'dense'; got 1."),
    "no object": (check_object, ([], ("a",), ("b",)), "it must be an object with a, b; got []."),
    "missing field": (check_object, ({}, ("steps",)), "it needs its field 'steps'; it is missing."),
    "unknown field": (check_object, ({"steps": 1, "stepz": 1}, ("steps",)), "Did you mean 'steps'?"),
}


@pytest.mark.parametrize("name", PASSES)
def test_valid_values_are_returned(name: str) -> None:
    check, arguments, expected = PASSES[name]
    found = check("it", *arguments)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("name", FAILS)
def test_invalid_values_get_one_sentence(name: str) -> None:
    check, arguments, message = FAILS[name]
    with pytest.raises(InvalidValue) as caught:
        check("it", *arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
