"""What people see of a profile: the table for the terminal, figures by matplotlib, and the HTML page.

All numbers come from `records` and `prediction`; nothing is computed here that is not also in `Profile.rows`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidValue, plural
from ..laws import HalfNormal, Law, LogNormal
from ..laws.binned import try_binned
from ..plan import percent
from ..plots import Section, bars, histogram, lines, write_page
from ..text import TextTable, text_table
from ..treatments.verdicts import GOOD_COSINE, VERDICTS_IN_WORDS, verdict
from . import prediction
from .planner import Measurements
from .prediction import USUAL
from .records import LayerProfile, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAWS: dict[type[Law], str] = {LogNormal: "lognormal", HalfNormal: "normal"}
"""The laws that are drawn, and their names.  A normal gradient has half-normal magnitudes."""
MOST_DRAWN = 16
"""The most layers whose magnitudes a page draws; all are in its tables."""
MOST_LINES = 6
"""The most layers with a line each; a reader cannot tell more of them apart."""
ORDER = "layer, in order of execution"

# -- the table --

SHARE = "V"
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "layer": ("name", str),
    "<kind": ("kind", str),
    "<weight": ("weight", lambda shape: "×".join(map(str, shape)) or "–"),
    "elements/step": ("elements", "{:,}".format),
    "work": ("work", percent),
    SHARE: ("variance_share", percent),
    "zeros": ("zeros", "{:.1%}".format),
    "masked": ("masked", "{:.1%}".format),
    "sigma (ln)": ("sigma", "{:.2f}".format),
    "smallest": ("smallest", lambda value: f"2^{math.log2(value):.1f}"),
    "largest": ("largest", lambda value: f"2^{math.log2(value):.1f}"),
    "KS lognormal": ("ks_lognormal", "{:.3f}".format),
    "KS normal": ("ks_normal", "{:.3f}".format),
    "<nearest law": ("nearest_law", str),
    "weights' sigma": ("weight_sigma", "{:.2f}".format),
    "good zeros": ("good_sparsity", "{:.0%}".format),
    "fair zeros": ("fair_sparsity", "{:.0%}".format),
}
"""The columns of the table: where each is in a row, and its form."""
DROPPABLE = (
    "weights' sigma", "smallest", "largest", "<weight", "masked", "<kind", "elements/step", "KS normal", "KS lognormal",
    "<nearest law", SHARE,
)  # fmt: skip
"""Columns that a narrow terminal does without, the least important first."""


def profile_table(profile: Measurements) -> TextTable:
    """Return the table of a profile, a row for each layer."""
    layers, minibatch = profile.layers, profile.minibatch
    observed = max((len(layer.records) for layer in layers.values()), default=0)
    title = f"Gradients of {plural(len(layers), 'layer')}, {observed:,} observed of {plural(profile.steps, 'step')}"
    lines = [profile.broken or "", *(f"{name}: not observed, {reason}" for name, reason in profile.missed.items())]
    lines += [*work_lines(profile), "" if minibatch is None else minibatch.words(), profile.unitless or ""]
    columns = [name for name in COLUMNS if name != SHARE or minibatch is not None]
    if layers:
        lines += [f"Good and fair zeros: the sparsity up to which pruning has such a cosine; {VERDICTS_IN_WORDS}."]
    if layers and minibatch is not None:
        lines += ["V: the share of the layer's weight in the minibatch's own variance of the gradient."]
    rows = [layer_row(profile, layer) for layer in layers.values()]
    forms = [COLUMNS[column] for column in columns]
    cells = [["–" if row[name] is None else form(row[name]) for name, form in forms] for row in rows]
    return text_table(title, columns, cells, "\n".join(filter(None, lines)), droppable=DROPPABLE)


def layer_row(profile: Measurements, layer: LayerProfile) -> dict[str, Any]:
    """Return what is known of a layer: its size, work, laws and zeros; None stands for what is not known."""
    known = [record for record in layer.records if record.law is not None]
    zeros, work = prediction.pruning_outlook(layer), None
    if profile.work is not None and layer.flops_weight is not None:
        work = profile.work.share((layer.flops_input or 0) + layer.flops_weight)
    numbers = {
        "work": work,
        "variance_share": None if profile.minibatch is None else profile.minibatch.share(layer.name),
        "zeros": layer.zero_share,
        "masked": layer.masked,
        "sigma": layer.sigma,
        "weight_sigma": layer.weight_sigma,
        "smallest": min((record.smallest for record in known), default=None),
        "largest": max((record.largest for record in known), default=None),
        "ks_lognormal": layer.ks(LogNormal),
        "ks_normal": layer.ks(HalfNormal),
        "good_sparsity": None if zeros is None else zeros.good,
        "fair_sparsity": None if zeros is None else zeros.fair,
    }
    return {
        "name": layer.name,
        "kind": layer.kind,
        "weight": list(layer.weight_shape or ()),
        "elements": layer.elements,
        **{key: None if value is None or np.isnan(value) else float(value) for key, value in numbers.items()},
        "nearest_law": layer.nearest_law,
        "nan": sum(record.nan for record in layer.records),
        "infinities": sum(record.infinities for record in layer.records),
        "first_broken_step": next((one.step for one in layer.records if one.nan or one.infinities), None),
        **{name: getattr(layer, name) for name in ("flops_forward", "flops_input", "flops_weight")},
        "no_gain": zeros and zeros.no_gain,
    }


ROW_NOISES = (0.0, 0.02, 0.05, 0.1)
"""The noise of a layer's gradient for which a table says how many of its rows are kept."""


