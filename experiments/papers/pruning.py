"""Fig. 4 of the lognormal paper: what stochastic pruning does at a given threshold, sparsity and sigma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import erf, ndtri

from experiments.simulate import Estimate, prune
from lograd.laws import LogNormal
from lograd.plots import COLORS, axes
from lograd.theory import cosine, sparsity, threshold

from .result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGMAS = (1.0, 1.5, 2.0, 3.0)
CUT = float(ndtri(1 - 1 / 300))
"""Where the released code truncates the lognormal before it computes cosines, in standard deviations of ln x."""


def fig4(samples: int = 400_000) -> Result:
    """Fig. 4 of the lognormal paper: sparsity and cosine of stochastic pruning."""
    rows: list[Sequence[object]] = []
    for sigma in SIGMAS:
        law = LogNormal(0.0, sigma)
        x = law.sample(samples, seed=int(10 * sigma))
        for target in (0.5, 0.8, 0.9):
            a = float(threshold(law, target))
            simulated = Estimate.of(prune(x, a) == 0)
            rows.append(
                [sigma, target, a, simulated.mean, simulated.band, _equation_8(a, sigma, misprinted=True)]
                + [float(cosine(law, a)), float(_truncated_cosine(law, sigma, a)), _released_cosine(a, sigma)]
            )
    return Result(
        "fig4",
        "Fig. 4: sparsity and cosine of stochastic pruning",
        "The threshold solved from the law gives the sparsity asked for. At equal sparsity a gradient with a small "
        "sigma "
        "loses far more of its direction, which is why sparsity should not be the same in every layer.",
        ["sigma (ln)", "sparsity asked", "threshold", "simulated", "± 4 s.e.", "Eq. 8 as printed"]
        + ["cosine", "cosine, truncated", "released code"],
        rows,
        [_sparsity_figure(), _cosine_figure()],
        [
            "Eq. 8 as printed has sqrt(2 sigma) where sqrt(2) sigma is meant; the column shows what it would predict.",
            "The released code truncates the lognormal at its 1 - 1/300 quantile before it computes the cosine. Its "
            "formula and ours, a truncated law in the general identity, agree to all digits while the threshold lies "
            "below the cut; beyond it (sigma 1 at 90 %) the released one counts elements above the cut.",
            "Reconstructed: the figure is available as a picture only, so the comparison is with the formulas behind "
            "it.",
        ],
    )


def _equation_8(a: float, sigma: float, *, misprinted: bool) -> float:
    """The paper's sparsity of a lognormal with mu = 0."""
    root, log_a = np.sqrt(2 * sigma) if misprinted else np.sqrt(2) * sigma, np.log(a)
    pruned = np.exp(sigma**2 / 2) / (2 * a) * (1 + erf((log_a - sigma**2) / root))
    return float(0.5 * (1 + erf(log_a / root)) - pruned)


def _released_cosine(a: float, sigma: float) -> float:
    """The cosine as the released code computes it, for mu = 0."""
    root, log_a = np.sqrt(2) * sigma, np.log(a)
    tail = erf((CUT * sigma - 2 * sigma**2) / root)
    kept = np.exp(2 * sigma**2) * (tail - erf((log_a - 2 * sigma**2) / root))
    moved = a * np.exp(sigma**2 / 2) * (1 - erf((sigma**2 - log_a) / root))
    return float(np.sqrt(np.exp(2 * sigma**2) * (1 + tail) / (moved + kept)))


def _truncated_cosine(law: LogNormal, sigma: float, a: Any) -> Any:
    """Return the cosine for the law of x on the condition that x is below the cut, by the identity of `cosine`."""
    limit = np.exp(CUT * sigma)
    small = np.minimum(a, limit)
    whole = law.partial_moment(2, limit)
    return np.sqrt(whole / (whole - law.partial_moment(2, small) + a * law.partial_moment(1, small)))


def _sparsity_figure() -> Figure:
    """Draw theory as lines, and simulated values as points."""
    thresholds = np.geomspace(0.05, 500.0, 121)
    figure, ax = axes("Sparsity over threshold: theory (lines), simulated", "threshold / e^mu", "share of zeros")
    for index, sigma in enumerate(SIGMAS):
        law = LogNormal(0.0, sigma)
        some = thresholds[::12]
        x = law.sample(50_000, seed=index)
        ax.plot(thresholds, sparsity(law, thresholds), color=COLORS[index], label=f"sigma {sigma:g}")
        ax.plot(some, [float(np.mean(prune(x, float(a)) == 0)) for a in some], "o", color=COLORS[index], markersize=4)
    ax.set_xscale("log")
    ax.legend(frameon=False)
    return figure


def _cosine_figure() -> Figure:
    targets = np.linspace(0.3, 0.99, 70)
    title = "Cosine over sparsity (dashed: truncated at the 1 - 1/300 quantile)"
    figure, ax = axes(title, "share of zeros", "cosine with the unpruned gradient")
    for index, sigma in enumerate(SIGMAS):
        law = LogNormal(0.0, sigma)
        a = threshold(law, targets)
        ax.plot(targets, cosine(law, a), color=COLORS[index], label=f"sigma {sigma:g}")
        ax.plot(targets, _truncated_cosine(law, sigma, a), "--", color=COLORS[index])
    ax.legend(frameon=False)
    return figure
