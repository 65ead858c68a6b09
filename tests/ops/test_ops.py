"""Operators: native equals plain PyTorch bit for bit, both equal the scalar definition, and all are unbiased."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from bands import assert_in_band
from bits import awkward, machine
from rows import same

from lograd import FloatFormat, IntFormat, ops, parse_format
from lograd.formats import CATALOGUE
from lograd.ops import elementwise as reference
from lograd.ops.elementwise import grid_of
from lograd.ops.layouts import in_type
from lograd.ops.random import uniform

FORMATS = [FloatFormat(e, m) for e in range(1, 8) for m in range(7) if 1 + e + m <= 8]
FORMATS += [IntFormat(bits) for bits in range(2, 9)] + [IntFormat(4, symmetric=True)]
FORMATS += [CATALOGUE[name] for name in ("e5m2", "e4m3fn", "e4m3", "e3m4", "e5m2fnuz", "e4m3b11fnuz")]
TYPES = [torch.float32, torch.bfloat16, torch.float16]
SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 2**40 + 3
KEY = torch.tensor([SEED, OFFSET])
SPECIAL = [0.0, -0.0, 1e-45, -1e-42, 1e-38, 3e38, -3e38, math.inf, -math.inf, math.nan, 0.5, -1.5, 1.0, 2.5, 65519.9]


def quantize_case(format, rounding, scale):
    arguments = (torch.tensor(scale), grid_of(format), rounding == "stochastic", KEY)
    return (
        f"{format} {rounding} {scale}",
        lambda x: ops.quantize(x, format, scale, rounding, SEED, OFFSET),
        lambda x: reference.round_to_grid(x, *arguments),
    )


def cases():
    """(name, operator, plain PyTorch) of everything elementwise, on flat tensors."""
    a, t, d = torch.tensor(1.7), torch.tensor(0.6), torch.tensor(0.3)
    return [
        ("prune", lambda x: ops.stochastic_prune(x, a, SEED, OFFSET), lambda x: reference._stochastic_prune(x, a, KEY)),
        ("threshold", lambda x: ops.threshold_prune(x, t), lambda x: reference._threshold_prune(x, t)),
        ("dither", lambda x: ops.dither(x, d, SEED, OFFSET), lambda x: reference._dither(x, d, KEY)),
        *(quantize_case(f, r, s) for f in FORMATS for r in ("nearest", "stochastic") for s in (1.0, 0.37)),
    ]


CASES = cases()
BASIC = CASES[:3] + [CASES[i] for i in range(3, len(CASES), 17)]


@pytest.fixture(params=["generic", "avx2", "avx512"])
def isa(request):
    with machine(request.param, 1):
        yield request.param


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_native_equals_plain_pytorch(isa, dtype):
    x = awkward((3000,), dtype)
    for name, operator, plain in CASES:
        same(operator(x), in_type(plain(x.float())[0], dtype), (isa, name))


@pytest.mark.parametrize(
    "count", [0, 1, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 1023, 1024, 1025, 100_003]
)
def test_every_size_and_any_number_of_threads(isa, count):
    x = awkward((count,), torch.float32)
    threads = torch.get_num_threads()
    try:
        for name, operator, plain in BASIC:
            torch.set_num_threads(1)
            one = operator(x)
            same(one, plain(x)[0], (isa, name))
            for more in (2, 3):
                torch.set_num_threads(more)
                same(operator(x), one, (isa, name, more))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_any_layout_is_taken_and_dense_ones_are_kept(dtype):
    x = awkward((2, 3, 8, 5), dtype)
    channels_last = x.to(memory_format=torch.channels_last)
    for _, operator, _ in BASIC:
        kept = operator(channels_last)
        assert kept.stride() == channels_last.stride()
        in_memory = channels_last.permute(0, 2, 3, 1)
        same(kept.permute(0, 2, 3, 1), operator(in_memory.reshape(-1)).reshape(in_memory.shape))
        for gaps in (x[:, ::2], x[..., 1:], x.expand(2, 2, 3, 8, 5)):
            same(operator(gaps), operator(gaps.contiguous()))
        assert operator(x.transpose(0, 3)).stride() == x.transpose(0, 3).stride()


def test_a_result_depends_on_the_position_alone():
    """Pieces with the right offset give the bits of the whole, so chunks, ranks and resumed runs agree."""
    x = awkward((10_000,), torch.float32).nan_to_num(1.0)
    for name, whole in (
        ("prune", lambda x, offset: ops.stochastic_prune(x, 1.0, 3, offset)),
        ("dither", lambda x, offset: ops.dither(x, 0.5, 3, offset)),
        ("quantize", lambda x, offset: ops.quantize(x, FloatFormat(3, 2), 1.0, "stochastic", 3, offset)),
    ):
        expected = whole(x, 77)
        for cut in (1, 7, 8, 1000, 4097):
            pieces = [whole(x[:cut].clone(), 77), whole(x[cut:].clone(), 77 + cut)]
            same(torch.cat(pieces), expected, (name, cut))
        assert not torch.equal(whole(x, 78), expected)


# -- against what we did not write --


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_quantize_equals_the_scalar_reference(format):
    values = format.values().astype(np.float32)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, values * 1.3, SPECIAL]).astype(np.float32)
    points = np.concatenate(
        [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    )
    x = torch.from_numpy(points)
    draws = uniform(x.numel(), KEY).tolist()
    for rounding in ("nearest", "stochastic"):
        expected = [format.round(v, rounding, uniform=u) for v, u in zip(points.tolist(), draws, strict=True)]
        ours = ops.quantize(x, format, 1.0, rounding, SEED, OFFSET)
        expected = torch.tensor(expected)
        if isinstance(format, IntFormat) or format.specials == "fnuz":
            ours, expected = ours + 0.0, expected + 0.0  # there -0 is 0; a float32 result may keep the sign
        same(ours, expected, rounding)


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m4", "e4m3", "e5m2fnuz", "e4m3b11fnuz", "e3m2", "e2m3", "e2m1"])
def test_nearest_equals_ml_dtypes_and_torch_casts(name):
    format = parse_format(name)
    dtype = {"e3m2": "float6_e3m2fn", "e2m3": "float6_e2m3fn", "e2m1": "float4_e2m1fn"}.get(name, f"float8_{name}")
    x = awkward((20_000,), torch.float32)
    x = x[x.abs() <= format.max]
    theirs = torch.from_numpy(x.numpy().astype(getattr(ml_dtypes, dtype)).astype(np.float32))
    assert torch.equal(ops.quantize(x, format), theirs)
    if hasattr(torch, dtype) and "float8" in dtype:
        assert torch.equal(ops.quantize(x, format), x.to(getattr(torch, dtype)).float())


def test_zeros_nan_and_saturation_are_counted():
    x = torch.tensor([0.0, math.nan, 1e9, -1e9, math.inf, 1.0, 1e-9])
    result, counts = ops.quantize(x, FloatFormat(4, 3), counted=True)
    assert counts.tolist() == [2, 1, 3, 1]
    assert result[1].isnan()
    result, counts = ops.stochastic_prune(x, 2.0, counted=True)
    assert counts.tolist() == [int((result == 0).sum()), 1, 0, 1]
    assert result[2:5].tolist() == x[2:5].tolist()
    assert ops.dither(x, 0.5, counted=True).counts[3] == 1


# -- unbiased --


@pytest.mark.parametrize("x", [0.9, 0.3, -1e-3, 1e-5, -3e-6])
def test_pruning_is_unbiased(x):
    draws = torch.cat([ops.stochastic_prune(torch.full((1_000_000,), x), 1.0, seed) for seed in range(4)])
    assert set(draws.unique().tolist()) <= {0.0, math.copysign(1.0, x)}
    assert_in_band(x, draws.numpy())


def test_pruning_is_unbiased_far_below_the_upper_16_bits():
    """2^-20 of the threshold: the upper 16 bits alone would never keep it."""
    kept = sum(
        int((ops.stochastic_prune(torch.full((4_000_000,), 2.0**-20), 1.0, seed) != 0).sum()) for seed in range(8)
    )
    expected = 32e6 * 2.0**-20
    assert abs(kept - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("format", [FloatFormat(4, 1), FloatFormat(3, 0), FloatFormat(2, 3), IntFormat(4)], ids=str)
def test_stochastic_rounding_is_unbiased(format):
    for x in (0.013, 0.3, 1.1, -2.3, 5.9, 1e-4):
        draws = torch.cat(
            [ops.quantize(torch.full((300_000,), x), format, 1.0, "stochastic", seed) for seed in range(3)]
        )
        assert_in_band(np.float32(x), draws.double().numpy(), f"{format} {x}", slack=1e-7)
        assert_in_band(np.float32(x), ops.dither(torch.full((300_000,), x), 0.7, 4).double().numpy(), slack=1e-7)


# -- torch's own machinery --


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_compiled_code_gives_the_same_bits_and_does_not_recompile():
    format = FloatFormat(4, 1)

    def step(x, threshold, seed):
        y = ops.stochastic_prune(x, threshold, seed)
        y = ops.quantize(y, format, 2.0, "stochastic", seed, 11)
        return ops.dither(y * 2, 0.3, 5, 6) + ops.threshold_prune(x, 0.1)

    compiled = torch.compile(step, fullgraph=True)
    x = awkward((1000,), torch.float32)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in range(3):
            threshold, seed = torch.tensor(0.5 + number), torch.tensor(number)
            same(compiled(x, threshold, seed), step(x, threshold, seed))
