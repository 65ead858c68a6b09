"""Files that are replaced whole or not at all: a reader never meets half a file, and a failure keeps the old one."""

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
    """A list that grows by each file that is replaced inside: what a command that is stopped has done by then."""
    written: list[Path] = []
    before = _record.set(written)
    try:
        yield written
    finally:
        _record.reset(before)


CHUNK = 2**22


class CannotWrite(LogradError, OSError):
    """A file could not be saved; whatever was there before is still there."""


class CannotRead(LogradError, OSError):
    """A file is missing, or is not what it was taken for."""


def check_folder(path: str | os.PathLike[str]) -> Path:
    """Where a file will be written, through links; raises if its folder cannot take it, so that one can ask early."""
    target = _path(path).resolve()
    if not target.parent.is_dir():
        raise CannotWrite(f"Cannot write {path}: the folder {target.parent} does not exist.")
    if not os.access(target.parent, os.W_OK):
        raise CannotWrite(f"Cannot write {path}: no permission to write into {target.parent}.")
    return target


def replace_file(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write the content beside the file, then rename it over the file."""
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
    """All of a file; one of more than `limit` bytes is refused before they are in memory."""
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
