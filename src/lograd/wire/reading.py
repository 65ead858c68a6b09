"""`decode`: from a packet to its tensor, or an error that says what is wrong with the packet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, PacketError, sentence
from ..ops.arguments import describe
from ..ops.coded import CodedTensor
from ..ops.contracts import type_name
from .codes import decode_codes
from .elements import KINDS
from .header import CODES, RAW, Bytes, Header, in_order, read_header
from .pruned import bytes_of, decode_pruned

DEFAULT_LIMIT = 2**32
"""The most bytes of a decoded tensor unless `limit` says otherwise: 4 GiB."""


def decode(packet: Tensor, *, limit: int = DEFAULT_LIMIT, out: Tensor | None = None) -> Any:
    """Return the tensor of a packet, or the `CodedTensor` if it holds one.

    The result has the bits, the shape, the element type and the order of dimensions in memory of what was encoded, and
    lies on the device of the packet.  A packet that was cut or changed raises `PacketError`.

    Args:
        packet: a uint8 vector that `encode` made, here or elsewhere.
        limit: the most bytes that the tensor may have; nothing larger is allocated.
        out: a tensor of the same shape and element type that takes the elements, which saves fresh memory.

    >>> from lograd.wire import encode
    >>> decode(encode(torch.tensor([0.0, -0.0, torch.inf])))
    tensor([0., -0., inf])
    """
    if type(limit) is not int or limit < 0:
        raise InvalidType(sentence("limit", limit, "a whole number of bytes from 0 on"))
    data = _bytes_of(packet)
    header = read_header(data, limit)
    if header.method == CODES:
        if out is not None:
            raise InvalidValue("this packet holds a coded tensor, which does not go into out=.")
        coded = decode_codes(data, header, limit)
        return coded if packet.is_cpu else _moved(coded, packet.device)
    _check_body(data, header)
    if out is not None:
        _check_out(out, header)
    fits = out is not None and out.is_cpu and out.is_contiguous() and not out.is_neg() and _in_order(header)
    result = out.detach() if out is not None and fits else header.empty()
    body = data[header.size :]
    if header.method == RAW:
        bytes_of(in_order(result))[:] = body
    else:
        decode_pruned(body, header, in_order(result))
    if out is None:
        return result.to(packet.device)
    if not fits:
        out.detach().copy_(result)
    else:
        torch.autograd.graph.increment_version(out)
    return out


def _bytes_of(packet: Any) -> Bytes:
    if not isinstance(packet, Tensor):
        raise InvalidType(sentence("packet", f"an object of type {type(packet).__name__}", "a uint8 tensor"))
    if packet.dtype != torch.uint8 or packet.dim() != 1:
        raise InvalidType(f"packet must be a vector of uint8; got {describe(packet)}.")
    return np.ascontiguousarray(packet.detach().cpu().numpy())


def _check_body(data: Bytes, header: Header) -> None:
    """Refuse numbers in a header that no encoder writes there, before anything is allocated."""
    body = data.size - header.size
    if header.method == RAW:
        if header.dtype == torch.uint8 or body != header.count * header.dtype.itemsize:
            raise PacketError("the elements of a packet do not fill it.")
    elif header.dtype not in KINDS:
        raise PacketError(f"no packet holds pruned elements of {type_name(header.dtype)}.")
    else:
        kind = KINDS[header.dtype]
        if header.parameter > kind.mantissa or header.alpha >> (kind.bits - 1):
            raise PacketError("the header of a packet holds an alpha or a number of cut bits that its type has not.")
        if body < 2 * ((header.count + 4095) // 4096):
            raise PacketError("a packet ends before its table of blocks does.")


def _in_order(header: Header) -> bool:
    return header.order == tuple(range(len(header.order)))


def _check_out(out: Any, header: Header) -> None:
    if not isinstance(out, Tensor):
        raise InvalidType(sentence("out", f"an object of type {type(out).__name__}", "a tensor"))
    if out.dtype != header.dtype or tuple(out.shape) != header.shape:
        raise InvalidValue(
            f"out must be {type_name(header.dtype)} of shape {header.shape}, as the packet; got {describe(out)}."
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise InvalidValue("out requires a gradient, and decoding records none; use torch.no_grad().")


def _moved(coded: CodedTensor, device: torch.device) -> CodedTensor:
    from torch.utils import _pytree

    moved: CodedTensor = _pytree.tree_map_only(Tensor, lambda part: part.to(device), coded)
    return moved
