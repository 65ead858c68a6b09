"""Block formats: native against plain PyTorch, both against BlockFormat and gfloat; what is unbiased, what is not."""

from __future__ import annotations

import math

import gfloat
import numpy as np
import pytest
import torch
from bands import assert_in_band
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
)
from gfloat import formats as gfloat_formats
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lograd import ops
from lograd.formats import BlockFormat, parse_format
from lograd.ops.random import uniform

NAMES = ["mxfp8-e5m2", "mxfp8", "mxfp6-e2m3", "mxfp6", "mxfp4", "nvfp4"]
OTHERS = ["int8/32/e8m0", "int4/10/e8m0", "e4m3fnuz/7/e4m3fn", "1-2-1/300/e8m0", "1-3-0/128/e4m3fn", "1-2-1/1/0-5-3:fn"]
FORMATS: dict[str, BlockFormat] = {name: parse_format(name) for name in NAMES + OTHERS}  # type: ignore[misc]
WAYS = [(False, False), (True, False), (True, True)]
"""(stochastic, unbiased)"""


def served(format: BlockFormat, unbiased: bool) -> bool:
    fraction = math.frexp(format.element.max)[0]
    return not unbiased or (format.scale.mantissa == 0 and fraction >= 0.75)


def text(format: BlockFormat) -> str:
    return str(format)


@pytest.mark.parametrize("isa", MACHINES, ids=str)
class TestNativeEqualsPlain:
    @given(
        x=any_bits(400, rows=3), name=st.sampled_from(list(FORMATS)), way=st.sampled_from(WAYS),
        tensor_scale=st.sampled_from([1.0, 0.37, 2.0**-30]), key=keys,
    )  # fmt: skip
    def test_any_bits(
        self, isa: tuple[str, int], x: Tensor, name: str, way: tuple[bool, bool], tensor_scale: float, key: Tensor
    ) -> None:
        if not served(FORMATS[name], way[1]):
            return
        arguments = (x, torch.tensor(tensor_scale), text(FORMATS[name]), *way, key)
        with machine(*isa):
            values = torch.ops.lograd.quantize_blocks.default(*arguments)
            codes = torch.ops.lograd.quantize_block_codes.default(*arguments)
            decode = (*codes[:2], *arguments[1:3], way[1], x.dtype)
            decoded = torch.ops.lograd.dequantize_block_codes.default(*decode)
        assert_all_same_bits(values, plain("quantize_blocks")(*arguments))
        assert_all_same_bits(codes, plain("quantize_block_codes")(*arguments))
        assert_same_bits(decoded, plain("dequantize_block_codes")(*decode))
        assert_same_bits(decoded, values[0])

    @pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4/10/e8m0", "1-2-1/300/e8m0"])
    @pytest.mark.parametrize("shape", [(600, 129), (1, 80_000), (1500, 64), (20_000, 4)], ids=str)
    def test_many_rows_and_threads(self, isa: tuple[str, int], shape: tuple[int, int], name: str) -> None:
        x = awkward(shape, torch.float32)
        arguments = (x, torch.tensor(1.0), text(FORMATS[name]), True, False, torch.tensor([9, 5]))
        with machine(*isa):
            values = torch.ops.lograd.quantize_blocks.default(*arguments)
            codes = torch.ops.lograd.quantize_block_codes.default(*arguments)
        assert_all_same_bits(values, plain("quantize_blocks")(*arguments))
        assert_all_same_bits(codes, plain("quantize_block_codes")(*arguments))

    def test_large_outputs(self, isa: tuple[str, int]) -> None:
        # Beyond 4 MB results are written past the cache.
        x = awkward((1025, 1024), torch.float32)
        arguments = (x, torch.tensor(1.0), text(FORMATS["mxfp4"]), False, False, torch.tensor([9, 5]))
        with machine(*isa):
            values = torch.ops.lograd.quantize_blocks.default(*arguments)
        assert_all_same_bits(values, plain("quantize_blocks")(*arguments))


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_block_is_that_of_the_scalar_format(name: str, rounding: str) -> None:
    format = FORMATS[name]
    size, columns = format.size, 2 * format.size + format.size // 2 + 1
    rows = max(4, 800 // columns)
    magnitudes = torch.logspace(-44, 37, rows)[:, None]
    x = awkward((rows, columns), torch.float32, seed=1, spread=1.0)
    x = torch.where(torch.arange(rows)[:, None] % 2 == 0, x, (x.clamp(-9, 9) * magnitudes))
    x[1] = -0.0
    result = ops.quantize_blocks(x, format, rounding, seed=3, offset=8)
    coded, counts = ops.quantize_block_codes(x, format, rounding, seed=3, offset=8, counted=True)
    codes, scales = coded.codes, coded.block_scales
    draws = uniform(x.numel(), torch.tensor([3, 8])).view(rows, columns)
    nans, largest = 0, torch.finfo(torch.float32).max
    for row in range(rows):
        for index in range(0, columns, size):
            part = slice(index, min(index + size, columns))
            block, uniforms = x[row, part].tolist(), draws[row, part].tolist()
            expected = torch.tensor(format.round(block, rounding, uniforms=uniforms), dtype=torch.float64)
            # -8 of int4 may lie at -2^128, which float32 does not have.
            expected = expected.clamp(-largest, largest).masked_fill(expected.isnan(), math.nan).float()
            nans += int(expected.isnan().sum())
            assert_same_bits(result[row, part], expected)
            scale, elements = format.encode(block, rounding, uniforms=uniforms)
            assert scales[row, index // size] == scale
            assert codes[row, part].tolist() == elements
    assert counts[1] == nans


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("mxfp8-e5m2", gfloat_formats.format_info_mxfp8_e5m2), ("mxfp8", gfloat_formats.format_info_mxfp8_e4m3),
        ("mxfp6", gfloat_formats.format_info_mxfp6_e3m2), ("mxfp6-e2m3", gfloat_formats.format_info_mxfp6_e2m3),
        ("mxfp4", gfloat_formats.format_info_mxfp4_e2m1),
    ],
)  # fmt: skip
def test_mx_blocks_are_those_of_gfloat(name: str, theirs: gfloat.BlockFormatInfo) -> None:
    x = torch.randn(20, 32) * torch.exp(torch.randn(20, 32)) * torch.logspace(-30, 30, 20)[:, None]
    result = ops.quantize_blocks(x, FORMATS[name])
    for row in range(20):
        expected = gfloat.quantize_block(theirs, x[row].double().numpy(), gfloat.compute_scale_amax)
        assert np.array_equal(result[row].double().numpy(), expected)


