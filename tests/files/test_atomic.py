"""Atomic writes and bounded reads: a failure keeps the old file, and says in one sentence what is wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lograd.errors import InvalidType, InvalidValue
from lograd.files import CannotRead, CannotWrite, check_folder, read_file, recorded, replace_file


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    assert replace_file(path, b"one") == path.resolve()
    path.chmod(0o640)
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bin"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    with recorded() as written, pytest.raises(CannotWrite, match=r"a\.bin: No space left on device\.$"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]
    assert written == []


def test_what_was_written_is_recorded_until_the_context_ends(tmp_path: Path) -> None:
    with recorded() as outer:
        replace_file(tmp_path / "a", b"")
        with recorded() as inner:
            replace_file(tmp_path / "b", b"")
        replace_file(tmp_path / "c", b"")
    replace_file(tmp_path / "d", b"")
    assert outer == [tmp_path / "a", tmp_path / "c"]
    assert inner == [tmp_path / "b"]


def test_folders_and_paths_are_checked_early(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a") == (tmp_path / "a").resolve()
    with pytest.raises(CannotWrite, match=r"the folder .* does not exist"):
        check_folder(tmp_path / "missing" / "a")
    with pytest.raises(InvalidType, match="a path must be text"):
        check_folder(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="without the character NUL"):
        check_folder("a\0b")


def test_a_long_file_is_refused_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 100)
    assert read_file(path, limit=100) == b"x" * 100
    with pytest.raises(CannotRead, match="it has more than 99 bytes, which is the limit"):
        read_file(path, limit=99)
    with pytest.raises(CannotRead, match="No such file"):
        read_file(tmp_path / "missing")
