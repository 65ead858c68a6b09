"""Bytes that are no packet: each ends in PacketError, and none in a wrong tensor, a crash or a large allocation."""

from __future__ import annotations

import json
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

SMALL = {
    "pruned": lograd.encode(gradient(150)),
    "with a tail": lograd.encode(gradient(150, 1.0, seed=1), entropy=True),
    "rounded": lograd.encode(gradient(150, seed=2), values="float8"),
    "raw": lograd.encode(torch.randn(2, 5, dtype=torch.float64)),
    "codes": lograd.encode(coded_tensors()["halves"]),
    "nothing": lograd.encode(torch.zeros(3, 0)),
}
LIMIT = 1 << 20


@pytest.mark.parametrize("name", SMALL)
def test_every_flipped_bit_and_every_cut_is_seen(name: str) -> None:
    packet = SMALL[name].clone()
    for at in range(packet.numel()):
        with pytest.raises(PacketError):
            lograd.decode(packet[:at])
        for bit in range(8):
            packet[at] ^= 1 << bit
            with pytest.raises(PacketError):
                lograd.decode(packet)
            packet[at] ^= 1 << bit
    with pytest.raises(PacketError):
        lograd.decode(torch.cat([packet, packet]))
    lograd.decode(packet)


def _head(method: int, number: int, sizes: tuple[int, ...], order: Any = None, **more: int) -> bytes:
    head = b"LGRD" + bytes([more.get("version", 1), method, number, len(sizes)]) + bytes(12)
    head += struct.pack("<IB3x", more.get("alpha", 0), more.get("parameter", 0))
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + bytes(range(len(sizes)) if order is None else order)


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """Bytes of a good packet with some of them changed or cut, a block behind a good header, or any bytes at all."""
    kind = draw(st.sampled_from(["changed", "block", "header", "any"]))
    if kind == "any":
        return draw(st.binary(max_size=200))
    body = draw(st.binary(max_size=200))
    if kind == "header":
        sizes = tuple(draw(st.lists(st.integers(0, 2**20) | st.integers(0, 2**64 - 1), max_size=3)))
        more = {"alpha": draw(st.integers(0, 2**32 - 1)), "parameter": draw(st.integers(0, 255))}
        return _head(draw(st.integers(0, 3)), draw(st.integers(0, 5)), sizes, **more) + body
    if kind == "block":
        count, alpha = draw(st.integers(1, 4096)), draw(st.sampled_from([0, 0x3E80]))
        return _head(1, draw(st.integers(0, 2)), (count,), alpha=alpha) + struct.pack("<H", len(body)) + body
    data = bytearray(SMALL[draw(st.sampled_from(sorted(SMALL.keys() - {"codes"})))].numpy().tobytes())
    for _ in range(draw(st.integers(1, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
        )
    return bytes(data[: draw(st.sampled_from([len(data), draw(st.integers(28, len(data)))]))])


@given(forged())
@settings(max_examples=1000)
def test_forged_bytes_with_a_right_checksum_harm_nobody(data: bytes) -> None:
    """Only PacketError may come of them, and no tensor beyond the limit."""
    try:
        found = lograd.decode(
            sealed(data) if len(data) > 20 else torch.tensor(list(data), dtype=torch.uint8), limit=LIMIT
        )
    except PacketError:
        return
    assert found.nbytes <= LIMIT


def _pruned(*parts: Any, sizes: tuple[int, ...] = (3,)) -> bytes:
    return _head(1, 0, sizes) + b"".join(parts)


WRONG = {
    "magic": b"LGRX" + _pruned()[4:],
    "version": _head(1, 0, (3,), version=2),
    "method": _head(3, 0, (3,)),
    "element type": _head(1, 5, (3,)),
    "dimensions": _head(1, 0, (1,) * 40),
    "too many elements": _head(1, 0, (2**40, 2**40)),
    "too many elements beside a zero": _head(1, 0, (0, 2**60)),
    "order": _head(1, 0, (3,), (1,)),
    "order twice": _head(1, 0, (2, 3), (1, 1)),
    "beyond the limit": _head(1, 0, (2**30,)),
    "pruned float64": _head(1, 3, (3,)),
    "alpha": _head(1, 0, (3,), alpha=2**31),
    "alpha of bfloat16": _head(1, 1, (3,), alpha=2**15),
    "cut bits": _head(1, 0, (3,), parameter=24),
    "no table": _pruned(bytes(2), sizes=(4097,)),
    "blocks beyond the packet": _pruned(struct.pack("<H", 1)),
    "block without head": _pruned(struct.pack("<HB", 1, 0)),
    "too many kept": _pruned(struct.pack("<HHBB", 4, 4, 0, 0)),
    "none kept": _pruned(struct.pack("<HHBB", 4, 0, 0, 0)),
    "the eighth bit": _pruned(struct.pack("<HHBB", 4, 1, 128, 0)),
    "width": _pruned(struct.pack("<HHBB", 4, 1, 0, 32)),
    "no gaps": _pruned(struct.pack("<HHBB", 4, 1, 0, 8)),
    "no end of a gap": _pruned(struct.pack("<HHBBBB", 6, 1, 32, 0, 0, 0)),
    "position beyond the end": _pruned(struct.pack("<HHBBBB", 6, 1, 32, 0, 0, 8)),
    "bytes behind the block": _pruned(struct.pack("<HHBBBBB", 7, 1, 32, 0, 0, 1, 0)),
    "no end of a distance": _pruned(struct.pack("<HHBBBBBB", 8, 1, 64, 31, 0, 0, 0, 0)),
    "long distance": _pruned(struct.pack("<HHBBBIBB", 11, 1, 64, 31, 0, 0, 2, 1)),
    "length of plain elements": _pruned(struct.pack("<HHBBB", 5, 0, 48, 0, 0)),
    "raw of another length": _head(0, 0, (3,)) + bytes(11),
    "raw uint8": _head(0, 4, (3,)) + bytes(3),
    "codes of float32": _head(2, 0, (3,)),
    "codes of 9 bits": _head(2, 4, (3,), parameter=9),
    "codes without length": _head(2, 4, (3,), parameter=8) + bytes(3),
    "codes without description": _head(2, 4, (3,), parameter=8) + bytes(7),
}


@pytest.mark.parametrize("name", WRONG)
def test_recorded_bytes_are_refused(name: str) -> None:
    with pytest.raises(PacketError):
        lograd.decode(sealed(WRONG[name]), limit=LIMIT)


def test_a_table_of_nothing_is_a_tensor_of_zeros() -> None:
    assert lograd.decode(sealed(_pruned(bytes(2), sizes=(4096,)))).count_nonzero() == 0


# -- descriptions of coded tensors --


def _described(name: str, **changes: Any) -> Tensor:
    """The packet of a coded tensor with another description."""
    data = lograd.encode(coded_tensors()[name]).numpy().tobytes()
    at = 28 + 9 * data[7]
    (length,) = struct.unpack_from("<I", data, at)
    text = json.dumps(json.loads(data[at + 4 : at + 4 + length]) | changes).encode()
    return sealed(data[:at] + struct.pack("<I", len(text)) + text + data[at + 4 + length :])


DESCRIBED: list[dict[str, Any]] = [
    {"dtype": "int99"},
    {"shape": "4"},
    {"shape": [4, 6, 5]},
    {"order": [0, 0, 1, 2]},
    {"arrays": [["scale", "float32", [2]]]},
    {"arrays": [["scale", "float32"]]},
    {"transform": [{"kind": "rotation"}]},
    {"transform": [{"kind": "folded"}]},
    {"shape": [2**40, 1, 1, 1]},
]


@pytest.mark.parametrize("changes", DESCRIBED, ids=str)
def test_a_description_that_cannot_be_read_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PacketError, match=r"holds no coded tensor|limit= allows more"):
        lograd.decode(_described("halves", **changes))
