"""Bounds on the variance of integer quantizers hold in simulation."""

import numpy as np
import pytest

from lograd.theory import (
    block_householder_variance_bound,
    per_sample_variance_bound,
    per_tensor_variance_bound,
)


def stochastic_round(y, rng):
    return np.floor(y + rng.random(y.shape))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_variance_bounds_hold(bits, spread):
    rng = np.random.default_rng(23)
    rows, columns, bins = 16, 32, 2**bits - 1
    x = rng.standard_normal((rows, columns)) * np.exp(spread * rng.standard_normal((rows, 1)))
    low, ranges = x.min(axis=1, keepdims=True), np.ptp(x, axis=1, keepdims=True)

    def variance(quantizer, repeats=400):
        copies = np.stack([quantizer() for _ in range(repeats)])
        assert np.abs(copies.mean(axis=0) - x).max() <= 6 * copies.std(axis=0).max() / np.sqrt(repeats)  # unbiased
        return ((copies - x) ** 2).sum(axis=(1, 2)).mean()

    step = np.ptp(x) / bins
    tensor = variance(lambda: stochastic_round((x - x.min()) / step, rng) * step + x.min())
    assert 0.3 < tensor / per_tensor_variance_bound(np.ptp(x), rows, columns, bits) < 1
    steps = ranges / bins
    sample = variance(lambda: stochastic_round((x - low) / steps, rng) * steps + low)
    assert 0.3 < sample / per_sample_variance_bound(ranges.ravel(), columns, bits) < 1


@pytest.mark.parametrize(("size", "ratio"), [(2, 3.0), (4, 30.0), (16, 100.0), (64, 1000.0)])
def test_block_householder_bound_holds(size, ratio):
    """One group, scaled by the exponents that minimise the bound: spread the large row by a reflection, then PSQ."""
    rng = np.random.default_rng(29)
    columns, bits = 64, 5
    bins = 2**bits - 1
    x = rng.uniform(-1, 1, (size, columns))
    x[0] *= ratio
    first, others = np.ptp(x[0]), np.ptp(x[1:], axis=1).max()
    w = np.full(size, 1 / np.sqrt(size))
    w[0] -= 1
    w /= np.linalg.norm(w)
    reflect = np.eye(size) - 2 * np.outer(w, w)
    scales = np.full(size, (others * size**0.5 / size) ** (-1 / 3))
    scales[0] = (first / np.sqrt(size)) ** (-1 / 3)
    y = reflect @ (scales[:, None] * x)
    low, step = y.min(axis=1, keepdims=True), np.ptp(y, axis=1, keepdims=True) / bins
    inverse = reflect / scales[:, None]  # a reflection is its own inverse
    assert np.allclose(inverse @ y, x)
    copies = np.stack([inverse @ (stochastic_round((y - low) / step, rng) * step + low) for _ in range(300)])
    measured = ((copies - x) ** 2).sum(axis=(1, 2)).mean()
    bound = block_householder_variance_bound(first, others, size, columns, bits)
    assert measured < bound
    if ratio >= 30:  # where rows differ widely, it beats the bound of one range per row
        assert bound < per_sample_variance_bound(np.ptp(x, axis=1), columns, bits)
