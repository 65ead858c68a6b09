"""A strict reader of JSON from files of unknown origin; what is wrong is said in one sentence.

Python's reader accepts NaN, whole numbers of any length, the same name twice in one object, and nesting that overflows
the stack.  This one refuses all of these.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ..errors import InvalidValue

DEEPEST = 64
"""The most levels of nesting; a plan has seven."""
LARGEST = 2**26
"""The most bytes of a file; a plan of ten thousand layers has about three million."""
_NUMBER_LENGTH = 400
"""The most characters of a number that is not whole; 17 digits determine a float64."""
# The closing quote is optional: otherwise an open string would be scanned again from each quote inside it, which takes
# quadratic time.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse(content: bytes, what: str = "it") -> Any:
    """Return the values of a JSON text in UTF-8; InvalidValue, beginning with `what`, for anything else.

    >>> parse(b'{"threads": 2}')
    {'threads': 2}
    """
    if len(content) > LARGEST:
        raise InvalidValue(f"{what} has {len(content):,} bytes of JSON, and {LARGEST:,} are read at most.")
    try:
        text = content.decode("utf-8-sig")  # editors on Windows write a byte order mark
        if depth(text) > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} levels deep")
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be encoded
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InvalidValue(f"{what} is not JSON: not UTF-8 ({error.reason} at {error.start}).") from None
    except ValueError as error:
        raise InvalidValue(f"{what} is not JSON: {error}.") from None
    return value


def depth(text: str) -> int:
    """Return the deepest nesting of objects and lists; brackets inside strings do not count.

    >>> depth('[{"a": "[["}]')
    2
    """
    deepest = level = 0
    for token in _TOKENS.finditer(text):
        first = token[0][0]
        level += (first in "[{") - (first in "]}")
        deepest = max(deepest, level)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} stands twice in one object")
    return found


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
        raise ValueError(f"the whole number {_short(digits)} does not fit 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits) if len(digits) <= _NUMBER_LENGTH else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {_short(digits)} is beyond float64")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _short(digits: str) -> str:
    return digits if len(digits) <= 40 else f"{digits[:20]}... of {len(digits)} digits"


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_number, parse_constant=_constant)