class TestUnbiased:
    """Each row draws its own numbers, so the mean over rows estimates the expectation."""

    ROWS = 4000
    # The largest element lies at 1.9 times its power of two: beyond 6 in units of the scale for E2M1.
    BLOCK = torch.tensor([7.6, -7.1, 6.3, 5.2, -3.3, 1.9, 0.7, -0.2, 0.02, 0.01]).repeat(3)

    def rounded(self, name: str, variant: str, seed: int, factor: float) -> tuple[Tensor, Tensor]:
        x = self.BLOCK * factor
        rows = x.expand(self.ROWS, -1)
        return x, ops.quantize_blocks(rows, FORMATS[name], "stochastic", variant, seed=seed)

    @pytest.mark.parametrize("factor", [1.0, 1.7 * 2.0**-100, 1.3e30])
    @pytest.mark.parametrize("name", ["mxfp8-e5m2", "mxfp8", "mxfp6-e2m3", "mxfp6", "mxfp4", "int8/32/e8m0"])
    def test_three_quarters_make_stochastic_rounding_unbiased(self, name: str, factor: float) -> None:
        for seed in range(3):
            x, y = self.rounded(name, "unbiased", seed, factor)
            scale = FORMATS[name].scale_of(x.tolist())
            z = 0.75 * x.double().numpy() / scale
            values = FORMATS[name].element.values()
            above = np.searchsorted(values, z, side="right")
            # The known variance: a sample has none where an element lies so near a value that it never went elsewhere.
            deviation = np.sqrt((z - values[above - 1]) * (values[above] - z) / self.ROWS)
            error = np.abs(0.75 * y.double().numpy().mean(0) / scale - z)
            # float32 rounds 3/4 x and 4/3 of the result: a bias of 2^-23 at most.
            assert (error <= 4 * deviation + 2.0**-23 * np.abs(z)).all()

    def test_very_small_elements_beside_a_large_one(self) -> None:
        x = torch.full((8000, 32), 2.0**-12)
        x[:, 0] = 7.6
        y = ops.quantize_blocks(x, FORMATS["mxfp4"], "stochastic", "unbiased", seed=1)[:, 1:]
        assert_in_band(2.0**-12, y.double().flatten().numpy())

    def test_without_them_the_largest_are_cut_off(self) -> None:
        x, y = self.rounded("mxfp4", "standard", 0, 1.0)
        assert y[:, 0].unique().tolist() == [6.0]  # 7.6
        assert y[:, 1].unique().tolist() == [-6.0]  # -7.1
        inside = x.abs() <= 6
        for i in inside.nonzero().flatten().tolist():
            assert_in_band(float(x[i]), y[:, i].double().numpy(), f"{i}")
        counts = ops.quantize_blocks(x, FORMATS["mxfp4"], "stochastic", counted=True).counts
        assert counts[2] == (~inside).sum()
        assert ops.quantize_blocks(x, FORMATS["mxfp4"], "stochastic", "unbiased", counted=True).counts[2] == 0

    def test_nvfp4_is_unbiased_where_its_scale_was_not_rounded_down(self) -> None:
        x = torch.tensor([6.0, -5.1, 3.7, 2.2, 1.1, 0.3, -0.1, 0.01])  # scale 1
        y = ops.quantize_blocks(x.expand(self.ROWS, -1), FORMATS["nvfp4"], "stochastic", seed=5)
        for i in range(len(x)):
            assert_in_band(float(x[i]), y[:, i].double().numpy(), f"{i}")


