"""The names of `lograd.files`, until nothing imports them from here."""

from __future__ import annotations

import os

from .. import files
from . import CannotRead as CannotRead
from . import CannotWrite as CannotWrite
from . import check_folder as check_folder
from . import recorded as recorded
from . import replace_file as replace_file


def read_file(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """Return the content of a file; raise CannotRead where it is longer than `limit` bytes."""
    content = files.read_file(path)
    if limit is not None and len(content) > limit:
        raise CannotRead(f"Cannot read {path}: it has more than {limit:,} bytes, which is the limit.")
    return content
