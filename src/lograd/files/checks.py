"""Checks of plain values that come from a file: each returns the value, or says in one sentence what must stand there.

A bool is no number here, though Python counts it as one, and NaN and infinity are none either.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from ..errors import InvalidValue, nearest_name, sentence

MANY = 2**53
"""More than anything that is counted; whole numbers up to here are exact in float64."""


def check_object(
    what: str, data: Any, required: Collection[str], optional: Collection[str] | None = ()
) -> dict[str, Any]:
    """An object that has all required fields and no unknown one; with optional=None, others do not matter."""
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
    if not isinstance(value, str):
        raise InvalidValue(sentence(what, value, "a text"))
    return value


def check_flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(sentence(what, value, "true or false"))
    return value


def check_whole(what: str, value: Any, low: int = 0, high: int = MANY) -> int:
    if type(value) is not int or not low <= value <= high:
        raise InvalidValue(sentence(what, value, f"a whole number from {low} to {high}"))
    return value


def check_number(what: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number; a whole one becomes a float."""
    valid = type(value) in (int, float) and abs(value) <= MAX_FLOAT and low <= value <= high
    if not valid:
        bounds = [f"{word} {bound:g}" for word, bound in (("from", low), ("to", high)) if math.isfinite(bound)]
        raise InvalidValue(sentence(what, value, " ".join(["a finite number", *bounds])))
    return float(value)


def check_one_of(what: str, value: Any, valid: Collection[str]) -> str:
    if not isinstance(value, str) or value not in valid:
        hint = nearest_name(value[:60], valid) if isinstance(value, str) else ""
        raise InvalidValue(sentence(what, value, "one of " + ", ".join(map(repr, valid))) + hint)
    return value


MAX_FLOAT = 1.7976931348623157e308
"""NaN is not below it, and no infinity is; a whole number is compared exactly."""
