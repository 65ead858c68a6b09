"""The section of a profile's page on sparsity: where zeros save time, how many each layer takes, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..plan import LIMIT
from ..report import Bars, Chart, Line, Mark, Page, Rule
from ..treatments.verdicts import FAIR_COSINE, GOOD_COSINE, VERDICTS_IN_WORDS, verdict, verdict_on_noise
from .charts import MOST_BARS, NAMED_LAYERS, quantile_of
from .sparsity import NO_TIME, SPARSITIES, USUAL, JointOutlook, PruningOutlook

Tile = tuple[str, str, str]
TEXT = (
    "Zeros save time: on the CPU, products of a pruned gradient skip them. The gradient of a layer is "
    "that of the loss with respect to its output; layers are numbered in the order in which they run. Pruning is "
    "stochastic and unbiased, so it adds noise: the cosine between a gradient and its pruned copy says how much. It is "
    f"predicted from the histogram of the last observed step. A verdict stands beside it: {VERDICTS_IN_WORDS}. "
    "Layers in which zeros save no time are marked not worth it: their work is small, or no sparse kernel serves them; "
    "`profile.plan(sparsity=0.85)` leaves them alone."
)
NOISE_TEXT = (
    "Noise was measured: its column says how much arrives in the weight gradients if this layer alone is pruned, "
    "|error of dW|² / |dW|² summed over all layers, on the same scale: 1 is as much noise as one weight gradient has "
    "signal. The last chart prunes all layers that gain, alike: noise adds up over them."
)
NO_NOISE_TEXT = (
    "How much of this noise arrives in the weight gradients, and whether it adds up over depth, was not measured; "
    "`lograd.profile(..., noise=2)` or `lograd profile --noise 2` does it."
)


def add_sparsity(
    page: Page, found: Sequence[PruningOutlook], numbers: dict[str, int], joint: JointOutlook | None
) -> None:
    """Add the section to a page.

    Args:
        found: the predicted effect of pruning each layer.
        numbers: the number of each layer on the page.
        joint: the effect of pruning all layers that gain; None where noise was not measured.
    """
    page.heading("Sparsity: zeros that save time")
    page.text(TEXT)
    measured = any(one.arrives is not None for one in found)
    page.text(NOISE_TEXT if measured else NO_NOISE_TEXT)
    page.charts(*sparsity_charts(found, joint))
    columns = ["#", "layer", f"at {USUAL:.0%}", "good up to", "fair up to"]
    columns += [f"noise at {USUAL:.0%}"] if measured else []
    first = len(columns)
    columns += [*(f"{sparsity:.0%} zeros" for sparsity in SPARSITIES), "time"]
    rows = [_row(numbers[one.name], one, measured) for one in found]
    good = [
        (row, first + place)
        for row, one in enumerate(found)
        for place, cosine in enumerate(one.cosines)
        if one.no_gain is None and verdict(float(cosine)) == "good"
    ]
    align = "rll" + "r" * (len(SPARSITIES) + 2 + measured) + "l"
    page.table(columns, rows, "Predicted cosine over sparsity; good ones of layers that gain stand out", align, good)


def sparsity_tile(found: Sequence[PruningOutlook]) -> Tile | None:
    """Return the tile with the median sparsity that is good in the layers that gain; None without layers."""
    gaining = [one for one in found if one.no_gain is None]
    if not found:
        return None
    if not gaining:
        return "none", "layers gain time from zeros", f"of {len(found)}; all too small or not served"
    good, fair = (quantile_of(getattr(one, name) for one in gaining) for name in ("good", "fair"))
    return (
        f"{good:.0%}",
        "zeros with a good cosine",
        f"median of the {len(gaining)} of {len(found)} layers that may gain time; fair to {fair:.0%}",
    )


def sparsity_in_words(one: PruningOutlook) -> str:
    """Return a sentence on the sparsity of one layer, for its details."""
    gain = "they may save time" if one.no_gain is None else f"but {one.no_gain}"
    return f"Zeros: the cosine is good up to {one.good:.0%} and fair up to {one.fair:.0%}; {gain}."


def sparsity_charts(found: Sequence[PruningOutlook], joint: JointOutlook | None) -> list[Chart]:
    """Return charts of cosine over sparsity, of the sparsity of each layer, and of the noise of all layers together."""
    limits: list[Mark] = [Rule(GOOD_COSINE), Rule(FAIR_COSINE)]
    gaining = [one for one in found if one.no_gain is None] or list(found)
    places = np.unique(np.linspace(0, len(gaining) - 1, NAMED_LAYERS).round().astype(int))
    lines: list[Mark] = [
        Line(SPARSITIES, gaining[place].cosines, gaining[place].name, markers=True) for place in places
    ]
    note = f"Predicted. Dashed: good from {GOOD_COSINE:g} on, risky below {FAIR_COSINE:.2f}."
    charts = [
        Chart(
            "Cosine over sparsity", "share of zeros", "cosine between g and its pruned copy", [*lines, *limits],
            y_range=(0.0, 1.05), x_percent=True, note=note,
        )
    ]  # fmt: skip
    marks: list[Mark] = []
    for name in ("good", "fair"):
        values = [getattr(one, name) for one in found]
        if len(found) <= MOST_BARS:
            marks.append(Bars([one.name for one in found], values, f"{name} up to"))
        else:
            marks.append(Line(np.arange(len(found)), values, f"{name} up to", markers=True))
    names = [one.name for one in found] if len(found) > MOST_BARS else []
    charts.append(
        Chart(
            "How many zeros each layer takes", "layer, in order of execution", "share of zeros", marks,
            y_range=(0.0, 1.0), y_percent=True, x_names=names,
        )
    )  # fmt: skip
    if joint is not None:
        both: list[Mark] = [
            Line(SPARSITIES, joint.noise, "noise in the weight gradients, mean", markers=True),
            Line(SPARSITIES, joint.growth, "growth of the energy of a gradient", markers=True),
            Rule(LIMIT),
        ]
        note = f"All layers that gain, pruned alike. Dashed: from a growth of {LIMIT:g} on, plans warn."
        charts.append(
            Chart("Noise over sparsity", "share of zeros", "factor", both, y_scale="log10", x_percent=True, note=note)
        )
    return charts


def _row(number: int, one: PruningOutlook, measured: bool) -> list[object]:
    cells = [f"{cosine:.3f} {verdict(cosine)}" for cosine in map(float, one.cosines)]
    noise = one.noise(USUAL)
    shown = [None if noise is None else f"{noise:.2g} {verdict_on_noise(noise)}"] if measured else []
    judged = verdict(one.cosine(USUAL)) if noise is None else verdict_on_noise(noise)
    return [
        number,
        one.name,
        judged if one.no_gain is None else "not worth it",
        f"{one.good:.0%}",
        f"{one.fair:.0%}",
        *shown,
        *cells,
        "may gain" if one.no_gain is None else one.no_gain.removeprefix(f"{NO_TIME}: "),
    ]
