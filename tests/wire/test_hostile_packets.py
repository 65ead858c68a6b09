"""Bytes that are no packet: each ends in PacketError, and none in a wrong tensor, a crash or a large allocation."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packets import coded_tensors, gradient, sealed
from torch import Tensor

import lograd
from lograd import PacketError
from lograd.errors import LogradError
from lograd.ops.coded import CodedTensor

SMALL = {
    "pruned": lograd.encode(gradient(150)),
    "with a tail": lograd.encode(gradient(150, 1.0, seed=1), entropy=True, method="pruned"),
    "rounded": lograd.encode(gradient(150, seed=2), values="float8"),
    "raw": lograd.encode(torch.randn(2, 5, dtype=torch.float64)),
    "codes": lograd.encode(coded_tensors()["halves"]),
    "nothing": lograd.encode(torch.zeros(3, 0)),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_flipped_bit_is_seen(name: str) -> None:
    packet = SMALL[name].clone()
    for at in range(packet.numel()):
        for bit in range(8):
            packet[at] ^= 1 << bit
            with pytest.raises(PacketError):
                lograd.decode(packet)
            packet[at] ^= 1 << bit
    lograd.decode(packet)


@pytest.mark.parametrize("name", SMALL)
def test_every_cut_is_seen(name: str) -> None:
    packet = SMALL[name]
    for length in range(packet.numel()):
        with pytest.raises(PacketError):
            lograd.decode(packet[:length])
    with pytest.raises(PacketError, match="cut, or run together"):
        lograd.decode(torch.cat([packet, packet]))


def _tried(packet: Tensor, limit: int = 1 << 20) -> None:
    """Decode a packet that may say anything; only PacketError may come of it, and no tensor beyond the limit."""
    try:
        found = lograd.decode(packet, limit=limit)
    except PacketError:
        return
    if isinstance(found, CodedTensor):
        try:
            found = found.decode()
        except LogradError:  # codes that a contract of the operators refuses
            return
    assert found.nbytes <= limit


@pytest.mark.parametrize("name", SMALL)
def test_forged_bytes_with_a_right_checksum_harm_nobody(name: str) -> None:
    original = SMALL[name].numpy().tobytes()
    for at in range(len(original)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, original[at] ^ 1, original[at] ^ 16} - {original[at]}:
            _tried(sealed(original[:at] + bytes([value]) + original[at + 1 :]))
    for length in range(28, len(original)):
        _tried(sealed(original[:length]))


@given(st.binary(max_size=400), st.integers(0, 2), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=300)
def test_random_bytes_behind_a_header_harm_nobody(body: bytes, method: int, number: int, dimensions: int) -> None:
    head = b"LGRD" + bytes([1, method, number, dimensions])
    _tried(sealed(head + bytes(12) + body if len(body) > 8 else head + bytes(20) + body))


@given(st.lists(st.integers(0, 255), max_size=60), st.integers(1, 4096), st.sampled_from([0, 1, 2]))
@settings(max_examples=300)
def test_random_blocks_harm_nobody(block: list[int], count: int, number: int) -> None:
    head = b"LGRD" + bytes([1, 1, number, 1]) + bytes(12) + struct.pack("<IB3xQB", 0x3E80, 0, count, 0)
    _tried(sealed(head + struct.pack("<H", len(block)) + bytes(block)))


@given(st.binary(max_size=200))
def test_random_bytes_are_no_packet(data: bytes) -> None:
    with pytest.raises(PacketError):
        lograd.decode(torch.tensor(list(data), dtype=torch.uint8))


def _header(method: int = 1, number: int = 0, sizes: tuple[int, ...] = (3,), order: Any = None, **more: int) -> bytes:
    head = b"LGRD" + bytes([more.get("version", 1), method, number, len(sizes)]) + bytes(12)
    head += struct.pack("<IB3x", more.get("alpha", 0), more.get("parameter", 0))
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + bytes(range(len(sizes)) if order is None else order)


WRONG = [
    (b"LGRX" + _header()[4:], "a packet begins with"),
    (_header(version=2), "version 2"),
    (_header(method=3), "no packet has method 3"),
    (_header(number=5), "element type 5"),
    (_header(sizes=(1,) * 40), "40 dimensions"),
    (_header(sizes=(2**40, 2**40)), "no packet holds the shape"),
    (_header(sizes=(0, 2**60)), "no packet holds the shape"),
    (_header(order=(1,)), "in the order"),
    (_header(sizes=(2, 3), order=(1, 1)), "in the order"),
    (_header(sizes=(2**30,)), "4,294,967,296 bytes, and the limit is 1,048,576"),
    (_header(number=3), "pruned elements of float64"),
    (_header(alpha=2**31), "alpha"),
    (_header(number=1, alpha=2**15), "alpha"),
    (_header(parameter=24), "cut bits"),
    (_header(sizes=(4097,)) + bytes(2), "ends before its table"),
    (_header() + struct.pack("<H", 1), "do not fill it"),
    (_header() + struct.pack("<HB", 1, 0), "shorter than its head"),
    (_header() + struct.pack("<HHBB", 4, 4, 0, 0), "no block has"),
    (_header() + struct.pack("<HHBB", 4, 0, 0, 0), "no block has"),
    (_header() + struct.pack("<HHBB", 4, 1, 128, 0), "no block has"),
    (_header() + struct.pack("<HHBB", 4, 1, 0, 32), "no block has"),
    (_header() + struct.pack("<HHBB", 4, 1, 0, 8), "ends before its numbers"),
    (_header() + struct.pack("<HHBBBB", 6, 1, 32, 0, 0, 0), "ends before its numbers"),
    (_header() + struct.pack("<HHBBBB", 6, 1, 32, 0, 0, 8), "go beyond its end"),
    (_header() + struct.pack("<HHBBBBB", 7, 1, 32, 0, 0, 1, 0), "go beyond its end"),
    (_header() + struct.pack("<HHBBBBBB", 8, 1, 64, 31, 0, 0, 0, 0), "ends before its numbers"),
    (_header() + struct.pack("<HHBBBIBB", 11, 1, 64, 31, 0, 0, 2, 1), "more bits than its type"),
    (_header() + struct.pack("<HHBBB", 5, 0, 48, 0, 0), "another length than its elements"),
    (_header(method=0) + bytes(11), "do not fill it"),
    (_header(method=0, number=4) + bytes(3), "do not fill it"),
    (_header(method=2, number=0), "codes are uint8"),
    (_header(method=2, number=4, parameter=9), "codes are uint8"),
    (_header(method=2, number=4, parameter=8) + bytes(3), "ends before its codes"),
    (_header(method=2, number=4, parameter=8) + bytes(7), "is not JSON"),
]


@pytest.mark.parametrize(("data", "words"), WRONG)
def test_each_wrong_field_has_its_sentence(data: bytes, words: str) -> None:
    with pytest.raises(PacketError) as caught:
        lograd.decode(sealed(data), limit=1 << 20)
    assert words in str(caught.value)


def test_nothing_is_allocated_beyond_what_a_packet_can_fill() -> None:
    """The table has two bytes for each block, so a tensor has at most 8192 times the bytes of its packet."""
    with pytest.raises(PacketError, match="ends before its table"):
        lograd.decode(sealed(_header(sizes=(2**44,))), limit=2**60)
    assert lograd.decode(sealed(_header(sizes=(4096,)) + bytes(2))).count_nonzero() == 0


def test_a_packet_error_is_a_value_error_of_lograd() -> None:
    assert issubclass(PacketError, LogradError)
    assert issubclass(PacketError, ValueError)
