"""Reads arrays from .npz files of unknown origin: every size is checked before memory is allocated.

`np.load` allocates whatever the directory of the archive and the header of an array claim.  Here both must agree with
each other, with the length of the file, and with a limit.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import InvalidValue

MOST_MEMBERS = 64
MOST_SQUEEZED = 1032
"""The highest ratio that deflate can reach; a directory that claims more is forged."""
LONGEST_HEADER = 10_000
CHUNK = 2**22
KINDS = "biuf"
"""NumPy's letters for bool, integers and floats."""


class TooLarge(InvalidValue):
    """The arrays take more memory than the limit; with a higher limit the file may be fine."""


def read_arrays(file: BinaryIO, names: Collection[str], limit: int) -> dict[str, NDArray[Any]]:
    """Return those of the named arrays that the file has; InvalidValue if one is damaged or holds objects.

    Args:
        file: open for reading.
        names: the arrays to read; others are ignored.
        limit: bytes that the arrays may take in memory.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, names, limit)
            return {name: _read(archive, member) for name, member in members.items()}
    except InvalidValue:
        raise
    except Exception as error:  # zipfile, zlib and the parser of headers raise many types
        reason = str(error).split("\n")[0][:80]
        raise InvalidValue(f"it is not a whole .npz file ({type(error).__name__}: {reason}).") from None


def _members(archive: zipfile.ZipFile, names: Collection[str], limit: int) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of the wanted arrays, whose claimed sizes fit the file and the limit."""
    entries = archive.infolist()
    if len(entries) > MOST_MEMBERS:
        raise InvalidValue(f"it has {len(entries)} arrays, and {MOST_MEMBERS} are read at most.")
    found = {entry.filename.removesuffix(".npy"): entry for entry in entries}
    if len(found) < len(entries):
        raise InvalidValue("two of its arrays have the same name.")
    wanted = {name: found[name] for name in names if name in found}
    for name, entry in wanted.items():
        squeezed = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: MOST_SQUEEZED}.get(entry.compress_type)
        if squeezed is None:
            raise InvalidValue(f"its array {name!r} is neither stored nor deflated.")
        if entry.file_size > squeezed * entry.compress_size:
            raise InvalidValue(
                f"its array {name!r} claims {entry.file_size:,} bytes, and the file has {entry.compress_size:,} for it."
            )
    if (total := sum(entry.file_size for entry in wanted.values())) > limit:
        raise TooLarge(f"its arrays take {total:,} bytes, and the limit is {limit:,}.")
    return wanted


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as member:
        version = npy.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise InvalidValue(f"{entry.filename} has version {version} of the format of arrays, which is not read.")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, kind = read_header(member, max_header_size=LONGEST_HEADER)
        if kind.kind not in KINDS or kind.fields is not None:
            raise InvalidValue(f"{entry.filename} holds {kind}, and plain numbers are needed.")
        size = math.prod(shape) * kind.itemsize
        if min(shape, default=0) < 0 or size != entry.file_size - member.tell():
            found = entry.file_size - member.tell()
            raise InvalidValue(f"{entry.filename} claims the shape {shape} of {kind}, and has {found:,} bytes.")
        content = bytearray(size)
        filled = 0
        while chunk := member.read(min(CHUNK, size - filled)):
            content[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        if filled < size or member.read(1):  # the checksum is compared at the end
            raise InvalidValue(f"{entry.filename} is not whole.")
    return np.frombuffer(content, dtype=kind).reshape(shape, order="F" if by_columns else "C")