def test_a_block_with_nan_or_infinity_is_nan_and_its_neighbours_are_not() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(2, 70)
        x[0, 40] = bad
        result, counts = ops.quantize_blocks(x, FORMATS["mxfp4"], counted=True)
        expected = torch.ones(2, 70)
        expected[0, 32:64] = math.nan
        assert_same_bits(result, expected)
        assert counts.tolist() == [0, 32, 0]
        coded, counts = ops.quantize_block_codes(x, FORMATS["mxfp4"], counted=True)
        codes, scales = coded.codes, coded.block_scales
        assert scales.tolist() == [[125, 255, 125], [125, 125, 125]]
        assert counts.tolist() == [0, 32, 0]
        assert_same_bits(ops.dequantize_block_codes(codes, scales, FORMATS["mxfp4"]), expected)
        assert_same_bits(coded.decode(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_finite_stays_finite(dtype: torch.dtype) -> None:
    x = torch.full((64, 32), torch.finfo(dtype).max, dtype=dtype)
    for name in NAMES:
        for variant in ("standard", "unbiased")[: 1 if name == "nvfp4" else 2]:
            y = ops.quantize_blocks(x, FORMATS[name], "stochastic", variant)
            assert y.isfinite().all()


def test_the_scale_per_tensor() -> None:
    x = torch.randn(64, 64) * 1e-6
    format = FORMATS["nvfp4"]
    assert (ops.quantize_blocks(x, format) == 0).all()  # below what E4M3 scales reach
    t = ops.tensor_scale_of(x, format)
    assert t == x.abs().max() / 2688
    coded = ops.quantize_block_codes(x, format, tensor_scale=t)
    codes, scales = coded.codes, coded.block_scales
    assert scales.max() == format.scale.encode(448.0)
    y = ops.dequantize_block_codes(codes, scales, format, tensor_scale=t)
    assert_same_bits(y, ops.quantize_blocks(x, format, tensor_scale=t))
    assert (y - x).norm() < 0.12 * x.norm()
    assert ops.tensor_scale_of(torch.zeros(3), format) == 1
    assert ops.tensor_scale_of(torch.zeros(0), format) == 1
    assert ops.tensor_scale_of(torch.tensor([math.nan, math.inf, -2688.0]), format) == 1
    assert ops.tensor_scale_of(torch.tensor([1e-44]), format) == 2.0**-126


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (), (1,), (2, 3, 0)], ids=str)
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, -3.2)
    coded, counts = ops.quantize_block_codes(x, FORMATS["mxfp4"], counted=True)
    codes, scales = coded.codes, coded.block_scales
    assert codes.shape == shape
    assert scales.shape == (*shape[:-1], -(-shape[-1] // 32) if shape else 1)
    assert counts.tolist() == [0, 0, x.numel()]  # 3.2 is 6.4 in units of its scale
    expected = torch.full(shape, -3.0)
    assert_same_bits(ops.quantize_blocks(x, FORMATS["mxfp4"]), expected)
    assert_same_bits(ops.dequantize_block_codes(codes, scales, FORMATS["mxfp4"]), expected)
