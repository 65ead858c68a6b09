"""The charts of a profile: all layers over depth and time, and one layer's magnitudes with the laws fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ..laws import Empirical, HalfNormal, Law, LogNormal
from ..laws.binned import try_binned
from ..report import Band, Bars, Chart, Histogram, Line, Mark, Points
from ..report.axis import Scale
from .precision import WIDTHS, FormatTrial
from .records import LayerProfile, Record, thinned

SHOWN: dict[type[Law], str] = {LogNormal: "lognormal", HalfNormal: "normal"}
"""The laws that are drawn, and their names on the page.  A normal gradient has half-normal magnitudes."""
QUANTILES = np.arange(1, 40) / 40
KS = "KS distance (0 is perfect)"
MOST_BARS = 12
"""The most layers that are drawn as bars; more are drawn as points, with as many names as there is room for."""
NAMED_LAYERS = 6
"""The most layers with a line each; a reader cannot tell more of them apart."""


def overview_charts(layers: Sequence[LayerProfile]) -> list[Chart]:
    """Return charts of all layers: spread, distance from each law and zeros, over depth and over time."""
    spread = {"neural gradient": [layer.sigma for layer in layers]}
    weights = [layer.weight_sigma for layer in layers]
    if np.isfinite(weights).any():
        spread["weight gradient"] = weights
    distances = {name: [layer.ks(family) for layer in layers] for family, name in SHOWN.items()}
    zeros = {"in the gradient": [layer.zero_share for layer in layers]}
    masked = [np.nan if (share := layer.masked) is None else share for layer in layers]
    if np.isfinite(masked).any():
        zeros["behind the BatchNorm that follows"] = masked
    charts = [
        _over_depth("Spread over depth", "standard deviation of ln|g|", layers, spread),
        _over_depth("Distance from each law over depth", KS, layers, distances),
        _over_depth("Exact zeros over depth", "share of elements", layers, zeros, percent=True),
    ]
    if max(len(layer.records) for layer in layers) > 1:
        places = np.unique(np.linspace(0, len(layers) - 1, NAMED_LAYERS).round().astype(int))
        charts += [sigma_over_time([layers[place] for place in places]), _distances_over_time(layers)]
    return charts


def format_charts(found: Sequence[Sequence[FormatTrial]]) -> list[Chart]:
    """Return charts of relative error and cosine over bits: medians over the layers, predicted and measured."""
    relative, cosine = (_over_bits(found, name) for name in ("relative_error", "cosine"))
    note = "Median over the layers. Lines: predicted. Points: measured."
    return [
        Chart(
            "Relative error over bits",
            "bits",
            "mean of |Q(g) − g| / |g|",
            relative,
            "linear",
            "log10",
            (3, 9),
            note=note,
        ),
        Chart("Cosine over bits", "bits", "cosine between g and Q(g)", cosine, x_range=(3, 9), note=note),
    ]


def _over_bits(found: Sequence[Sequence[FormatTrial]], name: str) -> list[Mark]:
    marks: list[Mark] = []
    for color, kind in enumerate(("FP", "INT")):
        columns = [[trial for trials in found for trial in trials if trial.name == f"{kind}{bits}"] for bits in WIDTHS]
        predicted = [quantile_of(getattr(trial.predicted, name) for trial in column) for column in columns]
        measured = [
            quantile_of(getattr(trial.measured, name) for trial in column if trial.measured) for column in columns
        ]
        marks += [Line(WIDTHS, predicted, kind, color=color), Points(WIDTHS, measured, color=color)]
    return marks


def quantile_of(values: Iterable[float], share: float = 0.5) -> float:
    """Return a quantile of the finite numbers; NaN where there is none."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.quantile(known, share)) if known else np.nan


def _over_depth(
    title: str, what: str, layers: Sequence[LayerProfile], columns: dict[str, list[float]], percent: bool = False
) -> Chart:
    marks: list[Mark] = []
    for label, values in columns.items():
        if len(layers) <= MOST_BARS:
            marks.append(Bars([layer.name for layer in layers], values, label))
        else:
            marks.append(Line(np.arange(len(layers)), values, label, markers=True))
    top = 1.0 if percent else _top(columns.values())
    names = [layer.name for layer in layers] if len(layers) > MOST_BARS else []
    axis = "layer, in order of execution"
    return Chart(title, axis, what, marks, y_range=(0.0, top), y_percent=percent, x_names=names)


def _distances_over_time(layers: Sequence[LayerProfile]) -> Chart:
    """Return the chart of KS distances: the median over the layers, with a band for the middle half."""
    bands: list[Mark] = []
    lines: list[Mark] = []
    for color, (family, name) in enumerate(SHOWN.items()):
        found: dict[int, list[float]] = {}
        for layer in layers:
            for record in thinned(layer.records):
                found.setdefault(record.step, []).append(record.ks(family))
        steps = sorted(found)
        low, middle, high = ([quantile_of(found[step], share) for step in steps] for share in (0.25, 0.5, 0.75))
        bands.append(Band(steps, low, high, color=color))
        lines.append(Line(steps, middle, name, color=color, markers=True))
    known = [np.asarray(band.high) for band in bands if isinstance(band, Band)]
    note = "Lines: the median over all layers. Bands: the middle half."
    marks = [*bands, *lines]
    return Chart(
        "Distance from each law over time", "step", KS, marks, y_range=(0.0, _top(known)), x_whole=True, note=note
    )


