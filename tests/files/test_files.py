"""Files are replaced whole or not at all; what is read from them is plain values, checked field by field."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import REFUSED, attempt, flipped, flips, nested

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
    read_arrays,
    read_file,
    read_json,
    replace_file,
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

PLAIN = nested(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text())


@given(PLAIN, st.booleans())
def test_what_python_writes_is_read_back(value: Any, ascii_only: bool) -> None:
    content = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert read_json(content) == value
    assert checksum_of_json(read_json(content)) == checksum_of_json(value)


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0123dtrue ', max_size=60).map(str.encode))
def test_any_bytes_are_values_or_a_sentence(content: bytes) -> None:
    attempt(lambda: read_json(content))
    assert attempt(lambda: read_arrays(content)) is REFUSED


@pytest.mark.parametrize(
    "content", [b"", b"{} {}", b'\xff{"a": 1}', b"[" * 200_000, b"9" * 5000, b'"' + b'\\"[' * 10_000]
)
def test_what_is_no_json_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidValue, match="plan is not JSON"):
        read_json(content, "plan")


def test_a_byte_order_mark_is_skipped() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": 0.5}') == {"a": 0.5}


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


@given(flips(len(archive(**ARRAYS))))
@settings(max_examples=200)
def test_a_flipped_byte_of_an_archive_is_refused_or_changes_nothing(flip: tuple[int, int]) -> None:
    found = attempt(lambda: read_arrays(flipped(archive(**ARRAYS), flip)))
    if found is not REFUSED:
        for name in found.keys() & ARRAYS.keys():  # a flip may rename an array, which its reader then misses
            np.testing.assert_array_equal(found[name], ARRAYS[name], strict=True)


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
