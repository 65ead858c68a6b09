"""Packets: from a tensor or a coded tensor to bytes, and back to the same bits.

Pruned tensors go through the native kernels if they are there, else through the definition in `pruned`; coded tensors
go through `codes`; everything else is stored as it is.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from .. import native
from ..errors import InvalidType, InvalidValue, PacketError, sentence
from ..files import check_flag, check_one_of
from ..ops.arguments import Counted, Scalar, check_floats, in_type_of, key_of, scalar, tensor_words
from ..ops.coded import CodedTensor
from ..ops.contracts import COUNTS, FLOAT_TYPES, type_name
from ..ops.elementwise import stochastic_prune
from ..ops.layouts import dense
from .codes import decode_codes, encode_codes
from .header import (
    BLOCK,
    CODES,
    DTYPES,
    FIXED,
    MOST_DIMENSIONS,
    PRUNED,
    RAW,
    Bytes,
    Header,
    in_order,
    packet_of,
    read_header,
    seal,
)  # fmt: skip
from .pruned import (
    KINDS,
    VALUES,
    PacketCoding,
    Values,
    cut_of,
    decode_blocks,
    encode_blocks,
    rounded_words,
    smallest_magnitude,
    tensor_of,
    words_of,
)  # fmt: skip

DEFAULT_LIMIT = 2**32
"""The most bytes of a decoded tensor unless `limit` says otherwise: 4 GiB."""
BLOCK_OVERHEAD = 6
"""Bytes of a block beside those of its elements: two of the table, four of its head."""
MOST_KEPT = 2**28
"""The most bytes that a thread keeps from packet to packet; more is given back after each."""

# -- encoding --


def encode(
    x: Tensor | CodedTensor,
    *,
    values: Values = "exact",
    entropy: bool = False,
    alpha: Scalar | None = None,
) -> Tensor:
    """Return the packet of a tensor or of a coded tensor: bytes that say what they hold, as a uint8 vector.

    `decode` gives the same bits again, NaN, infinities, signs of zero and subnormal numbers included, unless `values`
    asks for rounding.  Elements that are +0.0 cost next to nothing, and those of magnitude `alpha`, as stochastic
    pruning makes many of them, a few bits.  The bytes do not depend on the number of threads.

    Args:
        x: float32, bfloat16, float16 or float64, of any layout and on any device; or a `CodedTensor`, whose codes are
            packed to as many bits as the largest one has.
        values: "exact"; or "bfloat16" or "float8" to round values that are neither zero nor of magnitude alpha to 7 or
            2 mantissa bits, to nearest.  Their exponents keep the range of x.
        entropy: store exponents in a code of variable length: some 3 % smaller, and slower.
        alpha: the magnitude that many elements share, such as the threshold of pruning; the smallest that is not zero
            if it is not given.  The packet of any x is right for any alpha, and small for a fitting one.

    >>> from lograd.wire import decode
    >>> x = torch.zeros(4096).index_fill_(0, torch.tensor([7, 99]), -0.5)
    >>> packet = encode(x)
    >>> packet.numel(), torch.equal(decode(packet), x)
    (48, True)
    """
    check_one_of("values", values, VALUES)
    check_flag("entropy", entropy)
    if isinstance(x, CodedTensor):
        if (values, entropy, alpha) != ("exact", False, None):
            raise InvalidValue("a coded tensor is packed as it is: values, entropy and alpha go with tensors.")
        return encode_codes(x).to(x.codes.device)
    _check_tensor(x)
    x, device = x.detach().cpu().resolve_neg(), x.device
    if x.dtype == torch.float64:
        if values != "exact":
            raise InvalidValue(f"float64 is stored as it is, without values={values!r}.")
        return encode_raw(x).to(device)
    given = None if alpha is None else _alpha_bits(scalar("alpha", alpha, x, 0.0), x.dtype)
    packet, _ = encode_pruned(x, given, cut_of(values, x.dtype), entropy)
    return packet.to(device)


def prune_and_encode(
    x: Tensor,
    threshold: Scalar,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    values: Values = "exact",
    entropy: bool = False,
    counted: bool = False,
) -> Any:
    """Return the packet of a tensor after stochastic pruning, in one pass over its memory on a CPU.

    The bytes are those of `encode(ops.stochastic_prune(x, threshold, seed, offset), alpha=threshold)`.

    Args:
        x: float32, bfloat16 or float16, of any layout.
        threshold: smaller magnitudes become 0 or the threshold, with the probability that keeps their mean.
        seed, offset: name the random numbers, as in `ops.stochastic_prune`.
        values, entropy: as in `encode`.
        counted: also give the counts of `ops.stochastic_prune`: zeros and NaN of the pruned tensor, 0, zeros of x.
    """
    check_floats(x)
    check_one_of("values", values, VALUES)
    check_flag("entropy", entropy)
    check_flag("counted", counted)
    _check_tensor(x)
    a, key = in_type_of(x, scalar("threshold", threshold, x, 0.0)).cpu(), key_of(seed, offset, x).cpu()
    cut, device = cut_of(values, x.dtype), x.device
    x = x.detach().cpu().resolve_neg()
    packet, counts = encode_pruned(dense(x), _alpha_bits(a, x.dtype), cut, entropy, Pruning(a, key, counted))
    packet = packet.to(device)
    return packet if counts is None else Counted(packet, counts.to(device))


def largest(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
    """Return the most bytes of a packet of any tensor of a shape and an element type, whatever `encode` is asked for.

    >>> largest((16, 4096)), largest((3,), torch.float16)
    (262286, 49)
    """
    count = math.prod(shape)
    blocks = (count + BLOCK - 1) // BLOCK
    return FIXED.size + 9 * len(shape) + BLOCK_OVERHEAD * blocks + count * dtype.itemsize


def _check_tensor(x: Any) -> None:
    if not isinstance(x, Tensor):
        raise InvalidType(sentence("x", f"an object of type {type(x).__name__}", "a tensor or a coded tensor"))
    if x.dtype not in DTYPES[:4] or x.layout != torch.strided:
        names = ", ".join(map(type_name, KINDS))
        raise InvalidType(f"x must be a dense tensor of {names} or float64; got {type_name(x.dtype)}, {x.layout}.")
    if x.dim() > MOST_DIMENSIONS:
        raise InvalidValue(sentence("x", tuple(x.shape), f"a tensor of at most {MOST_DIMENSIONS} dimensions"))


def _alpha_bits(alpha: Tensor, dtype: torch.dtype) -> int:
    """Return the bits of a magnitude in an element type; 0 if it is not finite."""
    if not math.isfinite(float(alpha)):
        return 0
    return int(words_of(in_type_of(torch.empty(0, dtype=dtype), alpha.cpu()).abs().to(dtype).reshape(1))[0])


# -- decoding --


def decode(packet: Tensor, *, limit: int = DEFAULT_LIMIT) -> Any:
    """Return the tensor of a packet, or the `CodedTensor` if it holds one.

    The result has the bits, the shape, the element type and the order of dimensions in memory of what was encoded, and
    lies on the device of the packet.  A packet that was cut or changed raises `PacketError`.

    Args:
        packet: a uint8 vector that `encode` made, here or elsewhere.
        limit: the most bytes that the tensor may have; nothing larger is allocated.

    >>> from lograd.wire import encode
    >>> decode(encode(torch.tensor([0.0, -0.0, torch.inf])))
    tensor([0., -0., inf])
    """
    if type(limit) is not int or limit < 0:
        raise InvalidType(sentence("limit", limit, "a whole number of bytes from 0 on"))
    if not isinstance(packet, Tensor):
        raise InvalidType(sentence("packet", f"an object of type {type(packet).__name__}", "a uint8 tensor"))
    if packet.dtype != torch.uint8 or packet.dim() != 1:
        raise InvalidType(f"packet must be a vector of uint8; got {tensor_words(packet)}.")
    data = np.ascontiguousarray(packet.detach().cpu().numpy())
    header = read_header(data, limit)
    if header.method == CODES:
        coded = decode_codes(data, header, limit)
        return _pytree.tree_map_only(Tensor, lambda part: part.to(packet.device), coded)
    _check_body(header, data.size - header.size)
    result, body = header.empty(), data[header.size :]
    if header.method == RAW:
        _bytes_of(in_order(result))[:] = body
    else:
        decode_pruned(body, header, in_order(result))
    return result.to(packet.device)


def _check_body(header: Header, size: int) -> None:
    """Refuse numbers in a header that no encoder writes there, before anything is allocated."""
    if header.method == RAW:
        if header.dtype == torch.uint8 or size != header.count * header.dtype.itemsize:
            raise PacketError("the elements of a packet do not fill it.")
    elif header.dtype not in KINDS:
        raise PacketError(f"no packet holds pruned elements of {type_name(header.dtype)}.")
    else:
        kind = KINDS[header.dtype]
        if header.parameter > kind.mantissa or header.alpha >> (kind.bits - 1):
            raise PacketError("the header of a packet holds an alpha or a number of cut bits that its type has not.")


# -- the methods "raw" and "pruned": by the native kernels, or by the definition --


class Pruning(NamedTuple):
    """Stochastic pruning on the way into a packet."""

    threshold: Tensor
    key: Tensor
    counted: bool


class _Room(threading.local):
    """Memory of each thread where packets are written before their size is known.

    Only what was written to costs memory, and that is what the largest packet took; a fresh page costs more time than
    the bytes that are written into it.
    """

    memory: Tensor | None = None

    def at_least(self, size: int) -> Tensor:
        """Return at least so many bytes."""
        memory = self.memory
        if memory is None or memory.numel() < size:
            memory = torch.empty(size, dtype=torch.uint8)
            if size <= MOST_KEPT:
                self.memory = memory
        return memory


_room = _Room()


def encode_pruned(
    x: Tensor, alpha: int | None, cut: int, entropy: bool, pruning: Pruning | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the packet of a CPU tensor, with elements as they are if that is smaller, and the counts of pruning."""
    if native.kernel("encode_packet") is None:
        return encode_by_definition(x, alpha, cut, entropy, pruning)
    kernel, address, vector, threads = native.kernel, native.address, in_order(x), torch.get_num_threads()
    n, type_number = x.numel(), FLOAT_TYPES[x.dtype]
    where = address("x", vector, x.dtype, n)
    if alpha is None:
        alpha = int(kernel("smallest_magnitude")(type_number, where, n, threads))
    header = Header.of(PRUNED, x, alpha, cut)
    room = _room.at_least(largest(x.shape, x.dtype))
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
    if size > n * x.element_size():
        x = x if pruning is None else stochastic_prune(x, pruning.threshold, pruning.key)
        return _rounded_raw(x, alpha, cut), counts
    packet = room[: header.size + size].clone()
    seal(packet.numpy(), header)
    return packet, counts