def layer_charts(layer: LayerProfile) -> list[Chart]:
    """Return the charts of one layer: its magnitudes with the fitted laws, Q-Q plots, and its course over time."""
    data = layer.law
    if data is None:
        return []
    laws = {name: law for family, name in SHOWN.items() if (law := try_binned(family, data).law) is not None}
    note = f"Step {layer.last.step}."
    charts = [_log_histogram(data, laws, note), _linear_histogram(data, laws, note)]
    charts += [_qq(name, law, data, note) for name, law in laws.items()]
    if len(layer.records) > 1:
        charts += [sigma_over_time([layer]), _ks_over_time(layer)]
    return charts


def sigma_over_time(layers: Sequence[LayerProfile]) -> Chart:
    """Return the spread of ln|g| over time, for several layers or for one layer with its weight gradient."""
    marks: list[Mark] = []
    for layer in layers:
        label = "neural gradient" if len(layers) == 1 else layer.name
        marks.append(_over_steps(layer.records, label, lambda record: record.sigma))
    if len(layers) == 1 and layers[0].weight_records:
        marks.append(_over_steps(layers[0].weight_records, "weight gradient", lambda record: record.sigma))
    return Chart("Spread over time", "step", "standard deviation of ln|g|", marks, x_whole=True)


def _over_steps(records: Sequence[Record], label: str, value: Callable[[Record], float]) -> Line:
    chosen = thinned(records)
    return Line([record.step for record in chosen], [value(record) for record in chosen], label, markers=True)


def _ks_over_time(layer: LayerProfile) -> Chart:
    marks = [_over_steps(layer.records, name, partial(Record.ks, family=family)) for family, name in SHOWN.items()]
    top = _top([np.asarray(mark.y) for mark in marks])
    return Chart("Distance from each law over time", "step", KS, marks, y_range=(0.0, top), x_whole=True)


def _top(columns: Iterable[ArrayLike]) -> float:
    """Return the upper end of an axis that begins at zero and shows all columns."""
    known = np.concatenate([np.asarray(column, dtype=np.float64) for column in columns])
    return 1.1 * float(max(known[np.isfinite(known)], default=0.0)) or 1.0


def _log_histogram(data: Empirical, laws: dict[str, Law], note: str) -> Chart:
    # Bins of a quarter octave.  The far tails, a few elements in millions, would leave little room for the rest.
    low, high = np.log2(data.quantile([0.0005, 0.9999]))
    edges = 2.0 ** np.arange(np.floor(low), np.ceil(high) + 0.25, 0.25)
    centres = np.sqrt(edges[1:] * edges[:-1])
    marks: list[Mark] = [Histogram(edges, np.diff(data.cdf(edges)) * 4, "gradient")]
    marks += [Line(centres, np.diff(law.cdf(edges)) * 4, name) for name, law in laws.items()]
    return Chart("Magnitudes, log axis", "|g|", "share per octave", marks, x_scale="log2", y_percent=True, note=note)


def _linear_histogram(data: Empirical, laws: dict[str, Law], note: str) -> Chart:
    edges = np.linspace(0.0, float(data.quantile(0.99)), 51)
    centres = (edges[1:] + edges[:-1]) / 2
    heights = np.diff(data.cdf(edges)) / np.diff(edges)
    marks: list[Mark] = [Histogram(edges, heights, "gradient")]
    marks += [Line(centres, np.diff(law.cdf(edges)) / np.diff(edges), name) for name, law in laws.items()]
    second, highest = np.sort(heights)[-2:].tolist()
    cut = heights[0] == highest > 4 * second > 0
    note += " Up to the 99th percentile" + ("; the first bin is cut off." if cut else ".")
    top = 2.5 * second if cut else 1.1 * highest
    return Chart("Magnitudes, linear axis", "|g|", "density", marks, y_range=(0.0, top), note=note)


def _qq(name: str, law: Law, data: Empirical, note: str) -> Chart:
    expected, observed = law.quantile(QUANTILES), data.quantile(QUANTILES)
    log = name == "lognormal"
    both = np.concatenate([expected, observed])
    ends = [both.min() if log else 0.0, both.max()]
    marks = [Line(ends, ends, "equal", color=7, dashed=True), Points(expected, observed, "quantiles", color=0)]
    scale: Scale = "log2" if log else "linear"
    return Chart(
        f"Q-Q against the {name} law", f"quantile of the fitted {name} law", "quantile of |g|", marks,
        x_scale=scale, y_scale=scale, note=f"{note} From 2.5 % to 97.5 % of the elements.",
    )  # fmt: skip
