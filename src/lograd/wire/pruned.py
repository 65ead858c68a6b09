"""The method "pruned" in NumPy: the definition of its bytes, which the native kernels equal byte for byte.

A tensor is blocks of 4096 elements.  Most elements of a block are +0.0.  The others are told by their positions, as
gaps in a Rice code, and each has a sign.  Many share the magnitude alpha, which a bit says; of the rest, the distance
to alpha is stored, in as many bits as the block needs.  docs/packet-format.md describes the bytes.

Elements are whole numbers here, and a magnitude is the bits of an element without its sign: as whole numbers,
magnitudes are ordered as the numbers are.  Decoding believes the bytes, of which the checksum was right; the kernels,
which write to memory, check them.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .header import BLOCK, Bytes

Whole = NDArray[np.int64]

# -- elements --

Values = Literal["exact", "bfloat16", "float8"]
VALUES = ("exact", "bfloat16", "float8")
_MANTISSA = {"bfloat16": 7, "float8": 2}
"""Mantissa bits of a kept value; its exponent keeps its range, as it is stored relative to alpha."""


class Kind(NamedTuple):
    """The bits of an element type."""

    bits: int
    mantissa: int

    @property
    def infinity(self) -> int:
        """The magnitude of infinity; larger ones are NaN."""
        return (1 << (self.bits - 1)) - (1 << self.mantissa)


KINDS = {torch.float32: Kind(32, 23), torch.bfloat16: Kind(16, 7), torch.float16: Kind(16, 10)}
"""The types that the method "pruned" takes."""
_WORDS = {32: (torch.int32, np.uint32), 16: (torch.int16, np.uint16)}


def cut_of(values: str, dtype: torch.dtype) -> int:
    """Return how many mantissa bits are cut from kept values of a type."""
    return 0 if values == "exact" else max(0, KINDS[dtype].mantissa - _MANTISSA[values])


def words_of(x: Tensor) -> Whole:
    """Return the elements of a CPU vector as whole numbers from 0 on."""
    signed, unsigned = _WORDS[KINDS[x.dtype].bits]
    return x.view(signed).numpy().view(unsigned).astype(np.int64)


def tensor_of(words: Whole, dtype: torch.dtype) -> Tensor:
    """Return the CPU vector of which these are the `words_of`."""
    signed, unsigned = _WORDS[KINDS[dtype].bits]
    return torch.from_numpy(words.astype(unsigned).view(unsigned.__name__.removeprefix("u"))).view(signed).view(dtype)


def smallest_magnitude(words: Whole, kind: Kind) -> int:
    """Return the smallest magnitude that is not zero; 0 if there is none."""
    magnitudes = words & ((1 << (kind.bits - 1)) - 1)
    return int(magnitudes[magnitudes > 0].min(initial=1 << kind.bits)) % (1 << kind.bits)


def rounded_words(words: Whole, kind: Kind, alpha: int, cut: int) -> Whole:
    """Return elements with `cut` mantissa bits less, to nearest with ties to even.

    Zeros and those of magnitude alpha stay; finite values stay finite, and NaN stays NaN.
    """
    if not cut:
        return words
    sign_bit = 1 << (kind.bits - 1)
    magnitude = words & (sign_bit - 1)
    near = (magnitude + (1 << (cut - 1)) - 1 + ((magnitude >> cut) & 1)) >> cut << cut
    near = np.minimum(near, kind.infinity - (1 << cut))
    nan = (magnitude | (1 << (kind.mantissa - 1))) >> cut << cut
    near = np.where(magnitude > kind.infinity, nan, np.where(magnitude == kind.infinity, magnitude, near))
    return (words & sign_bit) | np.where(magnitude == alpha, magnitude, near)


# -- strings of bits in bytes, the lowest bit of a byte first --


def bytes_for(bits: int) -> int:
    """Return the bytes that hold so many bits."""
    return (bits + 7) // 8


def pack(numbers: Whole, width: int) -> Bytes:
    """Return the lowest `width` bits of each number, one after the other.

    >>> pack(np.array([1, 2, 3]), 4)
    array([33,  3], dtype=uint8)
    """
    bits = (numbers[:, None] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little")


def unpack(data: Bytes, width: int, count: int) -> Whole:
    """Return the numbers that `pack` was given; the data must have all bytes."""
    if not width or not count:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(data[: bytes_for(width * count)], count=width * count, bitorder="little")
    found: Whole = bits.reshape(count, width).astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
    return found


def pack_unary(numbers: Whole) -> Bytes:
    """Return each number as that many zeros and a one.

    >>> pack_unary(np.array([0, 2, 1]))
    array([41], dtype=uint8)
    """
    ends = np.cumsum(numbers + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return np.packbits(bits, bitorder="little")


def unpack_unary(data: Bytes, count: int) -> tuple[Whole, int]:
    """Return the first `count` numbers of a string in unary, and the bytes that they take."""
    ends = np.flatnonzero(np.unpackbits(data, bitorder="little"))[:count]
    return np.diff(ends, prepend=-1) - 1, bytes_for(int(ends[-1]) + 1 if count else 0)


# -- blocks --

NO_FLAGS, FLAGS, ALL_ALPHA, AS_THEY_ARE = range(4)
"""How a block tells its values: each by its distance; a flag for each says whether it is alpha; all are; no code."""
HEAD = struct.Struct("<HBB")
"""The first bytes of a block: how many elements are not +0.0; l, mode and tail in one byte; the width of values."""
TAIL = 1 << 6
CANDIDATES = 8
"""How many smaller widths an encoder tries for distances with a tail."""
RICE = tuple(int(BLOCK * (1 - 0.6180339887498949 ** (1 / 2**j))) for j in range(11))
"""l of a Rice code grows by one at each of these numbers of elements, of 4096: those that suit geometric gaps."""


class PacketCoding(NamedTuple):
    """Numbers that all blocks of a packet share."""

    kind: Kind
    alpha: int
    cut: int

    @property
    def distance_bits(self) -> int:
        """Bits of a distance to alpha, which is taken modulo 2 to that power."""
        return self.kind.bits - 1 - self.cut


def rice_parameter(kept: int, count: int) -> int:
    """Return the bits of a gap that are stored as they are, for so many of `count` elements.

    >>> [rice_parameter(share * 4096 // 100, 4096) for share in (100, 30, 20, 10, 5)]
    [0, 1, 2, 3, 4]
    """
    return sum(kept * BLOCK <= most * count for most in RICE)


def encode_block(words: Whole, coding: PacketCoding, entropy: bool) -> bytes:
    """Return the bytes of a block; none if all elements are +0.0."""
    sign_bit, count = 1 << (coding.kind.bits - 1), len(words)
    positions = np.flatnonzero(words)
    n = len(positions)
    if not n:
        return b""
    l = rice_parameter(n, count)  # noqa: E741  # the letter of docs/packet-format.md
    gaps = np.diff(positions, prepend=-1) - 1
    kept = words[positions]
    is_alpha = (kept & (sign_bit - 1)) == coding.alpha
    distances = (((kept & (sign_bit - 1)) >> coding.cut) - (coding.alpha >> coding.cut)) % (1 << coding.distance_bits)
    mode, distances = _mode(distances, is_alpha, coding.cut)
    width, tail = _width(distances, entropy)
    parts = [pack(gaps, l), pack(kept >> (coding.kind.bits - 1), 1)]
    if mode == FLAGS:
        parts.append(pack((~is_alpha).astype(np.int64), 1))
    parts.append(pack(distances, width))
    if tail:
        parts.append(pack_unary(distances >> width))
    parts.append(pack_unary(gaps >> l))
    block = HEAD.pack(n, l | mode << 4 | (TAIL if tail else 0), width) + b"".join(part.tobytes() for part in parts)
    plain = words.astype(f"<u{coding.kind.bits // 8}").tobytes()
    return block if len(block) < HEAD.size + len(plain) else HEAD.pack(0, AS_THEY_ARE << 4, 0) + plain


def _mode(distances: Whole, is_alpha: NDArray[np.bool_], cut: int) -> tuple[int, Whole]:
    """Return how values are told, and the distances that are stored."""
    n, alphas = len(distances), int(is_alpha.sum())
    if alphas == n:
        return ALL_ALPHA, distances[:0]
    width = int(distances.max()).bit_length()
    # A flag costs a bit of each element, and saves the distance of those that have none.
    if not alphas or (not cut and alphas * width <= n):
        return NO_FLAGS, distances
    return FLAGS, distances[~is_alpha]


def _width(distances: Whole, entropy: bool) -> tuple[int, bool]:
    """Return the width of distances, and whether what is beyond it follows in unary."""
    n, full = len(distances), int(distances.max(initial=0)).bit_length()
    best, least = full, n * full
    for width in range(full - 1, max(full - 1 - CANDIDATES, -1), -1) if entropy else ():
        cost = n * (width + 1) + int((distances >> width).sum())
        if cost < least:
            best, least = width, cost
    return best, best < full


def decode_block(data: Bytes, count: int, coding: PacketCoding) -> Whole:
    """Return the elements of a block."""
    words = np.zeros(count, np.int64)
    if not data.size:
        return words
    n, byte, width = HEAD.unpack(data[: HEAD.size].tobytes())
    l, mode, tail, rest = byte & 15, byte >> 4 & 3, bool(byte & TAIL), data[HEAD.size :]  # noqa: E741
    if mode == AS_THEY_ARE:
        return np.frombuffer(rest.tobytes(), f"<u{coding.kind.bits // 8}").astype(np.int64)
    low, rest = _take(rest, l, n)
    signs, rest = _take(rest, 1, n)
    flags, rest = _take(rest, 1, n) if mode == FLAGS else (np.full(n, mode == NO_FLAGS, np.int64), rest)
    stored = int(flags.sum())
    distances, rest = _take(rest, width, stored)
    if tail:
        high, used = unpack_unary(rest, stored)
        distances, rest = distances | high << width, rest[used:]
    gaps, _ = unpack_unary(rest, n)
    positions = np.cumsum((gaps << l | low) + 1) - 1
    magnitudes = np.full(n, coding.alpha, np.int64)
    wrap = (1 << coding.distance_bits) - 1
    magnitudes[flags > 0] = ((distances + (coding.alpha >> coding.cut)) & wrap) << coding.cut
    words[positions] = magnitudes | signs << (coding.kind.bits - 1)
    return words


def _take(data: Bytes, width: int, count: int) -> tuple[Whole, Bytes]:
    """Return numbers from the front of some bytes, and the bytes behind them."""
    used = bytes_for(width * count)
    return unpack(data, width, count), data[used:]


def encode_blocks(words: Whole, coding: PacketCoding, entropy: bool) -> Bytes:
    """Return the table of lengths and the blocks of a tensor."""
    blocks = [encode_block(words[at : at + BLOCK], coding, entropy) for at in range(0, len(words), BLOCK)]
    table = np.array([len(block) for block in blocks], "<u2")
    return np.frombuffer(table.tobytes() + b"".join(blocks), np.uint8)


def decode_blocks(data: Bytes, count: int, coding: PacketCoding) -> Whole:
    """Return the elements of a tensor from the table of lengths and the blocks."""
    number = (count + BLOCK - 1) // BLOCK
    lengths = np.frombuffer(data[: 2 * number].tobytes(), "<u2").astype(np.int64)
    ends = 2 * number + np.cumsum(lengths)
    words = np.zeros(count, np.int64)
    for index, end in enumerate(ends):
        part = slice(index * BLOCK, min((index + 1) * BLOCK, count))
        words[part] = decode_block(data[end - lengths[index] : end], part.stop - part.start, coding)
    return words
