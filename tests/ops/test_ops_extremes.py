"""Every native kernel against its definition over all exponents: subnormals, the largest numbers, infinities and NaN.

Bits are compared, those of NaN included, for every instruction set that this CPU has.
"""

from __future__ import annotations

import pytest
import torch
from bands import assert_in_band
from bits import assert_all_same_bits, assert_same_bits, compiled, machine, plain
from torch import Tensor

from lograd import FloatFormat, IntFormat, ops
from lograd.formats import CATALOGUE
from lograd.ops import elementwise as reference
from lograd.ops.affine import largest_and_scale
from lograd.ops.elementwise import arguments_of, grid_of
from lograd.ops.layouts import in_type

TYPES = [torch.float32, torch.bfloat16, torch.float16]
SETS = ["generic", "avx2", "avx512"]
KEY = torch.tensor([3, 5])
NUMBERS = [2.0**e for e in (-149, -140, -127, -126, -104, -101, -60, 0, 60, 100, 103, 126, 127)]
NUMBERS += [3e-39, 1e-30, 0.37, 2.6e38, 3.4028234663852886e38]
FORMATS = [FloatFormat(4, 3), FloatFormat(3, 0), FloatFormat(1, 0), FloatFormat(7, 0), IntFormat(4)]


def every_exponent(dtype: torch.dtype) -> Tensor:
    """Numbers of both signs in all binades, with the ends, the middle and odd bits of the mantissa; infinities; NaN."""
    bits, word, size = (23, torch.int32, 32) if dtype == torch.float32 else (10, torch.int16, 16)
    bits = 7 if dtype == torch.bfloat16 else bits
    ones = 2**bits - 1
    mantissas = torch.tensor([0, 1, 2, ones // 2, ones // 2 + 1, ones // 3, ones - 1, ones])
    words = ((torch.arange(2 ** (size - 1 - bits)) << bits)[:, None] | mantissas).flatten()
    words = torch.cat([words, words - 2 ** (size - 1)])
    return words.to(word).view(dtype)


@pytest.fixture(params=SETS)
def isa(request):
    with machine(request.param, 1):
        yield request.param


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_single_elements(isa: str, dtype: torch.dtype) -> None:
    x = every_exponent(dtype)
    for number in NUMBERS:
        value = torch.tensor(number)
        for name, arguments, expected in (
            ("stochastic_prune", (value, KEY), reference._stochastic_prune(x.float(), value, KEY)),
            ("threshold_prune", (value,), reference._threshold_prune(x.float(), value)),
            ("dither", (value, KEY), reference._dither(x.float(), value, KEY)),
        ):
            found = getattr(torch.ops.lograd, name).default(x, *arguments, False)[0]
            assert_same_bits(found, in_type(expected[0], dtype))


@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_formats(isa: str, dtype: torch.dtype, format: FloatFormat | IntFormat, stochastic: bool) -> None:
    x, every_code = every_exponent(dtype), torch.arange(256).to(torch.uint8)
    for number in NUMBERS:
        scale = torch.tensor(number)
        expected, clipped = reference.round_to_grid(x.float(), scale, grid_of(format), stochastic, KEY)
        found, counts = torch.ops.lograd.quantize.default(x, scale, *arguments_of(format), stochastic, KEY, True)
        assert_same_bits(found, in_type(expected, dtype))
        assert counts.tolist()[1:3] == [int(expected.isnan().sum()), int(clipped)]
        coded = (scale, str(format), stochastic, KEY)
        assert_all_same_bits(compiled("quantize_codes")(x, *coded), plain("quantize_codes")(x, *coded))
        back = (scale, str(format), dtype)
        assert_same_bits(compiled("dequantize_codes")(every_code, *back), plain("dequantize_codes")(every_code, *back))


def magnitudes(dtype: torch.dtype, exponent: int, seed: int = 0) -> Tensor:
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(seed)).double() * 2.0**exponent
    ends = torch.finfo(dtype).max
    return x.clamp(-ends, ends).to(dtype)


def luq(x: Tensor, bits: int, stochastic: bool) -> Tensor:
    """The definition of `ops.luq`."""
    format = FloatFormat(bits - 1, 0)
    scale = largest_and_scale(x, format.max)[1]
    result, _ = reference.round_to_grid(x.flatten().float(), scale, grid_of(format), stochastic, KEY)
    return in_type(result, x.dtype).view_as(x)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_luq(isa: str, dtype: torch.dtype) -> None:
    for exponent in (*range(-149, -120, 3), -60, 0, 60, *range(118, 129)):
        x = magnitudes(dtype, exponent)
        for bits in (2, 4, 8):
            for rounding in ("nearest", "stochastic"):
                found = ops.luq(x, bits, 3, 5, rounding=rounding)
                assert_same_bits(found.result, luq(x, bits, rounding == "stochastic"))
                assert found.result.isfinite().all()


@pytest.mark.parametrize("name", ["per_tensor", "per_sample", "block_householder", "interval"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows(isa: str, dtype: torch.dtype, name: str) -> None:
    extra = (torch.tensor(0.4, dtype=torch.float64),) if name == "interval" else ()
    for exponent in (*range(-149, -120, 4), -30, 0, 60, *range(122, 129)):
        x = magnitudes(dtype, exponent)
        x[1], x[2] = 0.0, x[2, 0]
        for bits, stochastic, coded in ((2, True, False), (8, True, True), (4, False, False), (2, False, True)):
            arguments = (x, *extra, bits, stochastic, coded, KEY)
            results = compiled(f"quantize_{name}")(*arguments)
            assert_all_same_bits(results, plain(f"quantize_{name}")(*arguments))
            if not coded and name != "block_householder":
                assert results[0].isfinite().all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_blocks_and_transforms(isa: str, dtype: torch.dtype) -> None:
    for exponent in (*range(-149, -120, 4), 0, *range(122, 129)):
        x = magnitudes(dtype, exponent)
        for format, stochastic, unbiased in (("mxfp4", True, True), ("mxfp8", False, False), ("nvfp4", True, False)):
            for number in (1.0, 0.37, 1e-40, 3e38):
                arguments = (torch.tensor(number), str(CATALOGUE[format]), stochastic, unbiased, KEY)
                for name in ("quantize_blocks", "quantize_block_codes"):
                    assert_all_same_bits(compiled(name)(x, *arguments), plain(name)(x, *arguments))
        for size in (16, 64):
            arguments = (x, size, KEY, False)
            assert_same_bits(compiled("hadamard")(*arguments), plain("hadamard")(*arguments))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_statistics(isa: str, dtype: torch.dtype) -> None:
    x = every_exponent(dtype)
    for k in (1, 2, 40, x.numel() // 2, x.numel()):
        assert_same_bits(compiled("kth_magnitude")(x, k), plain("kth_magnitude")(x, k))
    assert_same_bits(compiled("log_histogram")(x, 1), plain("log_histogram")(x, 1))


# ------------------------------------------------------------------------------------------- ranges far from one


QUANTIZERS = {
    "per tensor": ops.quantize_per_tensor,
    "per sample": ops.quantize_per_sample,
    "block Householder": ops.quantize_block_householder,
}


@pytest.mark.parametrize("exponent", [-100, -60, -27, 0, 60, 100])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_power_of_two_changes_no_digit(name: str, exponent: int) -> None:
    """A gradient of 1e-30 is treated as one of 1 is: ranges are widened by a share of themselves."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    x[3] *= 1e-3
    expected = QUANTIZERS[name](x, 4, seed=2)
    assert torch.equal(QUANTIZERS[name](x * 2.0**exponent, 4, seed=2), expected * 2.0**exponent)


@pytest.mark.parametrize("value", [0.0, 1e-45, -1e-40, 1e-30, -7.25, 3.4028234663852886e38])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_constant_rows_stay_what_they_are(dtype: torch.dtype, value: float) -> None:
    ends = torch.finfo(dtype).max
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[1] = min(value, ends)
    for rounding in ("nearest", "stochastic"):
        assert_same_bits(ops.quantize_per_sample(x, 4, rounding, 3)[1], x[1] + 0.0)
    zeros = torch.zeros(4, 33, dtype=dtype)
    for quantize in QUANTIZERS.values():
        assert_same_bits(quantize(zeros, 4, seed=1), zeros)


@pytest.mark.parametrize("size", [1e-30, 1e-36])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_small_gradients_are_unbiased(name: str, size: float) -> None:
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(1)) * size
    sides = torch.stack([torch.ones(x.shape), x.sign(), torch.randn(x.shape)]).double()
    errors = [QUANTIZERS[name](x, 4, seed=seed).double() - x.double() for seed in range(400)]
    found = torch.stack([(sides * error).sum((1, 2)) for error in errors]) / size
    for side in range(len(sides)):
        assert_in_band(0.0, found[:, side].numpy(), slack=1e-4)
    assert found.std() > 0.05
