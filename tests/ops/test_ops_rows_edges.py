"""Integer gradient quantizers and LUQ at their edges: constant and empty tensors, extreme numbers, counts, seeds."""

from __future__ import annotations

import math

import pytest
import torch
from bands import assert_in_band
from rows import METHODS, TYPES, contents, same

from lograd import ops
from lograd.formats import FloatFormat


class TestEdges:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
    def test_constant_zero_one_and_empty(self, method, dtype, rounding):
        quantize, _ = METHODS[method]
        for shape in [(1, 1), (2, 1), (1, 5), (3, 4)]:
            zero = torch.zeros(shape, dtype=dtype)
            assert quantize(zero, 4, rounding).abs().max() <= 3e-8
            five = torch.full(shape, 5.0, dtype=dtype)
            assert torch.allclose(
                quantize(five, 4, rounding).float(), five.float(), rtol=1e-2 if dtype != torch.float32 else 1e-6
            )
        for shape in [(0, 3), (3, 0), (0, 0), (2, 0, 4)]:
            assert quantize(torch.zeros(shape, dtype=dtype), 4, rounding).shape == shape

    @pytest.mark.parametrize("bits", range(2, 9))
    def test_zeros_stay_zeros_per_tensor(self, bits):
        for kind in ("normal", "positive", "negative"):
            x = contents(kind, (7, 30), torch.float32, bits)
            x[:, ::3] = 0
            for result in (ops.quantize_per_tensor(x, bits), ops.quantize_interval(x, bits).result):
                assert (result[:, ::3] == 0).all()
                assert not torch.signbit(result[:, ::3]).any()

    @pytest.mark.parametrize("kind", ["normal", "positive", "negative", "rows"])
    @pytest.mark.parametrize("bits", [2, 3, 8])
    def test_per_tensor_covers_the_range(self, kind, bits):
        """Nothing is clipped, also where the paper's zero point is 0: an error is at most a step."""
        x = contents(kind, (20, 30), torch.float32, 6)
        x[0, 0] = -1e-3  # less than a step below zero
        packed = ops.pack_per_tensor(x, bits)
        assert (packed.decode() - x).abs().max() <= 1.00001 / packed.scale.item()
        nearest = ops.quantize_per_tensor(x, bits, "nearest")
        assert (nearest - x).abs().max() <= 0.50001 / packed.scale.item()

    def test_interval_gives_what_its_update_needs(self):
        x = contents("normal", (50, 60), torch.float32, 1)
        x[0, 0] = math.nan
        found = ops.quantize_interval(x, 4, 0.5, seed=1)
        largest = x[~x.isnan()].abs().max()
        clip = (0.5 * largest.double()).float()
        assert found.largest == largest
        assert found.share == (x.abs() > clip).double().mean()
        assert found.counts.tolist() == [int((found.result == 0).sum()), 1, int((x.abs() > clip).sum())]
        kept = found.result[~x.isnan()]
        assert kept.abs().max() <= clip * 1.000001
        assert len(kept.unique()) == 15
        assert ops.quantize_interval(x, 4, 1.0).share == 0
        assert torch.equal(
            ops.quantize_interval(x, 4, torch.tensor(0.5), seed=1).result.nan_to_num(9), found.result.nan_to_num(9)
        )

    def test_counted(self):
        x = contents("specials", (9, 80), torch.float32, 1)
        for quantize in (ops.quantize_per_tensor, ops.quantize_per_sample, ops.quantize_block_householder):
            result, (zeros, nans, saturated) = quantize(x, 4, counted=True)
            assert zeros == (result == 0).sum()
            assert nans == result.isnan().sum()
            assert saturated == x.isinf().sum()

    def test_seeds_and_offsets(self):
        x = contents("normal", (8, 100), torch.float32, 1)
        whole = ops.quantize_per_sample(x, 4, seed=7)
        same(
            torch.cat(
                [ops.quantize_per_sample(x[:3], 4, seed=7), ops.quantize_per_sample(x[3:], 4, seed=7, offset=300)]
            ),
            whole,
        )
        assert not torch.equal(whole, ops.quantize_per_sample(x, 4, seed=8))
        same(ops.quantize_per_sample(x, 4, seed=torch.tensor(7), offset=torch.tensor(0)), whole)


class TestLuq:
    @pytest.mark.parametrize("bits", range(2, 9))
    def test_magnitudes(self, bits):
        x = torch.randn(2000, generator=torch.Generator().manual_seed(1)) * 1e-3
        found = ops.luq(x, bits, seed=1)
        assert found.largest == x.abs().max()
        exponents = torch.log2(found.result[found.result != 0].abs().double() / found.largest.double())
        assert (exponents - exponents.round()).abs().max() < 1e-6
        assert exponents.round().min() >= -(2 ** (bits - 1) - 2)
        assert exponents.round().max() == 0
        if bits == 4:
            assert len(exponents.round().unique()) == 7

    def test_equals_the_definition(self):
        """Underflow by Eq. 5 and logarithmic rounding, written as the paper writes them."""
        x = torch.exp(3 * torch.randn(5000, generator=torch.Generator().manual_seed(1)))
        x *= 16 / x.max()  # a power of two, so that scaling is exact
        a = 16 / 2**6
        up = torch.zeros(5000)
        for seed in range(200):
            up += ops.luq(x, seed=seed).result
        power = torch.where(x < a, 0.0, 2 ** torch.floor(torch.log2(x / a)) * a)
        gap = torch.where(x < a, a, power)
        probability = (x - power) / gap
        found = (up / 200 - power) / gap
        assert_in_band(0.0, ((found - probability) / (probability * (1 - probability) / 200 + 1e-9).sqrt()).numpy())
        assert ((found == 0) | (probability > 0)).all()

    def test_edges(self):
        assert ops.luq(torch.zeros(3, 2)).result.tolist() == [[0, 0]] * 3
        assert ops.luq(torch.zeros(0)).largest == 0
        found = ops.luq(torch.tensor([math.nan, math.inf, -2.0, 0.0]))
        assert found.largest == 2
        assert found.result[0].isnan()
        assert found.result[1:].tolist() == [2, -2, 0]
        tiny = torch.full((4000,), 1e-41)
        mean = torch.stack([ops.luq(tiny, seed=seed).result.double().mean() for seed in range(50)])
        assert_in_band(1e-41, mean.numpy(), slack=1e-43)
        for dtype in TYPES:
            x = contents("rows", (4, 3, 5, 5), dtype, 1).to(memory_format=torch.channels_last)
            found = ops.luq(x)
            assert found.result.dtype == dtype
            assert found.result.stride() == x.stride()
            scale = FloatFormat(3, 0).max / x.float().abs().max()
            same(found.result, ops.quantize(x, FloatFormat(3, 0), scale, "stochastic"))
