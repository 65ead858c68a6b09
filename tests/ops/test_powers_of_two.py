"""Levels whose steps are powers of two: the next one above what the range needs, so that nothing saturates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bits import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from lograd import ops


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
    scale = float(found.coded.scale)
    assert math.frexp(scale)[0] == 0.5
    assert scale <= float(free.scale) < 2 * scale
    assert int(found.counts[2]) == 0
    assert float(((found.coded.decode().double() - x.double()).abs() * scale).max()) <= 0.5


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"per": "channel"}], ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_twice_is_once(bits: int, options: dict[str, Any]) -> None:
    """A narrower range may have finer steps, and these divide the coarser ones."""
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))
    once = ops.quantize_integers(x, bits, power_of_two=True, **options)
    assert not torch.equal(once, x)
    assert_same_bits(ops.quantize_integers(once, bits, power_of_two=True, **options), once)


def test_stochastic_rounding_stays_unbiased() -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    draws = torch.stack(
        [
            ops.quantize_integers(x, 4, rounding="stochastic", seed=seed, power_of_two=True).double()
            for seed in range(400)
        ]
    )
    band = 4 * draws.std(0).norm() / math.sqrt(len(draws))
    assert float((draws.mean(0) - x).norm()) <= float(band)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_widest_ranges_decode_to_finite_numbers(bits: int, symmetric: bool) -> None:
    for x in (torch.tensor([3.4e38, -3.4e38, 1.0]), torch.tensor([3.4e38, 2.0])):
        for seed in range(8):
            found = ops.quantize_integers(
                x, bits, symmetric=symmetric, rounding="stochastic", seed=seed, power_of_two=True
            )
            assert bool(found.isfinite().all())
