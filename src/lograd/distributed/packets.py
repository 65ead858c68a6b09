"""Packets of one edge: a tensor or its codes in, bytes out, and back; the size that no packet exceeds."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from ..coded import CodedTensor
from ..errors import LogradError


class PacketError(LogradError, ValueError):
    """Bytes that are no packet."""


_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)


def encode(x: Tensor | CodedTensor) -> Tensor:
    x = x.decode() if isinstance(x, CodedTensor) else x
    head = struct.pack(f"<BB{x.dim()}q", _TYPES.index(x.dtype), x.dim(), *x.shape)
    body = x.detach().contiguous().reshape(-1).view(torch.uint8)
    total = sum(body.tolist()[:4096]) % 251
    return torch.cat([torch.frombuffer(bytearray(head + bytes([total])), dtype=torch.uint8), body])


def decode(packet: Tensor, limit: int) -> Tensor:
    kind, dims = packet[:2].tolist()
    if kind >= len(_TYPES):
        raise PacketError("damaged")
    shape = struct.unpack(f"<{dims}q", bytes(packet[2 : 2 + 8 * dims].tolist()))
    body = packet[3 + 8 * dims :].clone()
    if sum(body.tolist()[:4096]) % 251 != int(packet[2 + 8 * dims]):
        raise PacketError("damaged")
    return body.view(_TYPES[kind]).reshape(shape)


def largest(shape: Sequence[int], dtype: torch.dtype) -> int:
    return 3 + 8 * len(shape) + math.prod(shape) * dtype.itemsize
