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
from ..errors import LogradError, PacketError
from ..files import check_object, check_one_of, check_text, check_whole, read_json
from ..formats import BlockFormat, parse_format
from ..ops.coded import CodedTensor, Folded, Hadamard, Householder, Layout, Table, ThreeQuarters, Transform
from ..ops.contracts import type_name
from .header import CODES, MOST_DIMENSIONS, MOST_ELEMENTS, Bytes, Header, in_order, order_of, packet_of
from .pruned import bytes_for, pack, unpack

_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DTYPES = _FLOATS | {"float64": torch.float64, "uint8": torch.uint8, "int64": torch.int64}
_PARTS = ("scale", "zero", "low", "block_scales")
_TRANSFORMS: dict[str, tuple[type[Any], tuple[str, ...], tuple[str, ...]]] = {
    "folded": (Folded, ("factors",), ("dim",)),
    "householder": (Householder, ("groups", "stretch"), ()),
    "hadamard": (Hadamard, ("key",), ("block",)),
    "three_quarters": (ThreeQuarters, (), ()),
    "table": (Table, ("values",), ()),
}
"""The class of each kind of transform, its fields that are tensors, and those that are whole numbers."""
_FIELDS = ("format", "dtype", "shape", "order", "matrix", "columns", "bits", "width", "transform", "arrays")
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
    """Return the coded tensor of a packet whose header was read; PacketError if its parts do not fit together."""
    if header.dtype != torch.uint8 or not 1 <= header.parameter <= 8:
        raise PacketError("codes are uint8 of 1 to 8 bits in a packet; this one says otherwise.")
    body = packet[header.size :]
    end = body.size - bytes_for(header.count * header.parameter)
    length = _LENGTH.unpack(body[:4].tobytes())[0] if body.size >= 4 else body.size
    if 4 + length > end:
        raise PacketError("a packet ends before its codes do.")
    try:
        what = "the description of a coded tensor"
        fields = check_object(what, read_json(body[4 : 4 + length].tobytes(), what), _FIELDS)
        layout = _layout(fields)
        if math.prod(layout.shape) * layout.dtype.itemsize > limit:
            raise PacketError(f"this packet decodes to a tensor of more than {limit:,} bytes; limit= allows more.")
        arrays = _arrays(fields, body[4 + length : end])
        transform = _transforms(fields, arrays)
        parts: dict[str, Any] = {name: arrays.pop(name, None) for name in _PARTS}
        if arrays or parts["scale"] is None:
            raise PacketError("the arrays of a coded tensor are not those that its description needs.")
        codes = header.empty()
        in_order(codes).copy_(torch.from_numpy(_unpacked(body[end:], header)))
        format = check_text("format", fields["format"])
        coded = CodedTensor(codes, format=format, layout=layout, transform=transform, **parts)
        _check_fit(coded)
    except PacketError:
        raise
    except LogradError as error:
        raise PacketError(f"this packet is no coded tensor: {error}") from None
    return coded


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
    shape = _sizes("shape", fields["shape"])
    order = _permutation("order", fields["order"], len(shape))
    places = [order.index(dim) for dim in range(len(order))]
    like = torch.empty([shape[dim] for dim in order], device="meta").permute(places)
    return Layout(
        shape,
        like.stride(),
        _FLOATS[check_one_of("dtype", fields["dtype"], _FLOATS)],
        None if fields["matrix"] is None else _permutation("matrix", fields["matrix"], len(shape)),
        check_whole("columns", fields["columns"]),
        check_whole("bits", fields["bits"], 4, 8),
        check_whole("width", fields["width"]),
    )


def _arrays(fields: dict[str, Any], content: Bytes) -> dict[str, Tensor]:
    """Return the arrays by name, which must fill the content."""
    arrays: dict[str, Tensor] = {}
    at = 0
    for entry in _list("arrays", fields["arrays"]):
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str) or entry[0] in arrays:
            raise PacketError("an array of a coded tensor is described by a name of its own, a type and a shape.")
        dtype = _DTYPES[check_one_of("the type of an array", entry[1], _DTYPES)]
        shape = _sizes("the shape of an array", entry[2])
        end = at + math.prod(shape) * dtype.itemsize
        if end > content.size:
            raise PacketError("a packet ends before its arrays do.")
        values = torch.from_numpy(content[at:end].copy())
        arrays[entry[0]] = values.view(dtype).reshape(shape) if end > at else torch.empty(shape, dtype=dtype)
        at = end
    if at != content.size:
        raise PacketError("the arrays of a packet do not fill it.")
    return arrays


