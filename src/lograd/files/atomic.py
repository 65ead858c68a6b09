"""Atomic writes and bounded reads: a reader never meets half a file, and a failed write keeps the old one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ..errors import InvalidType, InvalidValue, LogradError, sentence

_record: ContextVar[list[Path] | None] = ContextVar("record", default=None)


@contextmanager
def recorded() -> Iterator[list[Path]]:
    """Yield a list to which each file written inside is added: a stopped command tells what it has written."""
    written: list[Path] = []
    before = _record.set(written)
    try:
        yield written
    finally:
        _record.reset(before)


CHUNK = 2**22
"""Bytes that are read at once."""


class CannotWrite(LogradError, OSError):
    """A file could not be written; an existing one is unchanged."""


class CannotRead(LogradError, OSError):
    """A file is missing, or does not hold what was expected."""


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
    """Write a file atomically and return its resolved path.

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
        if (written := _record.get()) is not None:
            written.append(Path(path))
    except OSError as error:
        raise CannotWrite(f"Cannot write {path}: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def read_file(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """Return the content of a file; raise CannotRead as soon as it turns out to be longer than `limit` bytes."""
    content = bytearray()
    try:
        with open(_path(path), "rb") as file:
            while chunk := file.read(CHUNK):
                content += chunk
                if limit is not None and len(content) > limit:
                    raise CannotRead(f"Cannot read {path}: it has more than {limit:,} bytes, which is the limit.")
    except CannotRead:
        raise
    except OSError as error:
        raise CannotRead(f"Cannot read {path}: {error.strerror or error}.") from error
    return bytes(content)


def _path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InvalidType(sentence("a path", path, "text or a pathlib.Path"))
    if "\0" in os.fspath(path):
        raise InvalidValue(sentence("a path", path, "without the character NUL"))
    return Path(path)
