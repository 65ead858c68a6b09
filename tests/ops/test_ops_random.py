"""The generator: known answers of Philox4x32-10, and the statistics of its numbers and of what the kernels draw.

Every band is computed.  A statistic with k degrees of freedom must lie within 5 sigma of its mean: with some hundred
statistics here a sound generator fails once in 10^4 changes of the seeds, and these are fixed.
"""

from __future__ import annotations

import math

import pytest
import torch

from lograd import ops
from lograd.formats import IntFormat
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

    def test_pairs_of_neighbours(self, seed: int) -> None:
        for numbers in (random.upper16(N, key(seed)) >> 10, random.lower32(N, key(seed)) >> 26):
            assert_uniform((numbers[0::2] << 6) + numbers[1::2], 1 << 12)

    def test_lags(self, seed: int) -> None:
        u = random.uniform(N, key(seed))
        for lag in (1, 2, 3, 4, 7, 8, 9, 16, 64, 128, 1000, 4096):
            assert_uncorrelated(u[:-lag], u[lag:])

    def test_upper_and_lower_bits_are_independent(self, seed: int) -> None:
        assert_uncorrelated(random.upper16(N, key(seed)), random.lower32(N, key(seed)))

    def test_mean_and_variance(self, seed: int) -> None:
        u = random.uniform(N, key(seed))
        assert float(u.min()) >= 0
        assert float(u.max()) < 1
        assert abs(float(u.mean()) - 0.5) < SIGMAS / math.sqrt(12 * N)
        # The variance of (u - 1/2)^2 is 1/180.
        assert abs(float(((u - 0.5) ** 2).mean()) - 1 / 12) < SIGMAS / math.sqrt(180 * N)

    def test_an_offset_continues_the_stream(self, seed: int) -> None:
        u = random.uniform(1000, key(seed))
        assert torch.equal(random.uniform(500, key(seed, 500)), u[500:])


def test_seeds_against_each_other() -> None:
    numbers = [random.uniform(N, key(seed)) for seed in SEEDS]
    for i, a in enumerate(numbers):
        for b in numbers[:i]:
            assert_uncorrelated(a, b)
            pairs = ((a * 64).long() << 6) + (b * 64).long()
            assert_uniform(pairs, 1 << 12)


def test_the_first_numbers_of_consecutive_seeds() -> None:
    """Where a weak key schedule shows: one number of each of many seeds."""
    firsts = torch.stack(random.philox(torch.zeros(N, dtype=torch.int64), 0, torch.arange(N)), dim=-1)
    for word in range(4):
        assert_uniform(firsts[:, word] >> 18, 1 << 14)
        assert_uncorrelated(firsts[1:, word], firsts[:-1, word])


# ------------------------------------------------------------------------------------------------ what the kernels draw


def prune_draws(value: float, seed: int, offset: int = 0) -> torch.Tensor:
    """1 where an element of the given magnitude was kept under a threshold of 1."""
    return (ops.stochastic_prune(torch.full((N,), value), 1.0, seed, offset) != 0).long()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("value", [0.9, 0.5, 0.3, 1e-2, 2.0**-16])
def test_prune_keeps_its_share(value: float, seed: int) -> None:
    kept = prune_draws(value, seed)
    assert abs(float(kept.sum()) - value * N) < SIGMAS * math.sqrt(N * value * (1 - value)) + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_prune_draws_are_independent(seed: int) -> None:
    kept = prune_draws(0.5, seed)
    for lag in (1, 2, 4, 7, 8, 16, 128, 1024):
        assert_uncorrelated(kept[:-lag], kept[lag:])
    words = (kept.view(-1, 8) << torch.arange(8)).sum(dim=-1)
    assert_uniform(words, 256)
    assert_uncorrelated(kept, prune_draws(0.5, seed + 12345))
    assert_uncorrelated(kept, prune_draws(0.5, seed, N))


def test_prune_draws_are_those_of_the_generator() -> None:
    assert torch.equal(prune_draws(0.3, 7, 5), (random.uniform(N, key(7, 5)) < float(torch.tensor(0.3))).long())


@pytest.mark.parametrize("seed", SEEDS)
def test_rounding_is_unbiased(seed: int) -> None:
    for value in (0.25, 2.9, 1 / 3):
        rounded = ops.quantize(torch.full((N,), value), IntFormat(8), 1.0, "stochastic", seed).double()
        share = value - math.floor(value)
        assert abs(float(rounded.mean()) - value) < SIGMAS * math.sqrt(share * (1 - share) / N) + 1e-7
