"""A reader that was written from docs/packet-format.md alone, in plain Python, reads what the library writes."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from bits import awkward
from packets import coded_tensors, gradient, same

import lograd

NAMES = ("float32", "bfloat16", "float16", "float64", "uint8")
SIZES = (4, 2, 2, 8, 1)
MANTISSA = (23, 7, 10)


class Bits:
    """Bits from bytes, the lowest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, width: int) -> int:
        value = 0
        for place in range(width):
            value |= (self.data[self.at // 8] >> self.at % 8 & 1) << place
            self.at += 1
        return value

    def numbers(self, count: int, width: int) -> list[int]:
        found = [self.number(width) for _ in range(count)]
        self.at += -self.at % 8
        return found

    def unary(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            zeros = 0
            while not self.number(1):
                zeros += 1
            found.append(zeros)
        self.at += -self.at % 8
        return found


def whole_numbers(data: bytes, size: int) -> list[int]:
    """Numbers of `size` bytes."""
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def read_block(data: bytes, count: int, number: int, alpha: int, cut: int) -> list[int]:
    """The elements of a block as whole numbers."""
    size = 8 * SIZES[number]
    if not data:
        return [0] * count
    n, byte, width = struct.unpack_from("<HBB", data)
    l, mode, tail = byte & 15, byte >> 4 & 3, byte >> 6 & 1  # noqa: E741
    if mode == 3:
        return whole_numbers(data[4:], size // 8)
    bits = Bits(data[4:])
    low, signs = bits.numbers(n, l), bits.numbers(n, 1)
    flags = bits.numbers(n, 1) if mode == 1 else [1 - mode // 2] * n
    distances = bits.numbers(sum(flags), width)
    if tail:
        distances = [a | b << width for a, b in zip(distances, bits.unary(sum(flags)), strict=True)]
    elements, position, following = [0] * count, -1, iter(distances)
    for high, rest, sign, flag in zip(bits.unary(n), low, signs, flags, strict=True):
        position += 1 + (high << l | rest)
        magnitude = ((next(following) + (alpha >> cut)) % 2 ** (size - 1 - cut)) << cut if flag else alpha
        elements[position] = sign << (size - 1) | magnitude
    assert bits.at == 8 * len(bits.data)
    return elements


def read(packet: bytes) -> Any:
    """Element type, shape, order and elements of a packet; of codes also the description and its arrays."""
    magic, version, method, number, d, length, crc, alpha, parameter = struct.unpack_from("<4sBBBBQIIB", packet)
    assert (magic, version, length) == (b"LGRD", 1, len(packet))
    assert crc == zlib.crc32(packet[20:], zlib.crc32(packet[:16]))
    shape = struct.unpack_from(f"<{d}Q", packet, 28)
    order = struct.unpack_from(f"<{d}B", packet, 28 + 8 * d)
    body, count, size = packet[28 + 9 * d :], int(np.prod(shape, dtype=np.int64)), SIZES[number]
    if method == 0:
        return NAMES[number], shape, order, whole_numbers(body, size)
    if method == 2:
        (text,) = struct.unpack_from("<I", body)
        packed = (count * parameter + 7) // 8
        codes = Bits(body[len(body) - packed :]).numbers(count, parameter)
        return json.loads(body[4 : 4 + text]), shape, order, codes, body[4 + text : len(body) - packed]
    blocks = (count + 4095) // 4096
    elements: list[int] = []
    at = 2 * blocks
    for block in range(blocks):
        (size_of,) = struct.unpack_from("<H", body, 2 * block)
        elements += read_block(body[at : at + size_of], min(4096, count - 4096 * block), number, alpha, parameter)
        at += size_of
    assert at == len(body)
    return NAMES[number], shape, order, elements


OPTIONS: list[dict[str, Any]] = [{}, {"entropy": True}, {"values": "float8"}, {"alpha": 2.0}]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_another_reader_reads_tensors(dtype: torch.dtype, option: dict[str, Any]) -> None:
    if dtype == torch.float64:
        option = {}
    for x in (gradient(5000).reshape(5, 10, 100), awkward((2, 3, 4, 5), torch.float32), torch.zeros(2, 0)):
        x = x.to(dtype).transpose(0, 1)
        packet = lograd.encode(x, **option)
        expected = lograd.decode(packet)
        name, shape, order, elements = read(packet.numpy().tobytes())
        assert f"torch.{name}" == str(dtype)
        found = np.array(elements, np.uint64).astype(f"<u{dtype.itemsize}").tobytes()
        whole = torch.frombuffer(bytearray(found), dtype=dtype) if found else torch.empty(0, dtype=dtype)
        whole = whole.reshape([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(len(order))])
        assert same(whole, expected)


def test_another_reader_reads_codes() -> None:
    for name in ("images", "folded", "nibbles", "halves"):
        coded = coded_tensors()[name]
        description, shape, order, codes, arrays = read(lograd.encode(coded).numpy().tobytes())
        assert shape == tuple(coded.codes.shape)
        assert codes == coded.codes.permute(order).reshape(-1).tolist()
        assert description["format"] == coded.format
        assert description["arrays"][0][0] == "scale"
        assert arrays[: 4 * coded.scale.numel()] == coded.scale.numpy().tobytes()
