"""The generator: known answers of Philox4x32-10, whose statistics are known, and how its bits become numbers.

Every band is computed.  A statistic with k degrees of freedom must lie within 5 sigma of its mean.
"""

from __future__ import annotations

import math

import pytest
import torch

from lograd import ops
from lograd.ops import random

N = 1 << 18
SEEDS = [0, 1, 2, 2**32, 2**63, -1]
SIGMAS = 5


def key(seed: int, offset: int = 0) -> torch.Tensor:
    return torch.tensor([(seed + 2**63) % 2**64 - 2**63, offset])


def assert_uniform(values: torch.Tensor, cells: int) -> None:
    """Pearson's chi-square: mean cells - 1, variance 2 (cells - 1)."""
    expected = values.numel() / cells
    assert expected >= 10, "chi-square needs filled cells"
    counts = torch.bincount(values, minlength=cells).double()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - (cells - 1)) < SIGMAS * math.sqrt(2 * (cells - 1)), chi_square


def assert_uncorrelated(a: torch.Tensor, b: torch.Tensor) -> None:
    """The correlation of n independent pairs has a standard deviation of 1 / sqrt(n)."""
    correlation = float(torch.corrcoef(torch.stack([a, b]).double())[0, 1])
    assert abs(correlation) < SIGMAS / math.sqrt(a.numel()), correlation


# -------------------------------------------------------------------------------------------------------- known answers


def test_known_answer_of_zeros() -> None:
    """Philox4x32-10 in the known-answer file of Random123: counter and key all zeros."""
    words = random.philox(torch.tensor([0]), 0, torch.tensor(0))
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_known_answer_of_all_ones() -> None:
    """That counter has a fourth word, which lograd leaves at 0.  So it checks a plain Philox, and that checks ours."""

    def philox(counter: list[int], k0: int, k1: int) -> list[int]:
        for _ in range(10):
            p, q = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
            counter = [q >> 32 ^ counter[1] ^ k0, q & 0xFFFFFFFF, p >> 32 ^ counter[3] ^ k1, p & 0xFFFFFFFF]
            k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
        return counter

    ones = 0xFFFFFFFF
    assert philox([ones] * 4, ones, ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    for block, stream, seed in [(0, 0, 0), (2**40 + 3, 1, -1), (2**63 - 1, 1, 2**62 + 12345)]:
        ours = random.philox(torch.tensor([block]), stream, torch.tensor(seed))
        theirs = philox([block & ones, block >> 32, stream, 0], seed & ones, seed >> 32 & ones)
        assert [int(word) for word in ours] == theirs


# ----------------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("seed", SEEDS)
class TestUniform:
    def test_upper_bits(self, seed: int) -> None:
        upper = random.upper16(N, key(seed))
        assert_uniform(upper >> 2, 1 << 14)
        assert_uniform(upper & 0xFF, 256)

    def test_lower_bits(self, seed: int) -> None:
        lower = random.lower32(N, key(seed))
        assert_uniform(lower >> 18, 1 << 14)
        assert_uniform(lower & 0x3FFF, 1 << 14)

    def test_upper_and_lower_bits_are_independent(self, seed: int) -> None:
        assert_uncorrelated(random.upper16(N, key(seed)), random.lower32(N, key(seed)))

    def test_an_offset_continues_the_stream(self, seed: int) -> None:
        u = random.uniform(1000, key(seed))
        assert torch.equal(random.uniform(500, key(seed, 500)), u[500:])


# ------------------------------------------------------------------------------------------------ what the kernels draw


def prune_draws(value: float, seed: int, offset: int = 0) -> torch.Tensor:
    """1 where an element of the given magnitude was kept under a threshold of 1."""
    return (ops.stochastic_prune(torch.full((N,), value), 1.0, seed, offset) != 0).long()


def test_prune_draws_are_those_of_the_generator() -> None:
    assert torch.equal(prune_draws(0.3, 7, 5), (random.uniform(N, key(7, 5)) < float(torch.tensor(0.3))).long())
