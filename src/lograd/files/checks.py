"""Checks of plain values from a file: each returns the value, or raises InvalidValue with what is expected.

`what` names the value in the message.  Unlike in Python, a bool is no number, and neither are NaN and infinity.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from ..errors import InvalidValue, nearest_name, sentence

MAX_FLOAT = 1.7976931348623157e308
"""The largest float64.  `abs(value) <= MAX_FLOAT` is False for NaN and infinity, and exact for whole numbers."""
MANY = 2**53
"""The default upper end of whole numbers; up to here they are exact in float64."""


def check_object(
    what: str, data: Any, required: Collection[str], optional: Collection[str] | None = ()
) -> dict[str, Any]:
    """Check that data is an object with all required fields and no unknown ones; optional=None allows any others."""
    names = list(dict.fromkeys([*required, *(optional or ())]))
    if not isinstance(data, dict):
        raise InvalidValue(sentence(what, data, "an object with " + ", ".join(names)))
    for name in data if optional is not None else ():
        if name not in names:
            shown = str(name)[:60]
            raise InvalidValue(f"{what} has no field {shown!r}; it has {', '.join(names)}.{nearest_name(shown, names)}")
    for name in required:
        if name not in data:
            raise InvalidValue(f"{what} needs its field {name!r}; it is missing.")
    return data


def check_text(what: str, value: Any) -> str:
    """Check that a value is a text."""
    if not isinstance(value, str):
        raise InvalidValue(sentence(what, value, "a text"))
    return value


def check_flag(what: str, value: Any) -> bool:
    """Check that a value is true or false."""
    if not isinstance(value, bool):
        raise InvalidValue(sentence(what, value, "true or false"))
    return value


def check_whole(what: str, value: Any, low: int = 0, high: int = MANY) -> int:
    """Check that a value is a whole number from `low` to `high`.

    >>> check_whole("steps", 20)
    20
    """
    if type(value) is not int or not low <= value <= high:
        raise InvalidValue(sentence(what, value, f"a whole number from {low} to {high}"))
    return value


def check_number(what: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Check that a value is a finite number from `low` to `high`, and return it as a float."""
    valid = type(value) in (int, float) and abs(value) <= MAX_FLOAT and low <= value <= high
    if not valid:
        bounds = [f"{word} {bound:g}" for word, bound in (("from", low), ("to", high)) if math.isfinite(bound)]
        raise InvalidValue(sentence(what, value, " ".join(["a finite number", *bounds])))
    return float(value)


def check_one_of(what: str, value: Any, valid: Collection[str]) -> str:
    """Check that a value is one of some texts; the message has the nearest one."""
    if not isinstance(value, str) or value not in valid:
        hint = nearest_name(value[:60], valid) if isinstance(value, str) else ""
        raise InvalidValue(sentence(what, value, "one of " + ", ".join(map(repr, valid))) + hint)
    return value
