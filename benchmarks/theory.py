"""Thresholds for many layers at once, against one scipy root search per layer: `./dev bench theory`.

Both solve the same equation with the same law; the peer is what the released code of the lognormal paper does.
Interleaved repeats in one process, medians, ratios.  Writes benchmarks/results/theory.json and theory.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq, root_scalar
from scipy.special import erf, log_ndtr, ndtr

from lograd.laws import Empirical, LogNormal
from lograd.text import markdown
from lograd.theory import allocate, best_format, sparsity, threshold

from .timing import conditions, medians, versions, write

LAYERS = 1000
REPEATS = 15


def scipy_per_layer(laws: list[LogNormal], target: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One brentq per layer on the lognormal sparsity in its stable form and in ln a, tuned for scipy."""

    def root(sigma: float) -> float:
        def excess(log_a: float) -> float:
            z = log_a / sigma
            return float(ndtr(z) - np.exp(sigma**2 / 2 - log_a + log_ndtr(z - sigma)) - target)

        return float(brentq(excess, -10 * sigma - 5, 10 * sigma + sigma**2 + 5, xtol=1e-12))

    return np.array([np.exp(law.mu + root(law.sigma)) for law in laws])


def released_per_layer(laws: list[LogNormal], target: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One root_scalar per layer on Eq. 8 (with sqrt(2) sigma), as the released code does."""

    def root(sigma: float) -> float:
        def excess(a: float) -> float:
            log_a, width = np.log(a), np.sqrt(2) * sigma
            pruned = np.exp(sigma**2 / 2) / (2 * a) * (1 + erf((log_a - sigma**2) / width))
            return float(0.5 * (1 + erf(log_a / width)) - pruned - target)

        return float(root_scalar(excess, x0=1.0, bracket=[np.exp(-9), np.exp(20)]).root)

    return np.array([np.exp(law.mu) * root(law.sigma) for law in laws])


def main() -> None:
    """Milliseconds for the thresholds of a thousand layers, by lograd and by scipy."""
    rng = np.random.default_rng(0)
    laws = [
        LogNormal(mu, sigma) for mu, sigma in zip(rng.normal(-8, 3, LAYERS), rng.uniform(0.5, 4, LAYERS), strict=True)
    ]
    histograms = [Empirical.fit(law.sample(20_000, seed)) for seed, law in enumerate(laws)]
    counts = rng.integers(1_000, 1_000_000, LAYERS)
    ours, theirs = threshold(laws, 0.85), scipy_per_layer(laws, 0.85)
    assert np.allclose(ours, theirs, rtol=1e-8), "the two solvers must agree"
    assert np.abs(sparsity(laws, ours) - 0.85).max() < 1e-9
    assert np.allclose(ours, released_per_layer(laws, 0.85), rtol=1e-6)
    stacked = LogNormal.stack(laws)
    measured = medians(
        {
            "threshold, lognormal, a list of laws": lambda: threshold(laws, 0.85),
            "threshold, lognormal, one stacked law": lambda: threshold(stacked, 0.85),
            "threshold, empirical histograms": lambda: threshold(histograms, 0.85),
            "scipy root_scalar per layer, Eq. 8": lambda: released_per_layer(laws, 0.85),
            "scipy brentq per layer, stable form": lambda: scipy_per_layer(laws, 0.85),
            "allocate, common cosine": lambda: allocate(laws, counts, 0.85),
            "best_format, 6 bits": lambda: best_format(laws, 6),
        },
        REPEATS,
    )
    released, tuned = (measured[name] for name in measured if name.startswith("scipy"))
    rows = [
        {"case": name, "ms": round(ms, 2)}
        | (
            {"over root_scalar": round(released / ms, 1), "over brentq": round(tuned / ms, 1)}
            if name.startswith("threshold")
            else {}
        )
        for name, ms in measured.items()
    ]
    table = markdown(rows, ("case", "ms", "over root_scalar", "over brentq"))
    what = f"{LAYERS} layers, median of {REPEATS} interleaved repeats"
    result = {"what": what, "versions": versions("numpy", "scipy"), "machine": conditions(), "rows": rows}
    write("theory", result, f"{what}. `./dev bench theory` makes this table.", table)
    print(table)


if __name__ == "__main__":
    main()
