"""The method "codes": packed codes of a coded tensor, its scales, and how they fit together as a line of JSON."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..errors import PacketError
from ..ops.coded import CodedTensor, Folded, Householder, Layout, Rotated, Table, ThreeQuarters, Transform
from ..ops.contracts import type_name
from .header import CODES, DTYPES, Bytes, Header, in_order, order_of, packet_of
from .pruned import bytes_for, pack, unpack

_DTYPES = {type_name(one): one for one in (*DTYPES, torch.int64)}
_PARTS = ("scale", "zero", "low", "block_scales")
_TRANSFORMS: dict[str, tuple[type[Any], tuple[str, ...], tuple[str, ...]]] = {
    "folded": (Folded, ("factors",), ("dim",)),
    "householder": (Householder, ("groups", "stretch"), ()),
    "hadamard": (Rotated, ("key",), ("block",)),
    "three_quarters": (ThreeQuarters, (), ()),
    "table": (Table, ("values",), ()),
}
"""The class of each kind of transform, its fields that are tensors, and those that are whole numbers."""
_LENGTH = struct.Struct("<I")


def encode_codes(coded: CodedTensor) -> Tensor:
    """Return the packet of a coded tensor."""
    description, arrays = described(coded)
    codes = in_order(coded.codes.detach().cpu()).numpy()
    bits = max(1, int(codes.max(initial=0)).bit_length())
    body = b"".join((_LENGTH.pack(len(description)), description, *arrays))
    return packet_of(
        Header.of(CODES, coded.codes, parameter=bits),
        np.concatenate([np.frombuffer(body, np.uint8), _packed(codes, bits)]),
    )


def decode_codes(packet: Bytes, header: Header, limit: int) -> CodedTensor:
    """Return the coded tensor of a packet whose header was read; PacketError if its description cannot be read."""
    body = packet[header.size :]
    end = body.size - bytes_for(header.count * header.parameter)
    try:
        (length,) = _LENGTH.unpack(body[: _LENGTH.size].tobytes())
        start = _LENGTH.size + length
        fields = json.loads(body[_LENGTH.size : start].tobytes())
        layout = _layout(fields)
        arrays = _arrays(fields["arrays"], body[start:end])
        transform = tuple(_transform(place, entry, arrays) for place, entry in enumerate(fields["transform"]))
    except (LookupError, TypeError, ValueError, RuntimeError, struct.error) as error:
        reason = str(error).split("\n")[0]
        raise PacketError(f"this packet holds no coded tensor ({type(error).__name__}: {reason}).") from None
    if math.prod(layout.shape) * layout.dtype.itemsize > limit:
        raise PacketError(f"this packet decodes to a tensor of more than {limit:,} bytes; limit= allows more.")
    codes = header.empty()
    in_order(codes).copy_(torch.from_numpy(_unpacked(body[end:], header)))
    parts: dict[str, Any] = {name: arrays.get(name) for name in _PARTS}
    return CodedTensor(codes, format=fields["format"], layout=layout, transform=transform, **parts)


# -- the description --


def described(coded: CodedTensor) -> tuple[bytes, list[bytes]]:
    """Return the description of a coded tensor, and the bytes of all its tensors but the codes."""
    layout = coded.layout
    named = [(name, getattr(coded, name)) for name in _PARTS]
    transforms = []
    for place, step in enumerate(coded.transform):
        kind = next(name for name, (each, *_) in _TRANSFORMS.items() if type(step) is each)
        _, tensors, numbers = _TRANSFORMS[kind]
        named += [(f"{place}.{name}", getattr(step, name)) for name in tensors]
        transforms.append({"kind": kind, **{name: getattr(step, name) for name in numbers}})
    present = [(name, value.detach().cpu().contiguous()) for name, value in named if value is not None]
    text = {
        "format": coded.format,
        "dtype": type_name(layout.dtype),
        "shape": layout.shape,
        "order": order_of(torch.empty_strided(layout.shape, layout.strides, dtype=torch.uint8, device="meta")),
        "matrix": layout.order,
        "columns": layout.columns,
        "bits": layout.bits,
        "width": layout.width,
        "transform": transforms,
        "arrays": [[name, type_name(value.dtype), tuple(value.shape)] for name, value in present],
    }
    content = [value.reshape(-1).view(torch.uint8).numpy().tobytes() for _, value in present]
    return json.dumps(text, separators=(",", ":")).encode(), content


def _layout(fields: dict[str, Any]) -> Layout:
    shape, order, matrix = tuple(fields["shape"]), fields["order"], fields["matrix"]
    places = [order.index(dim) for dim in range(len(order))]
    strides = torch.empty([shape[dim] for dim in order], device="meta").permute(places).stride()
    matrix = None if matrix is None else tuple(matrix)
    dtype = _DTYPES[fields["dtype"]]
    return Layout(shape, strides, dtype, matrix, fields["columns"], fields["bits"], fields["width"])


def _arrays(described: list[tuple[str, str, list[int]]], content: Bytes) -> dict[str, Tensor]:
    """Return the arrays by name, which follow one another in the content."""
    arrays: dict[str, Tensor] = {}
    at = 0
    for name, type_of, shape in described:
        dtype = _DTYPES[type_of]
        end = at + math.prod(shape) * dtype.itemsize
        values = torch.from_numpy(content[at:end].copy())
        arrays[name] = values.view(dtype).reshape(shape) if end > at else torch.empty(shape, dtype=dtype)
        at = end
    return arrays


def _transform(place: int, entry: dict[str, Any], arrays: dict[str, Tensor]) -> Transform:
    make, tensors, numbers = _TRANSFORMS[entry["kind"]]
    given: dict[str, Any] = {name: entry[name] for name in numbers}
    transform: Transform = make(**given, **{name: arrays.get(f"{place}.{name}") for name in tensors})
    return transform


# -- packed codes --


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Return codes of at most `bits` bits, one after the other."""
    if bits == 8:
        return codes
    kernel = native.kernel("pack_bits")
    if kernel is None:
        return pack(codes.astype(np.int64), bits)
    codes, out = np.ascontiguousarray(codes), np.empty(bytes_for(codes.size * bits), np.uint8)
    addresses = native.array_address("codes", codes), native.array_address("packet", out)
    kernel(addresses[0], codes.size, bits, addresses[1], torch.get_num_threads())
    return out


def _unpacked(data: Bytes, header: Header) -> Bytes:
    """Return the codes that `_packed` was given."""
    bits, count = header.parameter, header.count
    if bits == 8:
        return data.copy()
    kernel = native.kernel("unpack_bits")
    if kernel is None:
        return unpack(data, bits, count).astype(np.uint8)
    data, out = np.ascontiguousarray(data), np.empty(count, np.uint8)
    addresses = native.array_address("packet", data), native.array_address("codes", out)
    kernel(addresses[0], count, bits, addresses[1], torch.get_num_threads())
    return out
