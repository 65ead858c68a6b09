"""Files: written atomically, read as plain values, and checked field by field.

Arrays go into .npz files, which NumPy reads without pickle and whose archive has a checksum of each array; everything
else goes into JSON with a checksum among its fields.  The checks of values raise one sentence that names the field.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidType, InvalidValue, LogradError, nearest_name, sentence

MAX_FLOAT = 1.7976931348623157e308
"""The largest float64.  `abs(value) <= MAX_FLOAT` is False for NaN and infinity, and exact for whole numbers."""
MANY = 2**53
"""The default upper end of whole numbers; up to here they are exact in float64."""


class CannotWrite(LogradError, OSError):
    """A file could not be written; an existing one is unchanged."""


class CannotRead(LogradError, OSError):
    """A file is missing or cannot be read."""


# -- bytes --


def check_folder(path: str | os.PathLike[str]) -> Path:
    """Return where a file will be written, links resolved; raise CannotWrite if its folder is missing or read-only.

    Commands ask before a long computation, so that its result is not lost.
    """
    target = _path(path).resolve()
    if not target.parent.is_dir():
        raise CannotWrite(f"Cannot write {path}: the folder {target.parent} does not exist.")
    if not os.access(target.parent, os.W_OK):
        raise CannotWrite(f"Cannot write {path}: no permission to write into {target.parent}.")
    return target


def replace_file(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file atomically and return its resolved path: a reader never meets half a file.

    The content goes to a temporary file in the same folder, which is then renamed over the file.
    """
    target = check_folder(path)
    draft = target.with_name(f".{secrets.token_hex(8)}.tmp")  # same folder: a rename across disks is not atomic
    try:
        with open(draft, "xb") as file:  # a new file gets the usual permissions
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.is_file():
            draft.chmod(target.stat().st_mode & 0o777)
        os.replace(draft, target)
    except OSError as error:
        raise CannotWrite(f"Cannot write {path}: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, or raise CannotRead."""
    try:
        return _path(path).read_bytes()
    except OSError as error:
        raise CannotRead(f"Cannot read {path}: {error.strerror or error}.") from error


def _path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InvalidType(sentence("a path", path, "text or a pathlib.Path"))
    if "\0" in os.fspath(path):
        raise InvalidValue(sentence("a path", path, "without the character NUL"))
    return Path(path)


# -- values --


def read_json(content: bytes, what: str = "it") -> Any:
    """Return the values of a JSON text in UTF-8; InvalidValue, beginning with `what`, for anything else.

    >>> read_json(b'{"threads": 2}')
    {'threads': 2}
    """
    try:
        return json.loads(content.decode("utf-8-sig"))  # editors on Windows write a byte order mark
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{what} is not JSON: {error}.") from None


def checksum_of_json(data: Any) -> str:
    """Return 16 hexadecimal digits that depend on all names, values and their order, but not on whitespace.

    >>> checksum_of_json({"bits": 6}) == checksum_of_json({"bits": 7})
    False
    """
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name; InvalidValue if it is damaged or holds objects."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # zipfile, zlib and NumPy's parser of headers raise many types
        reason = str(error).split("\n")[0][:80]
        raise InvalidValue(f"it is not a whole .npz file ({type(error).__name__}: {reason}).") from None


# -- values of dataclasses as plain ones, and back --


def to_plain(value: Any) -> Any:
    """Return a value as JSON holds it: an object for a dataclass, a list for an array; NaN is None.

    >>> from dataclasses import make_dataclass
    >>> to_plain(make_dataclass("Point", ["x", "y"])(1.5, math.nan))
    {'x': 1.5, 'y': None}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value) if one.init}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: to_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def from_plain(kind: Any, data: Any, what: str = "it") -> Any:
    """Return the value of a type that `to_plain` made data of; InvalidValue, beginning with `what`, for other data.

    Args:
        kind: a dataclass, or a type as its fields are annotated with.
        what: the name of the value.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        required = [one.name for one in fields(kind) if one.default is one.default_factory is MISSING]
        check_object(what, data, required, [one.name for one in fields(kind) if one.init])
        return kind(**{name: from_plain(hints[name], one, f"{name} of {what}") for name, one in data.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if data is None else from_plain(arguments[0], data, what)
    if origin in (dict, Mapping):
        check_object(what, data, (), None)
        return {name: from_plain(arguments[1], one, f"{name!r} of {what}") for name, one in data.items()}
    if origin in (list, tuple):
        if not isinstance(data, list):
            raise InvalidValue(sentence(what, data, "a list"))
        kinds = arguments if origin is tuple and arguments[-1] is not Ellipsis else [arguments[0]] * len(data)
        if len(kinds) != len(data):
            raise InvalidValue(sentence(what, data, f"a list of {len(kinds)}"))
        found = [from_plain(one, each, what) for one, each in zip(kinds, data, strict=True)]
        return tuple(found) if origin is tuple else found
    if kind is float:
        return math.nan if data is None else check_number(what, data)
    if kind in _CHECKS:
        return _CHECKS[kind](what, data)
    return np.array(data, dtype=np.float64) if origin is np.ndarray else data


# -- checks: each returns the value, or raises InvalidValue with what is expected; `what` names the value.
#    A bool is no number, unlike in Python, and neither are NaN and infinity.


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


_CHECKS: dict[Any, Callable[[str, Any], Any]] = {
    str: check_text,
    bool: check_flag,
    int: lambda what, value: check_whole(what, value, -MANY),
}
