"""Checks of the fields that treatments share."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..theory.pruning import check_sparsity


def checked_sparsity(value: Any) -> float:
    """Return a target share of zeros as a float, or refuse what is none."""
    if not _is_number(value):
        raise InvalidType(sentence("sparsity", value, "a number above 0 and below 1, such as 0.85"))
    return float(check_sparsity(value))


def checked_number(what: str, value: Any, low: float, high: float) -> float:
    """Return a number above `low` and at most `high` as a float, or refuse what is none."""
    if not _is_number(value):
        raise InvalidType(sentence(what, value, f"a number above {low:g} and at most {high:g}"))
    if not low < value <= high:
        raise InvalidValue(sentence(what, value, f"above {low:g} and at most {high:g}"))
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_choice(what: str, value: Any, valid: Sequence[str]) -> None:
    """Refuse a value that is not one of a few words."""
    if value not in valid:
        raise InvalidValue(
            sentence(what, value, "one of " + ", ".join(map(repr, valid))) + nearest_name(str(value), valid)
        )
