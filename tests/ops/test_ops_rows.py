"""The integer gradient quantizers: native equals plain bit for bit, coded tensors decode exactly, compiled or not."""

from __future__ import annotations

import math
import os

import pytest
import torch
from bits import IN_USE, MACHINES, machine, plain
from everyday import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import KINDS, METHODS, TYPES, contents, same

from lograd import native

BODIES = ("quantize_per_tensor", "quantize_per_sample", "quantize_block_householder", "quantize_interval")
needs_native = pytest.mark.skipif(
    not native.status().available and os.environ.get("LOGRAD_EXPECT_NATIVE") != "1",
    reason="the native module is not in use",
)


def compare(name, x, bits=4, stochastic=True, packed=False, seed=3, offset=0, machines=(IN_USE,)):
    gamma = (torch.tensor(0.4, dtype=torch.float64),) if name == "quantize_interval" else ()
    arguments = (x, *gamma, bits, stochastic, packed, torch.tensor([seed, offset]))
    with machine(IN_USE[0], 1):  # a second thread of PyTorch would only make the definition slower
        expected = plain(name)(*arguments)
    for one in machines:
        with machine(*one):
            for got, want in zip(getattr(torch.ops.lograd, name).default(*arguments), expected, strict=True):
                same(got, want, one)


@needs_native
@pytest.mark.parametrize("name", BODIES)
class TestNativeEqualsPlain:
    @given(
        kind=st.sampled_from(KINDS),
        dtype=st.sampled_from(TYPES),
        rows=st.integers(0, 12),
        columns=st.one_of(st.integers(0, 20), st.sampled_from([63, 127, 128, 129, 255, 256, 257, 300])),
        bits=st.integers(2, 8),
        stochastic=st.booleans(),
        packed=st.booleans(),
        seed=st.integers(-(2**63), 2**63 - 1),
        offset=st.integers(0, 20) | st.integers(2**34 - 9, 2**34 + 9),
    )
    @settings(max_examples=120)
    def test_any(self, name, kind, dtype, rows, columns, bits, stochastic, packed, seed, offset):
        x = contents(kind, (rows, columns), dtype, seed % 1000)
        compare(name, x, bits, stochastic, packed, seed, offset)

    @pytest.mark.parametrize("isa", MACHINES, ids=str)
    @pytest.mark.parametrize("dtype", daily(TYPES, TYPES[:1]))
    def test_every_instruction_set_and_thread(self, name, dtype, isa):
        # Enough for two threads; their border falls inside a row, which is long, or shorter than a chunk.
        few = 800 if name == "quantize_block_householder" else 8001
        for shape in [(2, 40011), (1, 70001), (240, 300), (few, 9)]:
            for kind, stochastic, packed in [("rows", True, False), ("specials", True, True), ("rows", False, True)]:
                compare(name, contents(kind, shape, dtype, 5), 5, stochastic, packed, 7, machines=(isa,))

    def test_ties_of_the_upper_bits(self, name):
        # A million draws meet 16 ties at 2^-16 each, and the lower bits decide them.
        compare(name, contents("rows", (64, 1 << 14), torch.float32, 8), 8, seed=11)


@needs_native
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 5, 8])
class TestPacked:
    def test_the_inverse_is_exact(self, method, dtype, bits):
        quantize, pack = METHODS[method]
        for shape in [(5, 300), (300, 5), (1, 1), (2, 40000), (0, 3), (3, 0)]:
            x = contents("rows", shape, dtype, 4)
            packed = pack(x, bits, seed=9)
            assert packed.codes.dtype == torch.uint8
            assert packed.codes.numel() == 0 or packed.codes.max() <= packed.largest_code
            same(packed.decode(), quantize(x, bits, seed=9))

    def test_nan(self, method, dtype, bits):
        quantize, pack = METHODS[method]
        x = contents("normal", (6, 50), dtype, 4)
        x[2, 7] = x[2, 9] = math.nan
        x[4, 0], x[4, 1] = math.inf, -math.inf
        result, packed = quantize(x, bits, seed=1), pack(x, bits, seed=1)
        decoded = packed.decode()
        assert result[2, 7].isnan()
        assert decoded[2, 7].isnan()
        assert not result.isinf().any()
        if method != "block_householder":
            assert result.isnan().sum() == 2
            assert result[4, 0] >= x[torch.isfinite(x)].max() - 1e-2 or method == "per_sample"
        if bits < 8 or method == "interval":
            same(decoded, result)
        else:  # no code is free: the row says so as a whole
            assert decoded[2].isnan().all()
            rest = ~decoded.isnan()
            assert torch.equal(decoded[rest], result[rest])


X = torch.ones(2, 3)