def row_table(profile: Measurements) -> TextTable:
    """Return the table of the rows of gradients: tokens, samples or pixels that a layer multiplies, by noise."""
    columns = ("layer", "rows", "rows that are zero", *(f"kept at noise {noise:g}" for noise in ROW_NOISES[1:]))
    lines = []
    for name, layer in profile.layers.items():
        kept = [layer.rows_kept(noise) for noise in ROW_NOISES]
        if kept[0] is not None:
            shares = [1 - kept[0], *(one or 0.0 for one in kept[1:])]
            lines.append([name, f"{layer.row_records[-1].elements:,}", *(f"{share:.1%}" for share in shares)])
    caption = "Predicted by the law of row norms at the last observed step; noise is relative to the gradient's energy."
    return text_table("Rows of gradients", columns, lines, caption)


def work_lines(profile: Measurements) -> list[str]:
    """Return sentences on what the column of work means, and on which part of the step no plan can treat."""
    if profile.work is None:
        why = f": {profile.uncounted}" if profile.uncounted else ""
        return [f"The multiply-adds of the whole training step were not counted{why}."]
    counts = {name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in profile.layers.items()}
    return [
        "Work is the share of the products for dX and dW in the multiply-adds of the whole training step.",
        *profile.work.lines(counts),
    ]


# -- figures --


def distances(layers: Sequence[LayerProfile]) -> Figure:
    """Return the distance of each layer's gradient from the fitted laws."""
    series = {name: [layer.ks(family) for layer in layers] for family, name in LAWS.items()}
    names = [layer.name for layer in layers]
    return bars(names, series, "Distance from each law", "KS distance (0 is perfect)", x_label=ORDER)


def layer_figure(layer: LayerProfile) -> Figure:
    """Return the histogram of one layer's last gradient with the fitted laws; refuse a gradient of zeros."""
    if layer.law is None:
        raise InvalidValue(f"the gradient of layer {layer.name!r} was zero, so there is nothing to draw.")
    laws = {name: law for family, name in LAWS.items() if (law := try_binned(family, layer.law).law) is not None}
    return histogram(layer.law, laws, f"{layer.name}, step {layer.last.step}")


def _figures(layers: Sequence[LayerProfile]) -> list[Figure]:
    names = [layer.name for layer in layers]
    spread = {"neural gradient": [layer.sigma for layer in layers]}
    weights = [layer.weight_sigma for layer in layers]
    if np.isfinite(weights).any():
        spread["weight gradient"] = weights
    zeros = {"in the gradient": [layer.zero_share for layer in layers]}
    masked = [np.nan if (share := layer.masked) is None else share for layer in layers]
    if np.isfinite(masked).any():
        zeros["behind the BatchNorm that follows"] = masked
    found = [
        bars(names, spread, "Spread over depth", "standard deviation of ln|g|", x_label=ORDER),
        distances(layers),
        bars(names, zeros, "Exact zeros over depth", "share of elements", x_label=ORDER, percent=True),
    ]
    if max(len(layer.records) for layer in layers) > 1:
        series = {}
        for layer in _evenly(layers, MOST_LINES):
            chosen = thinned(layer.records)
            series[layer.name] = ([record.step for record in chosen], [record.sigma for record in chosen])
        found.append(lines(series, "Spread over time", "step", "standard deviation of ln|g|", style="o-"))
    return found


