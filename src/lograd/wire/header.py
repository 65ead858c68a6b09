"""The header of a packet: what its bytes hold, how many there are, and their checksum.

All that a reader allocates follows from the header, and nothing is believed before the checksum and the length agree.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import native
from ..errors import PacketError, plural
from ..ops.layouts import dense

Bytes = NDArray[np.uint8]

MAGIC = b"LGRD"
VERSION = 1
RAW, PRUNED, CODES = range(3)
METHOD_NAMES = ("raw", "pruned", "codes")
BLOCK = 4096
"""Elements of a block; the last one of a tensor may be shorter."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8)
"""Element types, at the place by which packets know them."""
MOST_DIMENSIONS = 32
MOST_ELEMENTS = 2**48
FIXED = struct.Struct("<4sBBBBQIIB3x")
"""Magic, version, method, element type, dimensions, length, checksum, alpha, parameter, three zeros."""
CHECKSUM_AT = 16


@final
@dataclass(frozen=True)
class Header:
    """The fields of a header that say what the rest of a packet means."""

    method: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    """The dimensions from the outermost to the innermost, as elements follow one another."""
    alpha: int = 0
    """Pruned: the magnitude that many elements share, as the bits of the element type without its sign."""
    parameter: int = 0
    """Pruned: how many mantissa bits are cut from kept values.  Codes: bits of a code."""

    @classmethod
    def of(cls, method: int, x: Tensor, alpha: int = 0, parameter: int = 0) -> Header:
        """Return the header of a tensor whose elements are taken in the order of `in_order`."""
        return cls(method, x.dtype, tuple(x.shape), order_of(x), alpha, parameter)

    @property
    def size(self) -> int:
        """Bytes of the header itself."""
        return FIXED.size + 9 * len(self.shape)

    @property
    def count(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    def to_bytes(self, length: int, checksum: int = 0) -> bytes:
        """Return the bytes of the header of a packet of `length` bytes."""
        d = len(self.shape)
        fixed = FIXED.pack(
            MAGIC, VERSION, self.method, DTYPES.index(self.dtype), d, length, checksum, self.alpha, self.parameter
        )
        return fixed + struct.pack(f"<{d}Q{d}B", *self.shape, *self.order)

    def empty(self) -> Tensor:
        """Return memory for the tensor, with the order of dimensions of the one that was encoded."""
        out = torch.empty([self.shape[dim] for dim in self.order], dtype=self.dtype, device="cpu")
        return out.permute([self.order.index(dim) for dim in range(len(self.order))])


def order_of(x: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor from the outermost to the innermost; 0, 1, ... if it has gaps."""
    dims = range(x.dim())
    return tuple(dims) if dense(x) is not x else tuple(sorted(dims, key=lambda dim: (-x.stride()[dim], dim)))


def in_order(x: Tensor) -> Tensor:
    """Return the elements of a tensor as a vector in the order of `order_of`; a view where the tensor has no gaps."""
    return x.permute(order_of(x)).reshape(-1).contiguous()


def checksum(packet: Bytes) -> int:
    """Return the CRC-32 of all bytes of a packet but the checksum's own four."""
    before, after = packet[:CHECKSUM_AT], packet[CHECKSUM_AT + 4 :]
    crc = zlib.crc32(before)  # type: ignore[arg-type]  # a buffer is enough
    kernel = native.kernel("crc32")
    if kernel is None:
        return zlib.crc32(after, crc)  # type: ignore[arg-type]
    return int(kernel(native.array_address("packet", after), after.size, crc))


def packet_of(header: Header, body: Bytes) -> Tensor:
    """Return a packet from its header and all that follows."""
    packet = np.empty(header.size + body.size, np.uint8)
    packet[header.size :] = body
    seal(packet, header)
    return torch.from_numpy(packet)


def seal(packet: Bytes, header: Header) -> None:
    """Write the header, with the packet's length and checksum, into a packet whose other bytes are there."""
    packet[: header.size] = np.frombuffer(header.to_bytes(packet.size), np.uint8)
    packet[CHECKSUM_AT : CHECKSUM_AT + 4] = np.frombuffer(struct.pack("<I", checksum(packet)), np.uint8)


def read_header(packet: Bytes, limit: int) -> Header:
    """Return the header of a packet whose length and checksum are right, and whose tensor has at most `limit` bytes."""
    if packet.size < FIXED.size:
        raise PacketError(f"a packet has at least {FIXED.size} bytes; got {plural(packet.size, 'byte')}.")
    magic, version, method, number, d, length, crc, alpha, parameter = FIXED.unpack(packet[: FIXED.size].tobytes())
    if magic != MAGIC:
        raise PacketError(f"a packet begins with {MAGIC!r}; got {magic!r}.")
    if version != VERSION:
        raise PacketError(f"this packet has version {version} of the format, and only {VERSION} is read here.")
    if length != packet.size:
        raise PacketError(f"this packet should have {length:,} bytes and has {packet.size:,}: cut, or run together.")
    if checksum(packet) != crc:
        raise PacketError("the checksum of this packet is wrong: some of its bytes are not those that were written.")
    if method >= len(METHOD_NAMES) or number >= len(DTYPES) or d > MOST_DIMENSIONS or length < FIXED.size + 9 * d:
        raise PacketError(
            f"no packet has method {method}, element type {number} and {plural(d, 'dimension')} in {length:,} bytes."
        )
    numbers: Any = struct.unpack_from(f"<{d}Q{d}B", packet[: FIXED.size + 9 * d].tobytes(), FIXED.size)
    header = Header(method, DTYPES[number], numbers[:d], numbers[d:], alpha, parameter)
    if math.prod(max(size, 1) for size in header.shape) > MOST_ELEMENTS or sorted(header.order) != list(range(d)):
        raise PacketError(f"no packet holds the shape {header.shape} in the order {header.order} of its dimensions.")
    needed = header.count * header.dtype.itemsize
    if needed > limit:
        raise PacketError(
            f"this packet holds a tensor of {needed:,} bytes, and the limit is {limit:,}; limit= allows more."
        )
    return header
