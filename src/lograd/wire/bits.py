"""Strings of bits in bytes, the lowest bit of a byte first: numbers of a fixed width, and numbers in unary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import PacketError
from .header import Bytes

Whole = NDArray[np.int64]


def bytes_for(bits: int) -> int:
    """Bytes that hold so many bits."""
    return (bits + 7) // 8


def pack(numbers: Whole, width: int) -> Bytes:
    """The lowest `width` bits of each number, one after the other.

    >>> pack(np.array([1, 2, 3]), 4)
    array([33,  3], dtype=uint8)
    """
    bits = (numbers[:, None] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little")


def unpack(data: Bytes, width: int, count: int) -> Whole:
    """The inverse of `pack`; the data must have all bytes."""
    if not width or not count:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(data[: bytes_for(width * count)], count=width * count, bitorder="little")
    found: Whole = bits.reshape(count, width).astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
    return found


def pack_unary(numbers: Whole) -> Bytes:
    """Each number as that many zeros and a one.

    >>> pack_unary(np.array([0, 2, 1]))
    array([41], dtype=uint8)
    """
    ends = np.cumsum(numbers + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return np.packbits(bits, bitorder="little")


def unpack_unary(data: Bytes, count: int) -> tuple[Whole, int]:
    """The first `count` numbers of a string in unary, and the bytes that they take."""
    ends = np.flatnonzero(np.unpackbits(data, bitorder="little"))[:count]
    if len(ends) < count:
        raise PacketError("a block ends before its numbers do.")
    return np.diff(ends, prepend=-1) - 1, bytes_for(int(ends[-1]) + 1 if count else 0)