def _transforms(fields: dict[str, Any], arrays: dict[str, Tensor]) -> tuple[Transform, ...]:
    """Return the transforms, whose tensors are taken out of the arrays."""
    found: list[Transform] = []
    for place, entry in enumerate(_list("transform", fields["transform"])):
        named = check_object("a transform", entry, ("kind",), None)
        kind = check_one_of("the kind of a transform", named["kind"], _TRANSFORMS)
        make, tensors, numbers = _TRANSFORMS[kind]
        check_object(f"the transform {kind}", entry, ("kind", *numbers))
        given: dict[str, Any] = {name: check_whole(name, entry[name], -32, 2**20) for name in numbers}
        given |= {name: arrays.pop(f"{place}.{name}", None) for name in tensors}
        if any(value is None for name, value in given.items() if name != "key"):
            raise PacketError(f"the transform {kind} of a coded tensor lacks one of its arrays.")
        found.append(make(**given))
    return tuple(found)


def _check_fit(coded: CodedTensor) -> None:
    """Refuse parts that are each what they should be, but do not belong together."""
    layout, shape, format = coded.layout, tuple(coded.codes.shape), parse_format(coded.format)
    if layout.bits == 4:
        if not shape or (layout.width + 1) // 2 != shape[-1]:
            raise PacketError("codes of 4 bits do not fill the bytes that hold them.")
        shape = (*shape[:-1], layout.width)
    elif layout.bits != 8:
        raise PacketError("a stored code has 4 or 8 bits.")
    fits = shape == layout.shape
    if layout.order is not None:
        fits = len(shape) == 2 and layout.columns <= shape[1] and shape[0] * layout.columns == math.prod(layout.shape)
    parts = [part for part in (coded.scale, coded.zero, coded.low) if part is not None]
    fits = fits and all(part.dtype == torch.float32 and part.numel() in (1, *shape[:1]) for part in parts)
    fits = fits and (coded.block_scales is not None) == isinstance(format, BlockFormat)
    if fits and coded.block_scales is not None and isinstance(format, BlockFormat):
        blocks = (*shape[:-1], (shape[-1] + format.size - 1) // format.size if shape else 1)
        fits = coded.block_scales.dtype == torch.uint8 and tuple(coded.block_scales.shape) == blocks
    if not (fits and all(_transform_fits(step, coded) for step in coded.transform)):
        raise PacketError("the codes and scales of this packet do not belong together.")


def _transform_fits(step: Transform, coded: CodedTensor) -> bool:
    layout = coded.layout
    if isinstance(step, Table):
        return step.values.shape == (256,) and step.values.dtype == layout.dtype
    if isinstance(step, Folded):
        dims = len(layout.shape)
        return -dims <= step.dim < dims and step.factors.shape == (layout.shape[step.dim],)
    if isinstance(step, Hadamard):
        return step.key is None or (step.key.shape == (2,) and step.key.dtype == torch.int64)
    if isinstance(step, Householder):
        rows = coded.codes.shape[0] if coded.codes.dim() else 0
        return step.groups.shape == (2, rows) and step.stretch.shape == (rows,) and step.groups.dtype == torch.int64
    return True


def _list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > 64:
        raise PacketError(f"{what} of a coded tensor must be a short list.")
    return value


def _sizes(what: str, value: Any) -> tuple[int, ...]:
    sizes = tuple(check_whole(what, size, 0, MOST_ELEMENTS) for size in _list(what, value))
    if len(sizes) > MOST_DIMENSIONS or math.prod(max(size, 1) for size in sizes) > MOST_ELEMENTS:
        raise PacketError(f"{what} of a coded tensor has more elements than a packet.")
    return sizes


def _permutation(what: str, value: Any, dimensions: int) -> tuple[int, ...]:
    found = tuple(check_whole(what, dim, 0, 63) for dim in _list(what, value))
    if sorted(found) != list(range(dimensions)):
        raise PacketError(f"{what} of a coded tensor must name each dimension once.")
    return found


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
