"""Codes and nibbles: native against plain PyTorch, both against the scalar formats, ml_dtypes and torch."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from bits import (
    DTYPES,
    MACHINES,
    any_bits,
    assert_all_same_bits,
    assert_same_bits,
    awkward,
    keys,
    machine,
    plain,
    words,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lograd import ops
from lograd.formats import FloatFormat, IntFormat, parse_format
from lograd.ops.codes import coding_of

NAMES = [
    "e5m2", "e4m3fn", "e4m3", "e3m4", "e5m2fnuz", "e4m3fnuz", "e4m3b11fnuz", "e3m2", "e2m3", "e2m1", "e3m0", "1-4-1",
    "1-6-0", "1-1-6", "1-2-2:ieee", "1-4-0:fnuz", "int2", "int4", "int4:symmetric", "int8", "int8:symmetric", "uint4",
    "uint8",
]  # fmt: skip
FORMATS = {name: parse_format(name) for name in NAMES}


def expected_code(format: FloatFormat | IntFormat, x: float) -> int:
    rounded = format.round(x)
    if math.isnan(rounded):
        return coding_of(str(format)).nan
    return format.encode(rounded)


def grid_and_midpoints(format: FloatFormat | IntFormat) -> Tensor:
    values = format.values()
    middles = (values[1:] + values[:-1]) / 2
    points = np.concatenate([values, middles]).astype(np.float32)
    around = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    return torch.from_numpy(np.concatenate([*around, np.float32([3 * format.max, -3 * format.max, -0.0])]))


@pytest.mark.parametrize("name", NAMES)
class TestAgainstTheScalarFormat:
    def test_every_byte_decodes_as_the_format_says(self, name: str) -> None:
        format = FORMATS[name]
        values = ops.dequantize_codes(torch.arange(256, dtype=torch.uint8), format)
        expected = [format.decode(code) if code < 2**format.bits else math.nan for code in range(256)]
        expected = [math.nan if math.isnan(value) else value for value in expected]  # one NaN, without a sign
        assert_same_bits(values, torch.tensor(expected))
        arguments = (torch.arange(256, dtype=torch.uint8), torch.tensor(1.0), name, torch.float32)
        assert_same_bits(values, plain("dequantize_codes")(*arguments))

    def test_every_code_comes_back(self, name: str) -> None:
        format = FORMATS[name]
        codes = torch.arange(2**format.bits, dtype=torch.uint8)
        values = ops.dequantize_codes(codes, format)
        finite = values.isfinite()
        for rounding in ("nearest", "stochastic"):
            again = ops.quantize_codes(values, format, rounding=rounding)
            assert torch.equal(again[finite], codes[finite])

    def test_values_and_midpoints_and_their_neighbours(self, name: str) -> None:
        format = FORMATS[name]
        x = grid_and_midpoints(format)
        expected = torch.tensor([expected_code(format, value) for value in x.tolist()], dtype=torch.uint8)
        assert torch.equal(ops.quantize_codes(x, format), expected)

    @pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_decoded_codes_are_what_quantize_gives(self, name: str, dtype: torch.dtype, rounding: str) -> None:
        format = FORMATS[name]
        x = awkward((3, 1000), dtype, seed=5)
        codes = ops.quantize_codes(x, format, 0.7, rounding, seed=3, offset=11)
        decoded = ops.dequantize_codes(codes, format, 0.7, dtype)
        direct = ops.quantize(x, format, 0.7, rounding, seed=3, offset=11)
        coding = coding_of(str(format))
        if not coding.negative_zero:
            direct = direct + 0.0
        if coding.nan:
            assert torch.equal(decoded.isnan(), x.isnan())
        else:
            assert (codes[x.isnan()] == 0).all()
        known = ~x.isnan()
        assert torch.equal(words(decoded)[known], words(direct)[known])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e5m2", ml_dtypes.float8_e5m2), ("e4m3fn", ml_dtypes.float8_e4m3fn), ("e4m3", ml_dtypes.float8_e4m3),
        ("e3m4", ml_dtypes.float8_e3m4), ("e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("e5m2fnuz", ml_dtypes.float8_e5m2fnuz), ("e4m3b11fnuz", ml_dtypes.float8_e4m3b11fnuz),
        ("e3m2", ml_dtypes.float6_e3m2fn), ("e2m3", ml_dtypes.float6_e2m3fn), ("e2m1", ml_dtypes.float4_e2m1fn),
    ],
)  # fmt: skip
def test_codes_are_those_of_ml_dtypes(name: str, dtype: type) -> None:
    format = FORMATS[name]
    x = torch.cat([grid_and_midpoints(format), torch.randn(5000) * format.max / 4])
    x = x[x.abs() <= format.max]  # beyond, ml_dtypes goes to NaN or infinity
    assert np.array_equal(ops.quantize_codes(x, format).numpy(), x.numpy().astype(dtype).view(np.uint8))


@pytest.mark.parametrize("isa", MACHINES, ids=str)
class TestNativeEqualsPlain:
    @given(
        x=any_bits(300),
        scale=st.sampled_from([1.0, 2.0**-20, 0.3, 1e30]),
        name=st.sampled_from(NAMES),
        stochastic=st.booleans(),
        key=keys,
    )
    def test_any_bits(
        self, isa: tuple[str, int], x: Tensor, scale: float, name: str, stochastic: bool, key: Tensor
    ) -> None:
        arguments = (x, torch.tensor(scale), str(FORMATS[name]), stochastic, key)
        with machine(*isa):
            native = torch.ops.lograd.quantize_codes.default(*arguments)
        assert_all_same_bits(native, plain("quantize_codes")(*arguments))

    @pytest.mark.parametrize("shape", [(0,), (1,), (2,), (7,), (3, 0), (0, 3), (5, 63), (5, 64), (301, 333), (70_001,)])
    def test_nibbles(self, isa: tuple[str, int], shape: tuple[int, ...]) -> None:
        codes = torch.randint(0, 16, shape, dtype=torch.uint8)
        with machine(*isa):
            both = ops.pack_nibbles(codes)
            again = ops.unpack_nibbles(both, shape[-1])
        assert both.shape == (*shape[:-1], (shape[-1] + 1) // 2)
        assert_same_bits(both, plain("pack_nibbles")(codes))
        assert_same_bits(again, plain("unpack_nibbles")(both, shape[-1]))
        assert_same_bits(again, codes)


def test_ties_of_the_upper_bits_are_settled_by_the_lower_ones() -> None:
    # 2^-16 of a step: the upper 16 bits decide nothing but whether the lower 32 are asked.
    x = torch.full((2**20,), 2.0**-17)
    arguments = (x, torch.tensor(1.0), "int4", True, torch.tensor([4, 0]))
    codes, _ = torch.ops.lograd.quantize_codes.default(*arguments)
    assert 0 < codes.sum() < 30  # 8 expected
    assert_same_bits(codes, plain("quantize_codes")(*arguments)[0])


def test_nan_is_counted_where_it_has_no_code() -> None:
    x = torch.tensor([math.nan, 1.0, 0.0, -math.nan, 100.0])
    codes, counts = ops.quantize_codes(x, FORMATS["e2m1"], counted=True)
    assert codes.tolist() == [0, 2, 0, 0, 7]
    assert counts.tolist() == [1, 2, 1]
    assert ops.quantize_codes(x, FORMATS["e4m3fn"]).tolist()[0] == 0x7F


def test_nibbles_of_strided_codes_and_half_of_the_last_byte() -> None:
    codes = torch.arange(12, dtype=torch.uint8).view(3, 4).T
    assert ops.pack_nibbles(codes).tolist() == [[0x40, 0x08], [0x51, 0x09], [0x62, 0x0A], [0x73, 0x0B]]
    assert_same_bits(ops.unpack_nibbles(ops.pack_nibbles(codes), 3), codes.contiguous())
    assert ops.unpack_nibbles(torch.tensor([0x21], dtype=torch.uint8)).tolist() == [1, 2]
