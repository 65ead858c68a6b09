"""metrics.jsonl: lines are appended while a run goes on, and cut back to the checkpoint when it is resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO, final

from lograd import InvalidValue
from lograd.files.atomic import CannotRead, CannotWrite, read_file
from lograd.files.strict_json import parse

from .checking import check_line

Line = dict[str, Any]


@final
class Journal:
    """The open file.  It is locked, so that two processes do not train in one folder; a lock ends with its process."""

    def __init__(self, path: Path) -> None:
        try:
            self.file: BinaryIO = open(path, "ab")  # noqa: SIM115  closed by `close`
        except OSError as error:
            raise CannotWrite(f"Cannot write {path}: {error.strerror}.") from error
        if not _lock(self.file):
            self.file.close()
            raise InvalidValue(f"another process is training in {path.parent}; wait for it, or use another folder.")

    def write(self, line: Line) -> None:
        """Append a line."""
        try:
            self.file.write((json.dumps(line, allow_nan=False) + "\n").encode())
            self.file.flush()
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.file.name}: {error.strerror}.") from error

    def settle(self) -> int:
        """Bring the lines to the disk, before a checkpoint counts on them, and return the bytes so far."""
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def cut(self, size: int) -> None:
        """Forget whatever follows a checkpoint, lines or not: the resumed run writes them again."""
        if os.fstat(self.file.fileno()).st_size < size:
            raise CannotRead(
                f"{self.file.name} has lost lines that its checkpoint counts on; start anew with --overwrite."
            )
        read_lines(Path(self.file.name), size)  # at once, and not when the run is at its end
        self.file.truncate(size)

    def close(self) -> None:
        """Close the file, and let other processes write to it."""
        self.file.close()


def read_lines(path: Path, size: int | None = None, metric: str | None = None) -> list[Line]:
    """The complete lines; a partial last line, which a killed process leaves, is ignored.

    Args:
        size: bytes that belong to a checkpoint, which ends with a line; what follows them is not looked at.
        metric: what each evaluation must have.
    """
    content = read_file(path)[:size]
    if size and not content.endswith(b"\n"):
        raise CannotRead(f"Cannot read {path}: the checkpoint was written after byte {size}, and no line ends there.")
    lines = []
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = parse(text)
            check_line(line, metric)
        except InvalidValue as error:
            raise CannotRead(f"Cannot read {path}, line {number}: {error}") from None
        lines.append(line)
    return lines


def _lock(file: BinaryIO) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
