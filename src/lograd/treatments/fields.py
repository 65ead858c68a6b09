"""The fields of treatments: checks that several share, and the values that a plan file may have for an annotation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import lru_cache
from numbers import Real
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..files.checks import MANY, MAX_FLOAT
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


# -- fields in files --


class Values(NamedTuple):
    """The values of JSON that a field takes."""

    words: str
    """For a message, behind "must be"."""
    accepts: Callable[[Any], bool]
    """Tells whether a value is one of them; a bool is no number, and neither are NaN and infinity."""
    names: tuple[str, ...] = ()
    """Texts of which the nearest is named where another is given."""

    def check(self, what: str, value: Any) -> None:
        """Refuse any other value, in one sentence."""
        if not self.accepts(value):
            hint = nearest_name(value[:60], self.names) if isinstance(value, str) else ""
            raise InvalidValue(sentence(what, value, self.words) + hint)


_WHOLE = Values(f"a whole number from {-MANY} to {MANY}", lambda value: type(value) is int and abs(value) <= MANY)
_NUMBER = Values("a finite number", lambda value: type(value) in (int, float) and abs(value) <= MAX_FLOAT)
_FLAG = Values("true or false", lambda value: isinstance(value, bool))
_TEXT = Values("a text", lambda value: isinstance(value, str))
_NULL = Values("null", lambda value: value is None)
_NESTED = Values('a treatment, an object with a "kind"', lambda value: isinstance(value, dict))
_PLAIN = {int: _WHOLE, float: _NUMBER, bool: _FLAG, str: _TEXT, NoneType: _NULL, None: _NULL}


@lru_cache(maxsize=256)
def values_of_fields(owner: type) -> dict[str, Values]:
    """Return what each field of a dataclass takes, by its annotation, which is a type or the text of one."""
    return {one.name: _values_of(_annotation(owner, one)) for one in fields(owner)}


def _annotation(owner: type, one: Field[Any]) -> Any:
    """Return the type that a field is annotated with; the text itself where it names nothing that is there at run time.

    Under `from __future__ import annotations` it is a text, to be read where the class that has the field was written.
    """
    if not isinstance(one.type, str):
        return one.type
    home = next(base for base in owner.__mro__ if one.name in vars(base).get("__annotations__", {}))
    known = vars(sys.modules[home.__module__]) if home.__module__ in sys.modules else {}
    try:
        return get_type_hints(SimpleNamespace(__annotations__={one.name: one.type}), known)[one.name]
    except Exception:  # an annotation is an expression, which may raise anything
        return one.type


def _values_of(annotation: Any) -> Values:
    """Return what an annotation takes; formats and other classes that read themselves are texts."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values_of(parts[0])
    if origin is Literal:
        return Values(
            "one of " + ", ".join(map(repr, parts)),
            lambda value: any(type(one) is type(value) and one == value for one in parts),
            tuple(one for one in parts if isinstance(one, str)),
        )
    if origin in (Union, UnionType):
        several = [_values_of(part) for part in parts]
        return Values(
            " or ".join(one.words for one in several), lambda value: any(one.accepts(value) for one in several)
        )
    if annotation is Any:
        return _values_of(str | float | bool | None)
    if hasattr(annotation, "__supertype__"):  # a typing.NewType
        return _values_of(annotation.__supertype__)
    if hasattr(annotation, "from_json"):
        return _NESTED
    try:
        return _PLAIN.get(annotation, _TEXT)
    except TypeError:  # it has no hash
        return _TEXT
