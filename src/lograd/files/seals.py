"""Checksums inside files: the SHA-256 of a zip archive, stored as its comment, and a short one for JSON.

Checkpoints and profiles are zip archives, whose readers skip the comment.  It is checked first, so that changed bytes
never reach a parser.  A file without a comment, from an older lograd or from elsewhere, is read as well.  A plan is a
text that people edit, so its checksum is a field (`checksum_of_json`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

from ..errors import InvalidValue

_MARK = b"lograd sha256 "
_DIGITS = 64
_SEAL = len(_MARK) + _DIGITS
_END = 22
"""Bytes of the record at the end of a zip archive; the last two are the length of the comment that follows."""


def sealed(archive: bytes | memoryview) -> bytes:
    """Return the zip archive with its checksum as comment."""
    if not _ends_plainly(archive):
        raise InvalidValue("only a zip archive without a comment can be sealed.")
    body, length = memoryview(archive)[:-2], struct.pack("<H", _SEAL)
    found = hashlib.sha256(body)
    found.update(length)
    return b"".join([body, length, _MARK, found.hexdigest().encode()])


def check_seal(content: bytes) -> None:
    """Raise InvalidValue if a file was changed after it was sealed; a file that was never sealed passes."""
    if content[-_SEAL:-_DIGITS] == _MARK:
        if hashlib.sha256(memoryview(content)[:-_SEAL]).hexdigest().encode() != content[-_DIGITS:]:
            raise InvalidValue("its checksum does not match: it was changed or damaged after lograd saved it.")
    elif not _ends_plainly(content):
        raise InvalidValue("it is not whole, or was changed after lograd saved it.")


def _ends_plainly(content: bytes | memoryview) -> bool:
    return content[-_END : -_END + 4] == b"PK\x05\x06" and content[-2:] == b"\0\0"


def checksum_of_json(data: Any) -> str:
    """Return 16 hexadecimal digits that depend on all names, values and their order, but not on whitespace.

    >>> checksum_of_json({"bits": 6}) == checksum_of_json({"bits": 7})
    False
    """
    return hashlib.sha256(json.dumps(data, allow_nan=False).encode()).hexdigest()[:16]