def _evenly(layers: Sequence[LayerProfile], most: int) -> list[LayerProfile]:
    """Return at most so many layers, evenly spaced, with the first and the last."""
    places = np.linspace(0, len(layers) - 1, min(most, len(layers))).round().astype(int)
    return [layers[place] for place in places.tolist()]


# -- the page --


def write_profile(profile: Measurements, path: str | os.PathLike[str], title: str) -> Path:
    """Write the page of a profile."""
    layers = list(profile.layers.values())
    broken = f"{profile.broken} No plan follows from such gradients. " if profile.broken else ""
    observed = max((len(layer.records) for layer in layers), default=0)
    text = f"{broken}{plural(len(layers), 'layer')}, {observed:,} of {profile.steps:,} backward passes observed."
    explained = (
        "The neural gradient of a layer is the gradient of the loss with respect to its output. σ is the standard "
        "deviation of ln|g| over the nonzero elements; the KS distance is the largest gap between the distribution of "
        "|g| and a fitted law. Masked are the zeros in the gradient at the output of the BatchNorm behind a layer, "
        "which its backward refills with small values."
    )
    sections = [Section(text=f"{text}\n\n{explained}", tables=[profile_table(profile)])]
    if layers:
        drawn = [layer_figure(layer) for layer in _evenly([one for one in layers if one.law], MOST_DRAWN)]
        sections += [_zeros(profile), _formats(profile)]
        sections += [Section("Laws over depth and time", figures=_figures(layers)), Section("Laws", figures=drawn)]
    return write_page(path, title, sections, "Made by lograd: Profile.to_html.")


def _zeros(profile: Measurements) -> Section:
    text = (
        "Zeros save time: on the CPU, products of a pruned gradient skip them. Pruning is stochastic and unbiased, so "
        "it adds noise: the cosine between a gradient and its pruned copy says how much. It is predicted from the "
        f"histogram of the last observed step: {VERDICTS_IN_WORDS}. Noise, where it was measured, is what arrives in "
        "the weight gradients if this layer alone is pruned, |error of dW|² / |dW|² summed over all layers."
    )
    rows = []
    for name, layer in profile.layers.items():
        if (one := prediction.pruning_outlook(layer, profile.noise)) is not None:
            noise = "–" if one.noise is None else f"{one.noise:.2g}"
            cells = [verdict(one.cosine), f"{one.good:.0%}", f"{one.fair:.0%}", noise, one.no_gain or "may save time"]
            rows.append([name, *cells])
    columns = ("layer", f"at {USUAL:.0%}", "good up to", "fair up to", f"noise at {USUAL:.0%}", "<time")
    return Section("Sparsity: zeros that save time", text, tables=[text_table("Predicted zeros", columns, rows)])


def _formats(profile: Measurements) -> Section:
    text = (
        f"Recommended is the float of the fewest bits whose predicted cosine is {GOOD_COSINE:g} or more, in the split "
        'that is best for the layer\'s law; `profile.plan(bits="recommended")` takes it. Formats are simulated: values '
        "of few bits in the gradient's own type. By itself that saves neither time nor memory."
    )
    rows = []
    for name, layer in profile.layers.items():
        if layer.law is not None:
            tried = [f"{format} {cosine:.3f}" for format, cosine in prediction.tried_formats(layer.law)]
            rows.append([name, *tried, str(prediction.recommended_format(layer.law) or "more than 8 bits")])
    columns = ("layer", *(f"<FP{bits}" for bits in prediction.WIDTHS), "<recommended")
    title = "The best split of each width, with the cosine of stochastic rounding to it"
    return Section("Formats", text, tables=[text_table(title, columns, rows)])
