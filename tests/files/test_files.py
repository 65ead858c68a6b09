"""Files are replaced whole or not at all; what is read from them is plain values, checked field by field."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lograd.errors import InvalidType, InvalidValue
from lograd.files import (
    CannotRead,
    CannotWrite,
    check_flag,
    check_folder,
    check_number,
    check_object,
    check_one_of,
    check_text,
    check_whole,
    checksum_of_json,
    from_plain,
    read_arrays,
    read_file,
    read_json,
    replace_file,
    to_plain,
)  # fmt: skip


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    assert replace_file(path, b"one") == path.resolve()
    path.chmod(0o640)
    replace_file(path, b"two")
    assert read_file(path) == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bin"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(CannotWrite, match=r"a\.bin"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_folders_and_paths_are_checked_early(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a") == (tmp_path / "a").resolve()
    with pytest.raises(CannotWrite, match="missing"):
        check_folder(tmp_path / "missing" / "a")
    with pytest.raises(CannotRead, match="missing"):
        read_file(tmp_path / "missing")
    with pytest.raises(InvalidType):
        check_folder(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        check_folder("a\0b")


# -- JSON and arrays --


@pytest.mark.parametrize(
    "content", [b"", b"{} {}", b'\xff{"a": 1}', b"[" * 200_000, b"9" * 5000, b'"' + b'\\"[' * 10_000]
)
def test_what_is_no_json_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidValue, match="plan is not JSON"):
        read_json(content, "plan")


def test_a_byte_order_mark_is_skipped() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": 0.5}') == {"a": 0.5}


def test_a_checksum_follows_the_values_and_not_their_layout() -> None:
    value = {"a": [1, None, 0.1], "b": "\u00e4"}
    loaded = read_json(json.dumps(value, indent=3, ensure_ascii=False).encode())
    assert checksum_of_json(loaded) == checksum_of_json(value) != checksum_of_json(value | {"b": "a"})


ARRAYS = {
    "rows": np.arange(12.0, dtype=np.float32).reshape(3, 4), "columns": np.asfortranarray(np.eye(3)),
    "one": np.array(3), "none": np.zeros((0, 3), bool),
}  # fmt: skip


def archive(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_arrays_are_those_that_were_written_and_never_pickles() -> None:
    found = read_arrays(archive(**ARRAYS))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    with pytest.raises(InvalidValue, match="npz"):
        read_arrays(archive(objects=np.array([None, {}], object)))


# -- checks --

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
    "text": (check_text, (1,), "1"),
    "flag": (check_flag, (1,), "1"),
    "bool as whole": (check_whole, (True,), "True"),
    "float as whole": (check_whole, (1.0, 0, 9), "1.0"),
    "whole outside": (check_whole, (10, 0, 9), "0 to 9"),
    "NaN": (check_number, (math.nan,), "nan"),
    "infinity": (check_number, (-math.inf,), "-inf"),
    "whole beyond float64": (check_number, (10**400, 0.0), "from 0"),
    "bool as number": (check_number, (False,), "False"),
    "number outside": (check_number, (2.0, 0.0, 1.0), "from 0 to 1"),
    "one of": (check_one_of, ("dens", ("dense", "sparse")), "Did you mean 'dense'?"),
    "none of": (check_one_of, (1, ("dense",)), "'dense'"),
    "no object": (check_object, ([], ("a",), ("b",)), "a, b"),
    "missing field": (check_object, ({}, ("steps",)), "'steps'"),
    "unknown field": (check_object, ({"steps": 1, "stepz": 1}, ("steps",)), "Did you mean 'steps'?"),
}


@pytest.mark.parametrize("name", PASSES)
def test_valid_values_are_returned(name: str) -> None:
    check, arguments, expected = PASSES[name]
    found = check("it", *arguments)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("name", FAILS)
def test_invalid_values_get_one_sentence_with_their_name(name: str) -> None:
    check, arguments, shown = FAILS[name]
    with pytest.raises(InvalidValue, match=r"^it ") as caught:
        check("it", *arguments)
    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


# -- dataclasses --


@dataclass(frozen=True)
class Part:
    """A part of a whole."""

    name: str
    share: float = math.nan


@dataclass(frozen=True)
class Whole:
    """All kinds of fields."""

    parts: tuple[Part, ...]
    work: Mapping[str, tuple[int, int]]
    table: NDArray[np.float64]
    first: Part | None = None
    flags: list[bool] = field(default_factory=list)


WHOLE = Whole((Part("a", 0.5), Part("b")), {"a": (1, -2)}, np.eye(2), Part("c", 1), [True, False])


def test_values_of_dataclasses_are_plain_and_come_back() -> None:
    plain = to_plain(WHOLE)
    assert plain["parts"] == [{"name": "a", "share": 0.5}, {"name": "b", "share": None}]
    back = from_plain(Whole, json.loads(json.dumps(plain, allow_nan=False)))
    assert to_plain(back) == plain
    assert back.work == WHOLE.work
    assert back.table.dtype == np.float64
    assert from_plain(Whole, {"parts": [], "work": {}, "table": []}).first is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": {}}, "parts of it must be a list; got {}"),
        ({"parts": [{}]}, "parts of it needs its field 'name'"),
        ({"first": {"nmae": "x"}}, "first of it has no field 'nmae'; .* Did you mean 'name'"),
        ({"work": {"a": [1]}}, "'a' of work of it must be a list of 2"),
        ({"work": {"a": [1, 1.5]}}, "'a' of work of it must be a whole number"),
        ({"flags": [1]}, "flags of it must be true or false"),
        ({"first": {"name": "x", "share": "half"}}, "share of first of it must be a finite number"),
    ],
)
def test_other_values_are_refused_with_the_name_of_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        from_plain(Whole, to_plain(WHOLE) | change)
