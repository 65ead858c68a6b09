"""The method "pruned" on tensors: by the native kernels where they are there, else by the reference."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .elements import KINDS, rounded, smallest_magnitude, tensor_of, words_of
from .header import PRUNED, RAW, Bytes, Header, in_order, seal
from .reference import Coding, decode_blocks, encode_blocks


def encode_pruned(x: Tensor, alpha: int | None, cut: int, entropy: bool, method: str) -> Tensor:
    """The packet of a CPU tensor; "raw" where that is smaller and the method is "auto"."""
    kind = KINDS[x.dtype]
    words = words_of(in_order(x))
    if alpha is None:
        alpha = smallest_magnitude(words, kind)
    words = rounded(words, kind, alpha, cut)
    body = encode_blocks(words, Coding(kind, alpha, cut), entropy)
    header = Header.of(PRUNED, x, alpha, cut)
    if method == "auto" and body.size > words.size * x.element_size():
        header, body = Header.of(RAW, x), bytes_of(tensor_of(words, x.dtype))
    return with_header(header, body)


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
    """Write the elements of a packet into a CPU vector."""
    coding = Coding(KINDS[header.dtype], header.alpha, header.parameter)
    out.copy_(tensor_of(decode_blocks(body, header.count, coding), header.dtype))
