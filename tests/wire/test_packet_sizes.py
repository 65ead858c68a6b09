"""Bits per element of packets against the Shannon limit of pruned lognormal gradients.

The limit is that of independent elements: the entropy of (zero, or alpha, or which 1/32 of which octave) with the sign,
and 18 bits for the mantissa bits below that resolution, which are as good as random.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from packets import same
from scipy.stats import norm

import lograd
from lograd import laws, ops, theory, wire

SIGMAS, SPARSITIES = (2.5, 3.0, 4.0, 5.5), (0.8, 0.85, 0.9, 0.95)
COUNT = 1 << 19
WITHOUT, WITH = 1.15, 1.06


def limit(sigma: float, sparsity: float, threshold: float) -> float:
    """The fewest bits per element, on average, for lognormal magnitudes of sigma after stochastic pruning."""
    octaves = np.floor(np.log2(threshold)) + np.arange(150)
    edges = np.maximum(np.ldexp(1 + np.arange(32) / 32, octaves[:, None].astype(int)).ravel(), threshold)
    kept = -np.diff(norm.sf(np.log(edges) / sigma))
    alpha = 1 - sparsity - kept.sum()
    p = np.concatenate([[sparsity, alpha / 2, alpha / 2], kept / 2, kept / 2])
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum() + 18 * kept.sum())


@pytest.mark.parametrize("sigma", SIGMAS)
def test_packets_come_close_to_the_shannon_limit(sigma: float) -> None:
    generator = torch.Generator().manual_seed(round(10 * sigma))
    signs = torch.randn(COUNT, generator=generator).sign()
    x = torch.exp(sigma * torch.randn(COUNT, generator=generator)) * signs
    for sparsity in SPARSITIES:
        threshold = float(theory.threshold(laws.LogNormal(0.0, sigma), sparsity))
        least = limit(sigma, sparsity, threshold)
        for entropy, most in ((False, WITHOUT), (True, WITH)):
            packet = wire.prune_and_encode(x, threshold, seed=3, entropy=entropy)
            ratio = packet.numel() * 8 / COUNT / least
            # Counts of kept elements vary by less than 1 % of themselves at 4 sigma, so the limit does, too.
            assert 0.98 < ratio < most, (sigma, sparsity, entropy)


def test_the_limit_at_sigma_3_is_the_known_one() -> None:
    for sparsity, bits in ((0.8, 4.0), (0.9, 1.83), (0.95, 0.85)):
        threshold = float(theory.threshold(laws.LogNormal(0.0, 3.0), sparsity))
        assert abs(limit(3.0, sparsity, threshold) - bits) < 0.02


def test_rounded_values_take_fewer_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.exp(3 * torch.randn(COUNT, generator=generator))
    threshold = float(theory.threshold(laws.LogNormal(0.0, 3.0), 0.9))
    sizes = {
        values: wire.prune_and_encode(x, threshold, values=values).numel() * 8 / COUNT  # type: ignore[arg-type]
        for values in ("exact", "bfloat16", "float8")
    }
    assert sizes["exact"] < 2.0
    assert sizes["bfloat16"] < 1.3
    assert sizes["float8"] < 1.05


def test_a_tensor_in_two_packets_is_a_tensor() -> None:
    """Nothing but the table depends on where a tensor ends, so parts of whole blocks may be sent by themselves."""
    x = ops.stochastic_prune(torch.randn(3 * 4096), 2.0)
    parts = [lograd.decode(lograd.encode(part)) for part in x.split(4096)]
    assert same(torch.cat(parts), x)
