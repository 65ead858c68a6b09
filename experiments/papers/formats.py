"""Table 2 and Fig. 3 of the lognormal paper: the best split of N bits into exponent and mantissa."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from experiments.simulate import Estimate, quantize
from lograd.formats import IdealFormat
from lograd.laws import HalfNormal, Law, LogNormal
from lograd.plots import COLORS, axes, lines
from lograd.theory import best_format, lognormal_relative_error, relative_error

from .result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = range(4, 9)
SIGMA_RANGES = {"Cifar100": (2.5, 4.5), "ImageNet": (3.0, 5.5)}
TABLE_2 = {"Cifar100": (3, 4, 4, 4, 5), "ImageNet": (3, 4, 5, 5, 5)}
POSITION = 0.85
"""Where in the paper's range of sigma the format is chosen.  Fitted to Table 2 (0.824 to 0.880 give all ten entries);
the paper states no rule."""

# The switch points in the authors' released code; the paper prints none.
AUTHORS_SWITCHES = {
    4: (0.5, 1.2),
    5: (0.2, 1.0, 2.4),
    6: (0.3, 0.9, 2.0, 4.9),
    7: (0.3, 0.7, 1.7, 4.0, 9.4),
    8: (0.1, 0.6, 1.4, 3.7, 8.1, 19.3),
}


def ideal_formats(bits: int) -> list[IdealFormat]:
    """Every split of `bits` bits, as Eq. 2 quantizes."""
    return [IdealFormat(exponent, bits - 1 - exponent) for exponent in range(1, bits)]


def table2() -> Result:
    """Table 2 of the lognormal paper: the best format for N bits."""
    rows: list[Sequence[object]] = []
    for dataset, (low, high) in SIGMA_RANGES.items():
        sigma = low + POSITION * (high - low)
        law = LogNormal.from_log2(0.0, sigma)
        for bits, printed in zip(WIDTHS, TABLE_2[dataset], strict=True):
            ours = best_format(law, bits, candidates=ideal_formats(bits))
            honest = best_format(law, bits)
            literal = 1 + int(np.argmin([_closed(e, bits, sigma, printed=True) for e in range(1, bits)]))
            rows.append(
                [dataset, f"FP{bits}", sigma, f"1-{printed}-{bits - 1 - printed}"]
                + [f"1-{ours.exponent}-{ours.mantissa}", "yes" if ours.exponent == printed else "NO"]
                + [str(honest), f"1-{literal}-{bits - 1 - literal}"]
            )
    matches = sum(row[5] == "yes" for row in rows)
    return Result(
        "table2",
        "Table 2: the best format for N bits",
        f"{matches} of {len(rows)} formats come out as printed when the exact error of Eq. 2's quantizer is "
        "minimised at "
        f"sigma = low + {POSITION} (high - low) of the paper's range, sigma in log2.",
        [
            "data set",
            "width",
            "sigma (log2)",
            "paper",
            "ours, Eq. 2 exact",
            "equal",
            "honest N-bit format",
            "Eq. 4 as printed",
        ],
        rows,
        [_best_exponent_figure()],
        [
            "The position 0.85 in the range is fitted to Table 2: the paper states no rule, and 0.824 to 0.880 give "
            "the "
            "same ten entries. It is a reproduction, not a proof of intent.",
            "Eq. 4 as printed divides by 2^n1 - 1 and can never choose a format without mantissa, so it cannot have "
            "made "
            "this table. With 2^n1 it can.",
        ],
    )


def fig3a(samples: int = 200_000) -> Result:
    """Fig. 3a: the relative error of each split of eight bits, for three widths of a lognormal law."""
    rows: list[Sequence[object]] = []
    figures = []
    for sigma in (1.0, 3.0, 5.0):
        law = LogNormal.from_log2(0.0, sigma)
        x = law.sample(samples, seed=int(sigma))
        curves: dict[str, list[float]] = {"exact": [], "Eq. 4": [], "printed": [], "simulated": []}
        for format in ideal_formats(8):
            exact = float(relative_error(law, format))
            closed, printed = (_closed(format.exponent, 8, sigma, printed=flag) for flag in (False, True))
            simulated = Estimate.of(np.abs(quantize(x, format) - x) / x)
            for name, value in zip(curves, (exact, closed, printed, simulated.mean), strict=True):
                curves[name].append(value)
            rows.append(
                [sigma, f"1-{format.exponent}-{format.mantissa}", simulated.mean, simulated.band, exact, closed]
                + [_percent(closed / exact - 1), _percent(printed / exact - 1)]
            )
        exponents = np.arange(1, 8)
        series = {
            "exact": (exponents, curves["exact"]), "Eq. 4 as printed": (exponents, curves["printed"]),
            "Eq. 4 with 2^n1": (exponents, curves["Eq. 4"]), "simulated": (exponents, curves["simulated"]),
        }  # fmt: skip
        style = {"exact": "-", "Eq. 4 as printed": "--", "Eq. 4 with 2^n1": "s", "simulated": "o"}
        title = f"FP8, sigma = {sigma:g} (log2)"
        figures.append(lines(series, title, "exponent bits", "expected relative error", log="y", style=style))
    return Result(
        "fig3a",
        "Fig. 3a: expected relative error of FP8",
        "The closed form with 2^n1 follows simulation and the exact integral within 0.5 % from two mantissa bits up, "
        "1.7 % "
        "at one and 6.1 % at none. The printed form is off by 34 % at two, 103 % at one, and infinite without "
        "mantissa.",
        ["sigma (log2)", "format", "simulated", "± 4 s.e.", "exact", "Eq. 4, 2^n1", "off by", "as printed, off by"],
        rows,
        figures,
        ["The paper's own curve is a picture; the check is against the exact integral and simulation."],
    )


def fig3b() -> Result:
    """Fig. 3b: the best number of exponent bits over sigma, for a lognormal law."""
    rows: list[Sequence[object]] = []
    for bits in WIDTHS:
        for exponent, authors in enumerate(AUTHORS_SWITCHES[bits], start=1):
            exact, closed = (_switch(_error(kind, bits), exponent) for kind in ("exact", "closed"))
            printed = _switch(_error("printed", bits), exponent) if exponent < bits - 2 else None
            rows.append([f"FP{bits}", f"{exponent} to {exponent + 1}", authors, exact, closed, printed])
    return Result(
        "fig3b",
        "Fig. 3b: the best number of exponent bits over sigma",
        "The wider the gradient, the more bits belong to the exponent. Switch points in sigma (log2), beside the "
        "lookup "
        "table in the authors' released code.",
        ["width", "exponent bits", "authors' code", "Eq. 2 exact", "Eq. 4 with 2^n1", "Eq. 4 as printed"],
        rows,
        [_best_exponent_figure()],
        [
            "The authors' table lies within 0.5 of the exact quantizer and nowhere near the printed formula for the "
            "last "
            "switch, which that formula never makes (–)."
        ],
    )


def fig3c() -> Result:
    """Fig. 3c: the best number of exponent bits over sigma, for a normal law."""
    sigmas = np.geomspace(0.02, 30.0, 241)
    shown = (0.02, 0.1, 0.5, 3.0)
    rows: list[Sequence[object]] = []
    found: dict[int, NDArray[np.int64]] = {}
    for bits in WIDTHS:
        best = best_exponents(HalfNormal(sigmas), ideal_formats(bits))
        found[bits] = best
        picks = [int(best[int(np.argmin(np.abs(sigmas - sigma)))]) for sigma in shown]
        turns = np.flatnonzero(np.diff(best) > 0)
        right = best_exponents(LogNormal.from_log2(0.0, np.array([1.0, 3.0, 5.0])), ideal_formats(bits))
        turn = float(sigmas[turns[0] + 1]) if turns.size else None
        rows.append([f"FP{bits}", *picks, turn, *(int(value) for value in right)])
    return Result(
        "fig3c",
        "Fig. 3c: the normal law gets the trend wrong",
        "If gradients were normal (and not rescaled), a wider gradient would ask for fewer exponent bits, up to sigma "
        "3; under the lognormal law it asks for more. At sigma 3 the normal law gives 3, 3, 3, 4 exponent bits for FP5 "
        "to FP8.",
        ["width", *(f"normal, sigma {sigma:g}" for sigma in shown), "turns up at"]
        + [f"lognormal, sigma_log2 {sigma:g}" for sigma in (1, 3, 5)],
        rows,
        [
            _exponents(sigmas, found, "Half-normal |g|", "sigma of g", "log"),
            _best_exponent_figure(),
        ],
        [
            "Where the trend turns, much of the gradient lies above the top of Eq. 2's range, and more exponent bits "
            "are needed to reach it."
        ],
    )


def _closed(exponent: int, bits: int, sigma: float, *, printed: bool) -> float:
    return float(lognormal_relative_error(exponent, bits - 1 - exponent, sigma, printed=printed))


def _error(kind: str, bits: int) -> Callable[[int, float], float]:
    def exact(exponent: int, sigma: float) -> float:
        return float(relative_error(LogNormal.from_log2(0.0, sigma), IdealFormat(exponent, bits - 1 - exponent)))

    def closed(exponent: int, sigma: float) -> float:
        return _closed(exponent, bits, sigma, printed=kind == "printed")

    return exact if kind == "exact" else closed


def _switch(error: Callable[[int, float], float], exponent: int) -> float:
    """The sigma from which one more exponent bit is better."""
    return float(brentq(lambda sigma: error(exponent, sigma) - error(exponent + 1, sigma), 0.3, 60.0, xtol=1e-6))


def best_exponents(law: Law, formats: list[IdealFormat]) -> NDArray[np.int64]:
    """Return the exponent bits with the least relative error, of formats with 1, 2, ... of them."""
    errors = np.stack([relative_error(law, format) for format in formats])
    best: NDArray[np.int64] = 1 + np.argmin(errors, axis=0)
    return best


def _best_exponent_figure() -> Figure:
    sigmas = np.linspace(0.2, 8.0, 313)
    law = LogNormal.from_log2(0.0, sigmas)
    found = {bits: best_exponents(law, ideal_formats(bits)) for bits in WIDTHS}
    figure = _exponents(sigmas, found, "Lognormal |g|", "sigma of log2|g|")
    for dataset, (low, high) in SIGMA_RANGES.items():
        place = low + POSITION * (high - low)
        figure.axes[0].axvline(place, color=COLORS[-1], linestyle="--", linewidth=1)
        figure.axes[0].text(
            place, 1.0, f" {dataset}, Table 2", rotation=90, fontsize="x-small", va="bottom", ha="right"
        )
    return figure


def _exponents(
    sigmas: NDArray[np.float64], found: dict[int, NDArray[np.int64]], title: str, label: str, scale: str = "linear"
) -> Figure:
    """Draw the best number of exponent bits for each width, moved apart by a little, so that all can be seen."""
    figure, ax = axes(title, label, "best exponent bits")
    for color, (bits, best) in zip(COLORS, found.items(), strict=False):
        ax.step(sigmas, best + (bits - 6) * 0.05, color=color, label=f"FP{bits}", where="mid")
    ax.set_xscale(scale)
    ax.legend(frameon=False, fontsize="small")
    return figure


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %" if np.isfinite(share) else "infinite"
