"""The method "pruned" on tensors: by the native kernels where they are there, else by the reference."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..errors import PacketError
from ..ops.contracts import COUNTS, FLOAT_TYPES
from ..ops.elementwise import stochastic_prune
from .elements import KINDS, rounded, smallest_magnitude, tensor_of, words_of
from .header import PRUNED, RAW, Bytes, Header, in_order, seal
from .reference import Coding, decode_blocks, encode_blocks
from .sizes import most_bytes

FAULTS = (
    "",
    "a packet ends before its table of blocks does.",
    "the blocks of a packet do not fill it.",
    "a block is shorter than its head.",
    "the head of a block holds numbers that no block has.",
    "a block ends before its numbers do.",
    "the positions of a block go beyond its end.",
    "a distance of a block has more bits than its type.",
    "a block that is not compressed has another length than its elements.",
)
"""Sentences on packets that a native kernel refuses, by the number that it returns."""

MOST_KEPT = 2**28
"""The most bytes that a thread keeps from packet to packet; more is given back after each."""


class Pruning(NamedTuple):
    """Stochastic pruning on the way into a packet."""

    threshold: Tensor
    key: Tensor
    counted: bool


class _Kept(threading.local):
    """Memory of each thread where packets are written before their size is known.

    Only what was written to costs memory, and that is what the largest packet took; a fresh page costs more time than
    the bytes that are written into it.
    """

    memory: Tensor | None = None

    def room(self, size: int) -> Tensor:
        """At least so many bytes."""
        memory = self.memory
        if memory is None or memory.numel() < size:
            memory = torch.empty(size, dtype=torch.uint8)
            if size <= MOST_KEPT:
                self.memory = memory
        return memory


_kept = _Kept()


def encode_pruned(
    x: Tensor, alpha: int | None, cut: int, entropy: bool, smaller: bool, pruning: Pruning | None = None
) -> tuple[Tensor, Tensor | None]:
    """The packet of a CPU tensor, and the counts of pruning; "raw" where that is `smaller` and this is asked for."""
    if native.kernel("encode_packet") is None:
        return encode_by_reference(x, alpha, cut, entropy, smaller, pruning)
    kernel, address, vector, threads = native.kernel, native.address, in_order(x), torch.get_num_threads()
    n, type_number = x.numel(), FLOAT_TYPES[x.dtype]
    where = address("x", vector, x.dtype, n)
    if alpha is None:
        alpha = int(kernel("smallest_magnitude")(type_number, where, n, threads))
    header = Header.of(PRUNED, x, alpha, cut)
    room = _kept.room(most_bytes(x.shape, x.dtype))
    body = address("packet", room, torch.uint8, room.numel()) + header.size
    counts = None
    if pruning is None:
        size = kernel("encode_packet")(type_number, where, n, alpha, cut, entropy, body, threads)
    else:
        counts = torch.zeros(COUNTS + 1, dtype=torch.int64) if pruning.counted else None
        size = kernel("prune_packet")(
            type_number, where, n, address("threshold", pruning.threshold, torch.float32, 1),
            address("key", pruning.key, torch.int64, 2), alpha, cut, entropy, body, threads,
            0 if counts is None else address("counts", counts, torch.int64, COUNTS + 1),
        )  # fmt: skip
    if smaller and size > n * x.element_size():
        x = x if pruning is None else stochastic_prune(x, pruning.threshold, pruning.key)
        return _rounded_raw(x, alpha, cut), counts
    packet = room[: header.size + size].clone()
    seal(packet.numpy(), header)
    return packet, counts


def encode_by_reference(
    x: Tensor, alpha: int | None, cut: int, entropy: bool, smaller: bool, pruning: Pruning | None = None
) -> tuple[Tensor, Tensor | None]:
    """The packet of a CPU tensor by the definition; arguments and result as those of `encode_pruned`."""
    counts = None
    if pruning is not None:
        x, counts = stochastic_prune(x, pruning.threshold, pruning.key, counted=True)
        counts = counts if pruning.counted else None
    kind, words = KINDS[x.dtype], words_of(in_order(x))
    if alpha is None:
        alpha = smallest_magnitude(words, kind)
    body = encode_blocks(rounded(words, kind, alpha, cut), Coding(kind, alpha, cut), entropy)
    if smaller and body.size > words.size * x.element_size():
        return _rounded_raw(x, alpha, cut), counts
    return with_header(Header.of(PRUNED, x, alpha, cut), body), counts


def _rounded_raw(x: Tensor, alpha: int, cut: int) -> Tensor:
    """The packet of elements as they are, but for mantissa bits that are cut from kept values."""
    if not cut:
        return encode_raw(x)
    words = rounded(words_of(in_order(x)), KINDS[x.dtype], alpha, cut)
    return with_header(Header.of(RAW, x), bytes_of(tensor_of(words, x.dtype)))


def encode_raw(x: Tensor) -> Tensor:
    """The packet of a CPU tensor as it is."""
    return with_header(Header.of(RAW, x), bytes_of(in_order(x)))


def bytes_of(x: Tensor) -> Bytes:
    """The memory of a contiguous CPU vector."""
    return x.view(torch.uint8).numpy() if x.numel() else np.empty(0, np.uint8)


def with_header(header: Header, body: Bytes) -> Tensor:
    """A packet from its header and all that follows."""
    packet = np.empty(header.size + body.size, np.uint8)
    packet[header.size :] = body
    seal(packet, header)
    return torch.from_numpy(packet)


def decode_pruned(body: Bytes, header: Header, out: Tensor) -> None:
    """Write the elements of a packet into a CPU vector; where this fails, some of them may have been written."""
    kernel = native.kernel("decode_packet")
    if kernel is None:
        decode_by_reference(body, header, out)
        return
    fault = kernel(
        native.array_address("packet", body), body.size, FLOAT_TYPES[header.dtype], header.alpha, header.parameter,
        native.address("out", out, header.dtype, header.count), header.count, torch.get_num_threads(),
    )  # fmt: skip
    if fault:
        raise PacketError(FAULTS[fault])


def decode_by_reference(body: Bytes, header: Header, out: Tensor) -> None:
    """Write the elements of a packet into a CPU vector by the definition."""
    coding = Coding(KINDS[header.dtype], header.alpha, header.parameter)
    out.copy_(tensor_of(decode_blocks(body, header.count, coding), header.dtype))
