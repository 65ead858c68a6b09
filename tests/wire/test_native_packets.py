"""Native packets are those of the reference, byte for byte, on every instruction set and for any number of threads."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from bits import MACHINES, any_bits, awkward, machine
from hypothesis import given, settings
from hypothesis import strategies as st
from packets import gradient, same, sealed
from torch import Tensor

import lograd
from lograd import PacketError, native, ops, wire
from lograd.wire.header import BLOCK, PRUNED, read_header
from lograd.wire.packets import Pruning, decode_by_definition, decode_pruned, encode_by_definition, encode_pruned
from lograd.wire.pruned import pack, unpack

pytestmark = pytest.mark.skipif(native.kernel("encode_packet") is None, reason="no native module here")

CODINGS = [(None, 0, False), (None, 0, True), (0x40000000, 0, False), (None, 5, False), (1, 7, True)]
"""Alpha, cut bits and the entropy stage."""


def _compare(x: Tensor, alpha: int | None, cut: int, entropy: bool) -> None:
    """Both ways to encode, and both ways to decode what they give; with a block of zeros, any tensor is compressed."""
    x = torch.cat([x.new_zeros(BLOCK), x])
    alpha = alpha if alpha is None or x.dtype == torch.float32 else alpha >> 16
    packet, _ = encode_pruned(x, alpha, cut, entropy)
    expected, _ = encode_by_definition(x, alpha, cut, entropy)
    assert torch.equal(packet, expected)
    header = read_header(packet.numpy(), 2**32)
    assert header.method == PRUNED
    first, second = torch.empty_like(x), torch.empty_like(x)
    decode_pruned(packet.numpy()[header.size :], header, first)
    decode_by_definition(packet.numpy()[header.size :], header, second)
    assert same(first, second)
    assert cut or same(first, x)


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_tensors_of_many_blocks(isa: str, threads: int) -> None:
    with machine(isa, threads):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for x in (gradient(70_001).to(dtype), awkward((9001,), dtype), gradient(66_000, 1e5).to(dtype)):
                for alpha, cut, entropy in CODINGS:
                    _compare(x, alpha, cut, entropy)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_every_length_and_every_share_of_zeros(isa: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with machine(isa, 1):
        for count in (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 255, 1000, 4095, 4096):
            x = torch.randn(count, generator=generator)
            for share in (0.0, 0.0005, 0.01, 0.03, 0.1, 0.3, 0.7, 1.0):
                some = torch.where(torch.rand(count, generator=generator) < share, x, 0.0)
                _compare(some, None, 0, False)
                _compare(torch.where(some.abs() > 1, some, some.sign()), 0x3F800000, 3, True)


@given(any_bits(5000), st.sampled_from(CODINGS), st.sampled_from(["generic", "avx2"]))
@settings(max_examples=40)
def test_any_bits(x: Tensor, coding: tuple[int | None, int, bool], isa: str) -> None:
    with machine(isa, 1):
        _compare(x[0], *coding)


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_pruning_on_the_way(isa: str, threads: int) -> None:
    with machine(isa, threads):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = awkward((70_001,), dtype)
            pruning = Pruning(torch.tensor(3.5).to(dtype).float(), torch.tensor([11, 5]), True)
            alpha = int(pruning.threshold.to(dtype).view(torch.int32 if dtype == torch.float32 else torch.int16))
            packet, counts = encode_pruned(x, alpha, 0, False, pruning)
            expected, expected_counts = encode_by_definition(x, alpha, 0, False, pruning)
            assert torch.equal(packet, expected)
            assert torch.equal(counts, expected_counts)  # type: ignore[arg-type]
    pruned = ops.stochastic_prune(x, 3.5, 11, 5, counted=True)
    found = wire.prune_and_encode(x, 3.5, 11, 5, counted=True)
    assert torch.equal(found.counts, pruned.counts)
    assert same(lograd.decode(found.result), pruned.result)


@given(st.binary(max_size=80), st.integers(1, 5000), st.integers(0, 2), st.integers(0, 7), st.integers(0, 2**15 - 1))
@settings(max_examples=300)
def test_the_definition_decodes_what_the_kernel_accepts(
    body: bytes, count: int, number: int, cut: int, alpha: int
) -> None:
    table = np.array([min(len(body), 2**16 - 1)] + [0] * ((count - 1) // 4096), "<u2").tobytes()
    data = np.frombuffer(table + body, np.uint8)
    head = b"LGRD" + bytes([1, 1, number, 1]) + bytes(12) + alpha.to_bytes(4, "little") + bytes([cut, 0, 0, 0])
    header = read_header(sealed(head + count.to_bytes(8, "little") + bytes(1) + data.tobytes()).numpy(), 2**32)
    found = []
    for decode in (decode_pruned, decode_by_definition):
        out = torch.empty(count, dtype=header.dtype)
        try:
            decode(data, header, out)
            found.append(out)
        except PacketError:
            found.append(None)
    assert found[0] is None or (found[1] is not None and same(found[0], found[1]))


def test_the_checksum_is_that_of_zlib() -> None:
    generator = np.random.default_rng(0)
    for size in (0, 1, 7, 8, 15, 16, 63, 64, 65, 79, 80, 127, 128, 1000, 100_003):
        data = generator.integers(0, 256, size, dtype=np.uint8)
        assert native.kernel("crc32")(data.ctypes.data, size, 12345) == zlib.crc32(data.tobytes(), 12345)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_codes_of_few_bits(isa: str) -> None:
    generator = np.random.default_rng(0)
    with machine(isa, 2):
        for bits in range(1, 8):
            for count in (0, 1, 7, 8, 9, 71, 72, 73, 4096, 80_001):
                codes = generator.integers(0, 2**bits, count, dtype=np.uint8)
                packed = np.full((count * bits + 7) // 8, 255, np.uint8)
                native.kernel("pack_bits")(codes.ctypes.data, count, bits, packed.ctypes.data, 2)
                assert np.array_equal(packed, pack(codes.astype(np.int64), bits))
                found = np.empty_like(codes)
                native.kernel("unpack_bits")(packed.ctypes.data, count, bits, found.ctypes.data, 2)
                assert np.array_equal(found, unpack(packed, bits, count))
