"""The quantizer of integer products: native equals plain bit for bit, codes decode to what is promised, no bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bands import assert_in_band
from bits import (
    DTYPES,
    any_bits,
    assert_all_same_bits,
    assert_same_bits,
    awkward,
    compiled,
    keys,
    layouts,
    machine,
    plain,
)
from everyday import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lograd import ops
from lograd.ops.coded import Folded

SETS = [("generic", 1), ("avx2", 1), ("avx2", 3), ("avx512", 1), ("avx512", 2), ("avx512", 3)]
"""Instruction sets and threads."""


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    """Arguments of the operator: any shape and layout, with NaN and infinities or without, folded or not."""
    dims = draw(st.integers(0, 5))
    sizes = st.one_of(st.integers(0, 4), st.sampled_from([7, 9, 16, 17, 33]))
    shape = draw(st.lists(sizes, min_size=dims, max_size=dims))
    count = math.prod(shape)
    while count > 20000:
        shape[shape.index(max(shape))] = 2
        count = math.prod(shape)
    x = awkward(tuple(shape), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 9)), draw(st.sampled_from([0.5, 3.0])))
    if draw(st.booleans()):
        x = x.nan_to_num(0.25, 3.0, -3.0)
    if draw(st.booleans()):
        x = x.abs()
    order = draw(st.permutations(range(dims)))
    x = x.permute(order).contiguous().permute([order.index(dim) for dim in range(dims)])
    if dims and draw(st.booleans()):
        x = x[..., ::2]
    per_channel = bool(dims) and draw(st.booleans())
    rows = x.shape[0] if per_channel else 1
    limits = (
        torch.randn(2, rows).sort(0).values * draw(st.sampled_from([1e-3, 1.0, 1e3, 3e38]))
        if draw(st.booleans())
        else None
    )
    fold_dim = draw(st.integers(0, dims - 1)) if dims else 0
    fold = torch.rand(x.shape[fold_dim]) + 0.25 if dims and draw(st.booleans()) else None
    return (
        x,
        limits,
        fold,
        fold_dim,
        draw(st.integers(2, 8)),
        per_channel,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(keys),
        draw(st.booleans()),
    )


@pytest.mark.parametrize(("isa", "threads"), SETS)
class TestNativeEqualsPlain:
    @given(case=cases())
    @settings(max_examples=60)
    def test_any_tensor(self, isa: str, threads: int, case: tuple[Any, ...]) -> None:
        with machine(isa, threads):
            assert_all_same_bits(compiled("integer_codes")(*case), plain("integer_codes")(*case))

    @given(x=any_bits(most=700), key=keys, bits=st.integers(2, 8), symmetric=st.booleans(), stochastic=st.booleans())
    @settings(max_examples=30)
    def test_any_bits(
        self, isa: str, threads: int, x: Tensor, key: Tensor, bits: int, symmetric: bool, stochastic: bool
    ) -> None:
        for limits in (None, torch.tensor([-1.0, 2.0])):
            case = (x, limits, None, 0, bits, False, symmetric, stochastic, key, bits % 2 == 0)
            with machine(isa, threads):
                assert_all_same_bits(compiled("integer_codes")(*case), plain("integer_codes")(*case))

    @pytest.mark.parametrize("stochastic", daily([False, True], [True]))
    @pytest.mark.parametrize(
        "shape",
        [
            (300, 517),
            (9, 520, 7, 7),
            *(pytest.param(one, marks=pytest.mark.slow) for one in [(3, 70, 33, 31), (2, 5, 130, 129), (170001,)]),
        ],
        ids=str,
    )
    def test_large_tensors(self, isa: str, threads: int, shape: tuple[int, ...], stochastic: bool) -> None:
        """Each thread has a part; planes are turned in blocks; the sums of the threads meet."""
        x = awkward(shape, torch.float32, spread=1.0).nan_to_num(0.5, 3.0, -3.0).clamp(-1e4, 1e4)
        fold = torch.rand(shape[1]) + 0.5 if len(shape) > 1 else None
        key = torch.tensor([5, 3])
        laid = [x, *([x.to(memory_format=torch.channels_last)] if len(shape) == 4 else [])]
        for each in [*laid, *([x.t().contiguous().t()] if len(shape) == 2 else [])]:
            for limits in (None, torch.tensor([-2.0, 3.0])):
                for per_channel in (False, True) if limits is None and len(shape) > 1 else (False,):
                    case = (each, limits, fold, 1, 5, per_channel, False, stochastic, key)
                    with machine(isa, threads):
                        assert_all_same_bits(compiled("integer_codes")(*case), plain("integer_codes")(*case))

    def test_back_to_numbers(self, isa: str, threads: int) -> None:
        codes = torch.randint(0, 256, (6, 5, 7, 9), dtype=torch.uint8)
        for each in layouts(codes).values():
            for scale in (torch.tensor([0.3]), torch.tensor([0.3, 1e30, math.nan, 1e-38, 2.0, 0.0])):
                for dtype in DTYPES:
                    zero = torch.full_like(scale, 17.0)
                    with machine(isa, threads):
                        found = compiled("dequantize_levels")(each, scale, zero, dtype)
                    assert_same_bits(found, plain("dequantize_levels")(each, scale, zero, dtype))


# ---------------------------------------------------------------------------------------------------------- definition


def finite(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return awkward(shape, dtype, seed, spread=1.0).nan_to_num(0.25, 3.0, -3.0).clamp(-1e3, 1e3)


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
def test_nearest_is_within_half_a_step(bits: int, symmetric: bool, per: Any) -> None:
    for x in (finite((7, 31)), finite((7, 31)).abs(), -finite((7, 31)).abs()):
        coded = ops.pack_integers(x, bits, per=per, symmetric=symmetric)
        assert coded.scale.numel() == coded.zero.numel() == (7 if per == "channel" else 1)
        assert int(coded.codes.max()) <= 2**bits - (2 if symmetric else 1)
        error = (coded.decode().double() - x.double()).abs() * coded.scale.double()[:, None]
        assert float(error.max()) <= 0.5 * (1 + 1e-4)
        assert bool((coded.decode()[x == 0] == 0).all())
        if symmetric:
            assert bool((coded.zero == 2 ** (bits - 1) - 1).all())
        elif float(x.min()) >= 0:
            assert bool((coded.zero == 0).all())


@given(bits=st.integers(2, 8), low=st.floats(-100.0, -(2.0**-10), width=32), high=st.floats(2.0**-10, 100.0, width=32))
@settings(max_examples=200)
def test_steps_are_the_finest_that_keep_both_ends(bits: int, low: float, high: float) -> None:
    """By brute force over all zero points."""
    bins = 2**bits - 1
    best = max(min(zero / -low, (bins - zero) / high) for zero in range(1, bins))
    coded = ops.pack_integers(torch.tensor([low, high]), bits)
    assert float(coded.scale) == np.float32(best)
    smallest, largest = (-float(coded.zero) / best, (bins - float(coded.zero)) / best)
    assert smallest <= low * (1 - 1e-12)
    assert largest >= high * (1 - 1e-12)


def test_codes_of_a_hand_made_tensor() -> None:
    """Ties go to the even level; -0.5 and 1.5 lie outside the given range and are counted, as is the zero."""
    x = torch.tensor([-0.5, 0.0, 0.1, 0.25, 0.5, 1.0, 1.5])
    found = ops.pack_integers(x, 2, range=(0.0, 1.0), counted=True)
    assert found.result.codes.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert found.counts.tolist() == [3, 0, 2, 1]
    assert found.range.tolist() == [-0.5, 1.5]
    signed = ops.pack_integers(torch.tensor([-3.0, -0.5, 0.5, 1.5, 2.5]), 3, symmetric=True)
    assert signed.codes.tolist() == [0, 3, 3, 5, 5]
    assert (float(signed.scale), float(signed.zero)) == (1.0, 3.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_quantized_is_decoded(dtype: torch.dtype, rounding: Any) -> None:
    """In every layout; codes of images lie channels-last, and the layout is that of the tensor again."""
    for x in layouts(finite((4, 6, 5, 9), dtype)).values():
        for options in (
            {},
            {"per": "channel", "symmetric": True},
            {"fold": torch.rand(6) + 0.5},
            {"range": (-0.5, 2.0)},
        ):
            arguments: dict[str, Any] = {"rounding": rounding, "seed": 3, "offset": 5, **options}
            coded = ops.pack_integers(x, 4, **arguments)
            quantized = ops.quantize_integers(x, 4, **arguments)
            assert coded.codes.is_contiguous(memory_format=torch.channels_last)
            assert_same_bits(coded.decode(), quantized)
            assert quantized.stride() == torch.empty_like(quantized, memory_format=torch.preserve_format).stride()
            nibbles = coded.in_nibbles()
            assert_same_bits(nibbles.decode(), quantized)


def test_random_numbers_belong_to_places_in_memory() -> None:
    x = torch.rand(2, 3, 4, 5)
    images = ops.pack_integers(x, 4, rounding="stochastic", seed=7, offset=11)
    flat = ops.pack_integers(x.flatten(), 4, rounding="stochastic", seed=7, offset=11)
    assert torch.equal(images.codes, flat.codes.view(2, 3, 4, 5))
    last = x.to(memory_format=torch.channels_last)
    turned = ops.pack_integers(last, 4, rounding="stochastic", seed=7, offset=11)
    in_order = ops.pack_integers(last.permute(0, 2, 3, 1).flatten(), 4, rounding="stochastic", seed=7, offset=11)
    assert torch.equal(turned.codes.permute(0, 2, 3, 1).flatten(), in_order.codes)


def test_folded_channels_are_divided_again() -> None:
    """Steps of a channel are as fine as its factor makes them, along whichever dimension."""
    x, factors = torch.randn(8, 5, 6), torch.tensor([1e-3, 1.0, 1.0, 1.0, 30.0])
    for fold_dim, tensor in ((1, x), (2, x.transpose(1, 2)), (0, x.transpose(0, 1))):
        coded = ops.pack_integers(tensor, 8, fold=factors, fold_dim=fold_dim)
        (folded,) = coded.transform
        assert isinstance(folded, Folded)
        assert folded.dim == fold_dim
        along = [-1 if dim == fold_dim else 1 for dim in range(3)]
        steps = (1 / coded.scale / factors).view(along)
        assert bool(((coded.decode() - tensor).abs() <= 0.501 * steps).all())


def test_the_range_of_earlier_tensors_needs_one_look() -> None:
    """A range that is given as it was found changes nothing."""
    x = finite((40, 30))
    found = ops.pack_integers(x, 6, rounding="stochastic", counted=True)
    again = ops.pack_integers(x, 6, rounding="stochastic", range=found.range, counted=True)
    assert torch.equal(found.result.codes, again.result.codes)
    assert torch.equal(found.counts, again.counts)
    assert found.range.tolist() == [float(x.min()), float(x.max())]
    rows = ops.pack_integers(x, 6, per="channel", counted=True)
    assert torch.equal(rows.range, torch.stack([x.amin(1), x.amax(1)]))


# ------------------------------------------------------------------------------------------------- NaN, infinity, ends


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("given_range", [None, (-1.0, 1.0)])
def test_nan_and_infinity_are_seen(bad: float, given_range: Any) -> None:
    x = torch.randn(6, 50)
    x[2, 7] = bad
    found = ops.pack_integers(x, 4, range=given_range, counted=True)
    assert bool(found.result.scale.isnan())
    assert bool(found.result.decode().isnan().all())
    assert found.counts[:2].tolist() == [0, x.numel()]
    proper = x[x.isfinite()]
    assert found.range.tolist() == [float(proper.min()), float(proper.max())]
    rows = ops.quantize_integers(x, 4, per="channel", counted=True)
    assert rows.result.isnan().any(1).tolist() == [row == 2 for row in range(6)]
    assert int(rows.counts[1]) == 50
    assert int(rows.counts[2]) == math.isinf(bad)


def test_overflow_of_a_folded_channel_is_seen() -> None:
    x = torch.full((3, 2), 1e38)
    assert bool(ops.pack_integers(x, 4, fold=torch.tensor([1.0, 1e3])).scale.isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_finite_stays_finite(bits: int, symmetric: bool, dtype: torch.dtype) -> None:
    ends = torch.finfo(dtype)
    for x in (
        torch.tensor([ends.max, ends.min, 1.0, -ends.max / 3]), torch.tensor([ends.max, ends.max / 3]),
        torch.tensor([ends.smallest_normal / 4, -ends.smallest_normal / 8]), torch.tensor([1e-45, 0.0]),
        torch.tensor([0.0, -0.0]), torch.tensor([]), torch.tensor([ends.max, -1e-3]),
    ):  # fmt: skip
        for rounding in ("nearest", "stochastic"):
            options: dict[str, Any] = {"symmetric": symmetric, "rounding": rounding}
            result = ops.quantize_integers(x.to(dtype), bits, **options)
            assert bool(result.isfinite().all()), (x, result)
            assert not bool((result.signbit() & (result == 0)).any())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 0, 3, 3), (1, 1, 1, 1)], ids=str)
def test_empty_and_tiny(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, -0.75)
    ways: list[Any] = ["tensor", "channel"] if shape else ["tensor"]
    for per in ways:
        found = ops.pack_integers(x, 4, per=per, counted=True)
        assert torch.equal(found.result.decode(), x)
        assert found.counts.tolist() == [0, 0, 0, 0]
        assert found.result.scale.numel() == (shape[0] if per == "channel" else 1)


# ----------------------------------------------------------------------------------------------------------- stochastic


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_stochastic_rounding_has_no_bias(bits: int, symmetric: bool, fold: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 40, generator=generator)
    x[:, :8] *= 1e-2
    factors = torch.exp(torch.randn(40, generator=generator)) if fold else None
    weights = [torch.ones_like(x), x.sign(), torch.randn(x.shape, generator=generator)]
    draws = [
        ops.quantize_integers(x, bits, symmetric=symmetric, rounding="stochastic", seed=seed, fold=factors).double() - x
        for seed in range(400)
    ]
    slack = (
        2.0**-21 * float(x.abs().max()) * math.sqrt(x.numel()) * (float(factors.max() / factors.min()) if fold else 1)
    )
    for weight in weights:
        assert_in_band(0.0, np.array([float((weight * draw).sum()) for draw in draws]), slack=slack)


def test_far_below_one_step_luck_alone_decides() -> None:
    ratio = 1e-5
    x = torch.full((1 << 19,), -ratio)
    x[0], x[1] = 1.0, -1.0
    ups = sum(
        int((ops.pack_integers(x, 2, symmetric=True, rounding="stochastic", seed=s).codes[2:] == 0).sum())
        for s in range(12)
    )
    expected = 12 * (x.numel() - 2) * ratio
    assert abs(ups - expected) <= 4 * math.sqrt(expected)


def test_variance_is_that_of_the_steps() -> None:
    """Var = f (1 - f) / scale^2 with f the fraction of a step, summed over independent elements."""
    x = torch.randn(4000, generator=torch.Generator().manual_seed(2))
    coded = ops.pack_integers(x, 5, rounding="stochastic")
    fraction = (x.double() * float(coded.scale)).abs() % 1
    predicted = float((fraction * (1 - fraction)).mean()) / float(coded.scale) ** 2
    squares = [
        float((ops.quantize_integers(x, 5, rounding="stochastic", seed=seed).double() - x).square().mean())
        for seed in range(100)
    ]
    assert_in_band(predicted, np.array(squares))


# ------------------------------------------------------------------------------------------------------------- refusals


# -------------------------------------------------------------------------------------------------------- powers of two


@given(
    bits=st.integers(2, 8),
    low=st.floats(-(2.0**100), 0.0, width=32),
    high=st.floats(2.0**-100, 2.0**100, width=32),
    symmetric=st.booleans(),
)
@settings(max_examples=200)
def test_a_scale_is_the_next_power_of_two_below(bits: int, low: float, high: float, symmetric: bool) -> None:
    x = torch.tensor([low, high, high / 3])
    free = ops.pack_integers(x, bits, symmetric=symmetric)
    found = ops.pack_integers(x, bits, symmetric=symmetric, power_of_two=True, counted=True)
    scale = float(found.result.scale)
    assert math.frexp(scale)[0] == 0.5
    assert scale <= float(free.scale) < 2 * scale
    assert int(found.counts[2]) == 0
    assert float(((found.result.decode().double() - x.double()).abs() * scale).max()) <= 0.5


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"per": "channel"}], ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_twice_is_once(bits: int, options: dict[str, Any]) -> None:
    """A narrower range may have finer steps, and these divide the coarser ones."""
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))
    once = ops.quantize_integers(x, bits, power_of_two=True, **options)
    assert not torch.equal(once, x)
    assert_same_bits(ops.quantize_integers(once, bits, power_of_two=True, **options), once)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_widest_ranges_decode_to_finite_numbers(bits: int, symmetric: bool) -> None:
    for x in (torch.tensor([3.4e38, -3.4e38, 1.0]), torch.tensor([3.4e38, 2.0])):
        for seed in range(8):
            found = ops.quantize_integers(
                x, bits, symmetric=symmetric, rounding="stochastic", seed=seed, power_of_two=True
            )
            assert bool(found.isfinite().all())