def encode_by_definition(
    x: Tensor, alpha: int | None, cut: int, entropy: bool, pruning: Pruning | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return what `encode_pruned` returns, by the definition."""
    counts = None
    if pruning is not None:
        x, counts = stochastic_prune(x, pruning.threshold, pruning.key, counted=True)
        counts = counts if pruning.counted else None
    kind, words = KINDS[x.dtype], words_of(in_order(x))
    if alpha is None:
        alpha = smallest_magnitude(words, kind)
    body = encode_blocks(rounded_words(words, kind, alpha, cut), PacketCoding(kind, alpha, cut), entropy)
    if body.size > words.size * x.element_size():
        return _rounded_raw(x, alpha, cut), counts
    return packet_of(Header.of(PRUNED, x, alpha, cut), body), counts


def _rounded_raw(x: Tensor, alpha: int, cut: int) -> Tensor:
    """Return the packet of elements as they are, but for mantissa bits that are cut from kept values."""
    if not cut:
        return encode_raw(x)
    words = rounded_words(words_of(in_order(x)), KINDS[x.dtype], alpha, cut)
    return packet_of(Header.of(RAW, x), _bytes_of(tensor_of(words, x.dtype)))


def encode_raw(x: Tensor) -> Tensor:
    """Return the packet of a CPU tensor as it is."""
    return packet_of(Header.of(RAW, x), _bytes_of(in_order(x)))


def _bytes_of(x: Tensor) -> Bytes:
    """Return the memory of a contiguous CPU vector."""
    return x.view(torch.uint8).numpy() if x.numel() else np.empty(0, np.uint8)


def decode_pruned(body: Bytes, header: Header, out: Tensor) -> None:
    """Write the elements of a packet into a CPU vector; if this fails, some of them may have been written."""
    kernel = native.kernel("decode_packet")
    if kernel is None:
        decode_by_definition(body, header, out)
        return
    fault = kernel(
        native.array_address("packet", body), body.size, FLOAT_TYPES[header.dtype], header.alpha, header.parameter,
        native.address("out", out, header.dtype, header.count), header.count, torch.get_num_threads(),
    )  # fmt: skip
    if fault:
        raise PacketError("the blocks of this packet are not what an encoder writes.")


def decode_by_definition(body: Bytes, header: Header, out: Tensor) -> None:
    """Write the elements of a packet into a CPU vector by the definition."""
    coding = PacketCoding(KINDS[header.dtype], header.alpha, header.parameter)
    try:
        words = decode_blocks(body, header.count, coding)
    except (ValueError, IndexError, struct.error):
        raise PacketError("the blocks of this packet are not what an encoder writes.") from None
    out.copy_(tensor_of(words, header.dtype))
