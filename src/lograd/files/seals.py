"""A checksum inside the file: SHA-256 of everything before it, as the comment of a zip archive.

Checkpoints and profiles are zip archives, whose readers skip the comment.  It is looked at before anything else is:
bytes that were changed meet no parser.  A file without a comment was written by an earlier lograd or by somebody else,
and is read as well.  A plan is text for people, so its checksum is a field (`checksum_of_json`).
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
"""Bytes of the record that ends a zip archive; the last two are the length of the comment behind it."""


def sealed(archive: bytes | memoryview) -> bytes:
    """The zip archive with its checksum as its comment."""
    if not _ends_plainly(archive):
        raise InvalidValue("only a zip archive without a comment can be sealed.")
    body, length = memoryview(archive)[:-2], struct.pack("<H", _SEAL)
    found = hashlib.sha256(body)
    found.update(length)
    return b"".join([body, length, _MARK, found.hexdigest().encode()])


def check_seal(content: bytes) -> None:
    """Refuse a file that is not as it was written; one that never had a checksum passes."""
    if content[-_SEAL:-_DIGITS] == _MARK:
        if hashlib.sha256(memoryview(content)[:-_SEAL]).hexdigest().encode() != content[-_DIGITS:]:
            raise InvalidValue("its checksum does not match: it was changed or damaged after lograd saved it.")
    elif not _ends_plainly(content):
        raise InvalidValue("it is not whole, or was changed after lograd saved it.")


def _ends_plainly(content: bytes | memoryview) -> bool:
    return content[-_END : -_END + 4] == b"PK\x05\x06" and content[-2:] == b"\0\0"


def checksum_of_json(data: Any) -> str:
    """Hexadecimal digits that change with any value, name or order in plain data, and not with its layout as text."""
    return hashlib.sha256(json.dumps(data, allow_nan=False).encode()).hexdigest()[:16]
