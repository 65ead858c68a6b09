"""Packets of coded tensors: every part comes back, codes take the bits that they have, and parts must fit together."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from typing import Any

import pytest
import torch
from packets import coded_tensors, same, sealed
from torch import Tensor

import lograd
from lograd import PacketError, ops, wire
from lograd.formats import parse_format
from lograd.ops.coded import CodedTensor


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    return bool(a == b)


@pytest.mark.parametrize("name", coded_tensors())
def test_every_part_comes_back(name: str) -> None:
    coded = coded_tensors()[name]
    packet = lograd.encode(coded)
    found = lograd.decode(packet)
    assert isinstance(found, CodedTensor)
    assert found.layout == coded.layout
    assert found.format == coded.format
    assert found.codes.stride() == coded.codes.stride()
    for field in ("codes", "scale", "zero", "low", "block_scales"):
        assert _equal(getattr(found, field), getattr(coded, field)), field
    assert [type(step) for step in found.transform] == [type(step) for step in coded.transform]
    for one, other in zip(found.transform, coded.transform, strict=True):
        assert all(_equal(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    assert same(found.decode(), coded.decode())
    assert packet.numel() <= wire.largest(coded)


@pytest.mark.parametrize(("format", "bits"), [("e5m2", 8), ("1-3-2", 6), ("1-2-2", 5), ("e2m1", 4), ("1-2-0", 3)])
def test_codes_take_the_bits_of_their_format(format: str, bits: int) -> None:
    x = torch.randn(100_000) * 10
    packet = lograd.encode(ops.pack_codes(x, parse_format(format)))
    assert bits <= packet.numel() * 8 / x.numel() < bits + 0.05


def _changed(name: str, **changes: Any) -> Tensor:
    """The packet of a coded tensor with another description."""
    data = lograd.encode(coded_tensors()[name]).numpy().tobytes()
    at = 28 + 9 * data[7]
    (length,) = struct.unpack_from("<I", data, at)
    description = json.loads(data[at + 4 : at + 4 + length]) | changes
    text = json.dumps(description).encode()
    return sealed(data[:at] + struct.pack("<I", len(text)) + text + data[at + 4 + length :])


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("halves", {"format": "int99"}, "is not a format"),
    ("halves", {"format": 4}, "format must be a text"),
    ("halves", {"format": "mxfp4"}, "do not belong together"),
    ("halves", {"dtype": "int64"}, "dtype must be one of"),
    ("halves", {"shape": [4, 6, 5]}, "order of a coded tensor"),
    ("halves", {"shape": [4, 6, 8, 5]}, "do not belong together"),
    ("halves", {"shape": [2**40, 2**40, 1, 1]}, "more elements than a packet"),
    ("halves", {"shape": [2**40, 1, 1, 1]}, "limit"),
    ("halves", {"shape": "4"}, "a short list"),
    ("halves", {"order": [0, 0, 1, 2]}, "name each dimension once"),
    ("halves", {"matrix": [0, 1, 2, 3], "columns": 2**50}, "do not belong together"),
    ("halves", {"columns": -1}, "columns must be a whole number"),
    ("halves", {"bits": 4, "width": 9}, "do not fill the bytes"),
    ("halves", {"bits": 5}, "4 or 8 bits"),
    ("halves", {"arrays": []}, "not those that its description needs|do not fill"),
    ("halves", {"arrays": [["scale", "float32", [2]]]}, "before its arrays do"),
    ("halves", {"arrays": [["scale", "float32", []], ["zero", "float32", [0]]]}, "do not belong together"),
    ("halves", {"arrays": [["scale", "uint8", [4]]]}, "do not belong together"),
    ("halves", {"arrays": [["low", "float32", []]]}, "not those that its description needs"),
    ("halves", {"arrays": [["scale", "float32"]]}, "a name of its own"),
    ("halves", {"transform": [{"kind": "rotation"}]}, "the kind of a transform must be one of"),
    ("halves", {"transform": [{"kind": "folded", "dim": 1}]}, "lacks one of its arrays"),
    ("halves", {"transform": [{"kind": "three_quarters", "dim": 1}]}, "no field 'dim'"),
    ("halves", {"more": 1}, "has no field 'more'"),
    ("folded", {"transform": [{"kind": "folded", "dim": 9}]}, "do not belong together"),
    ("folded", {"transform": [{"kind": "folded", "dim": 0}]}, "do not belong together"),
]


@pytest.mark.parametrize(("name", "changes", "words"), WRONG)
def test_parts_that_do_not_fit_are_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PacketError, match=words):
        lograd.decode(_changed(name, **changes))


def test_the_limit_is_that_of_the_decoded_tensor() -> None:
    packet = lograd.encode(ops.pack_codes(torch.ones(1000), parse_format("e2m1")))
    assert isinstance(lograd.decode(packet, limit=4000), CodedTensor)
    with pytest.raises(PacketError, match="limit= allows more"):
        lograd.decode(packet, limit=3999)
