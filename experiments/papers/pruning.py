"""Fig. 4 of the lognormal paper: what stochastic pruning does at a given threshold, sparsity and sigma."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import erf, ndtri

from lograd.laws import LogNormal, Truncated
from lograd.report import Chart, Line, Points
from lograd.theory import cosine, sparsity, threshold
from lograd.theory.simulate import Estimate, prune

from .result import Result

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
            cut = Truncated(law, np.exp(CUT * sigma))
            simulated = Estimate.of(prune(x, a) == 0)
            rows.append(
                [sigma, target, a, simulated.mean, simulated.band, _equation_8(a, sigma, misprinted=True)]
                + [float(cosine(law, a)), float(cosine(cut, a)), _released_cosine(a, sigma)]
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
        [_sparsity_chart(), _cosine_chart()],
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


def _sparsity_chart() -> Chart:
    thresholds = np.geomspace(0.05, 500.0, 121)
    marks: list[Line | Points] = []
    for index, sigma in enumerate(SIGMAS):
        law = LogNormal(0.0, sigma)
        some = thresholds[::12]
        x = law.sample(50_000, seed=index)
        marks.append(Line(thresholds, sparsity(law, thresholds), f"sigma {sigma:g}", color=index))
        marks.append(Points(some, [float(np.mean(prune(x, float(a)) == 0)) for a in some], color=index))
    return Chart(
        "Sparsity over threshold", "threshold / e^mu", "share of zeros", marks, x_scale="log10", y_percent=True,
        note="Lines: theory. Points: simulated.",
    )  # fmt: skip


def _cosine_chart() -> Chart:
    targets = np.linspace(0.3, 0.99, 70)
    marks: list[Line] = []
    for index, sigma in enumerate(SIGMAS):
        law = LogNormal(0.0, sigma)
        a = threshold(law, targets)
        marks.append(Line(targets, cosine(law, a), f"sigma {sigma:g}", color=index))
        marks.append(Line(targets, cosine(Truncated(law, np.exp(CUT * sigma)), a), dashed=True, color=index))
    return Chart(
        "Cosine over sparsity", "share of zeros", "cosine with the unpruned gradient", marks, x_percent=True,
        note="Dashed: truncated at the 1 - 1/300 quantile.",
    )  # fmt: skip
