"""Packets of coded tensors: every part comes back, codes take the bits that they have, and parts must fit together."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from packets import coded_tensors, same
from torch import Tensor

import lograd
from lograd import PacketError, ops
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


@pytest.mark.parametrize(("format", "bits"), [("e5m2", 8), ("1-3-2", 6), ("1-2-2", 5), ("e2m1", 4), ("1-2-0", 3)])
def test_codes_take_the_bits_of_their_format(format: str, bits: int) -> None:
    x = torch.randn(100_000) * 10
    packet = lograd.encode(ops.pack_codes(x, parse_format(format)))
    assert bits <= packet.numel() * 8 / x.numel() < bits + 0.05


def test_the_limit_is_that_of_the_decoded_tensor() -> None:
    packet = lograd.encode(ops.pack_codes(torch.ones(1000), parse_format("e2m1")))
    assert isinstance(lograd.decode(packet, limit=4000), CodedTensor)
    with pytest.raises(PacketError, match="limit= allows more"):
        lograd.decode(packet, limit=3999)
