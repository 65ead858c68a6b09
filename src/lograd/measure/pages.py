"""What people see of a profile: the table for the terminal, figures by matplotlib, and the HTML page.

All numbers come from `records` and `prediction`; nothing is computed here that is not also in `Profile.rows`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidValue, plural
from ..laws import HalfNormal, Law, LogNormal
from ..laws.binned import try_binned
from ..plan import LIMIT, percent
from ..plots import Section, bars, histogram, lines, write_page
from ..text import TextTable, text_table
from ..treatments.verdicts import GOOD_COSINE, LARGE_RELATIVE_ERROR, VERDICTS_IN_WORDS, verdict
from . import prediction
from .planner import Measurements
from .prediction import SPARSITIES, USUAL, FormatTrial, JointOutlook, PruningOutlook
from .records import LayerProfile, Record, thinned

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

ZEROS = ("good zeros", "fair zeros")
SHARE = "V"
COLUMNS = (
    "layer", "<kind", "<weight", "elements/step", "work", SHARE, "zeros", "masked", "sigma (ln)", "smallest", "largest",
    "KS lognormal", "KS normal", "<nearest law", "weights' sigma", *ZEROS,
)  # fmt: skip
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
    meaning = f"Good and fair zeros: the sparsity up to which pruning has such a cosine; {VERDICTS_IN_WORDS}."
    notes = [(ZEROS, meaning)]
    if minibatch is not None:
        notes.append(
            ((SHARE,), "V: the share of the layer's weight in the minibatch's own variance of the gradient.")  # type: ignore[arg-type]
        )
    cells = [_cells(profile, layer) for layer in layers.values()]
    return text_table(
        title,
        columns,
        [[row[name] for name in columns] for row in cells],
        "\n".join(filter(None, lines)),
        droppable=DROPPABLE,
        notes=notes if layers else [],
    )


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


def _cells(profile: Measurements, layer: LayerProfile) -> dict[str, str]:
    """Return the cells of a layer by column."""
    known = [record for record in layer.records if record.law is not None]
    masked, zeros = layer.masked, prediction.pruning_outlook(layer)
    share = None if profile.minibatch is None else profile.minibatch.share(layer.name)
    smallest = min((record.smallest for record in known), default=np.nan)
    largest = max((record.largest for record in known), default=np.nan)
    cells = (
        layer.name,
        layer.kind,
        "×".join(map(str, layer.weight_shape)) if layer.weight_shape else "–",
        f"{layer.elements:,}",
        _work_share(profile, layer),
        "–" if share is None else percent(share),
        f"{layer.zero_share:.1%}",
        "–" if masked is None else f"{masked:.1%}",
        _number(layer.sigma, ".2f"),
        _number(np.log2(smallest), "2^.1f"),
        _number(np.log2(largest), "2^.1f"),
        _number(layer.ks(LogNormal), ".3f"),
        _number(layer.ks(HalfNormal), ".3f"),
        layer.nearest_law or "–",
        _number(layer.weight_sigma, ".2f"),
        *(["–", "–"] if zeros is None else [f"{zeros.good:.0%}", f"{zeros.fair:.0%}"]),
    )
    return dict(zip(COLUMNS, cells, strict=True))


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


def _work_share(profile: Measurements, layer: LayerProfile) -> str:
    if profile.work is None or layer.flops_weight is None:
        return "–"
    return percent(profile.work.share((layer.flops_input or 0) + layer.flops_weight))


def _number(value: float, form: str) -> str:
    """Return a number as text; a form that begins with 2^ is that of a power of two."""
    if np.isnan(value):
        return "–"
    return f"2^{format(value, form[2:])}" if form.startswith("2^") else format(value, form)


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


def _over_depth(layers: Sequence[LayerProfile]) -> list[Figure]:
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
        places = np.unique(np.linspace(0, len(layers) - 1, MOST_LINES).round().astype(int))
        found.append(_over_time([layers[place] for place in places], lambda record: record.sigma))
    return found


def _over_time(layers: Sequence[LayerProfile], value: Callable[[Record], float]) -> Figure:
    series = {}
    for layer in layers:
        chosen = thinned(layer.records)
        series[layer.name] = ([record.step for record in chosen], [value(record) for record in chosen])
    return lines(series, "Spread over time", "step", "standard deviation of ln|g|", style="o-")


def _over_bits(found: Sequence[Sequence[FormatTrial]]) -> list[Figure]:
    """Return relative error and cosine over bits: medians over the layers, predicted and measured."""
    made = []
    labels = {"relative_error": "mean of |Q(g) − g| / |g|", "cosine": "cosine between g and Q(g)"}
    for name, label in labels.items():
        series, style = {}, {}
        for kind in ("FP", "INT"):
            columns = [
                [trial for trials in found for trial in trials if trial.name == f"{kind}{bits}"]
                for bits in prediction.WIDTHS
            ]
            for side, form in (("predicted", "-"), ("measured", "o")):
                of_side = [[getattr(trial, side) for trial in column] for column in columns]
                medians = [median(getattr(one, name) for one in column if one) for column in of_side]
                series[f"{kind}, {side}"], style[f"{kind}, {side}"] = (prediction.WIDTHS, medians), form
        title = "Relative error over bits" if name == "relative_error" else "Cosine over bits"
        log = "y" if name == "relative_error" else ""
        made.append(lines(series, f"{title}, median over the layers", "bits", label, log=log, style=style))
    return made


def _over_sparsity(found: Sequence[PruningOutlook], joint: JointOutlook | None) -> list[Figure]:
    """Return the cosine over sparsity, the sparsity of each layer, and the noise of pruning all layers that gain."""
    gaining = [one for one in found if one.no_gain is None] or list(found)
    places = np.unique(np.linspace(0, len(gaining) - 1, MOST_LINES).round().astype(int))
    curves = {gaining[place].name: (SPARSITIES, gaining[place].cosines) for place in places}
    limits = {"good up to": [one.good for one in found], "fair up to": [one.fair for one in found]}
    names = [one.name for one in found]
    made = [
        lines(curves, "Cosine over sparsity, predicted", "share of zeros", "cosine", style="o-"),
        bars(names, limits, "Zeros that a layer takes", "share of zeros", x_label=ORDER, percent=True),
    ]
    if joint is not None:
        series = {"noise in the weight gradients": (SPARSITIES, joint.noise), "growth": (SPARSITIES, joint.growth)}
        series["where training breaks"] = (SPARSITIES, [LIMIT] * len(SPARSITIES))
        style = {"noise in the weight gradients": "o-", "growth": "o-", "where training breaks": "--"}
        title = "All layers that gain, pruned alike"
        made.append(lines(series, title, "share of zeros", "over the signal", log="y", style=style))
    return made


def median(values: Iterable[float]) -> float:
    """Return the median of the finite numbers; NaN where there is none."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else np.nan


# -- the page --


def write_profile(profile: Measurements, path: str | os.PathLike[str], title: str) -> Path:
    """Write the page of a profile; errors of all formats are computed here, some milliseconds for each layer."""
    layers = list(profile.layers.values())
    broken = f"{profile.broken} No plan follows from such gradients. " if profile.broken else ""
    if not layers:
        return write_page(
            path, title, [Section(text=f"{broken}No layer was observed.", tables=[profile_table(profile)])]
        )
    trials = {name: prediction.format_trials(layer) for name, layer in profile.layers.items()}
    zeros = prediction.pruning_outlooks(profile.layers, profile.noise)
    observed = max(len(layer.records) for layer in layers)
    text = f"{broken}{plural(len(layers), 'layer')}, {observed:,} of {profile.steps:,} backward passes observed."
    sections = [Section(text=text, numbers=_numbers(layers, zeros)), *_zeros(profile, zeros)]
    sections.append(
        Section(
            "Laws over depth and time",
            "The neural gradient of a layer is the gradient of the loss with respect to its output. σ is the standard "
            "deviation of ln|g| over the nonzero elements; the KS distance is the largest gap between the distribution "
            "of |g| and a fitted law. Masked are the zeros in the gradient at the output of the BatchNorm behind a "
            "layer, which its backward refills with small values.",
            figures=_over_depth(layers),
            tables=[profile_table(profile)],
        )
    )
    sections += [*_minibatch(profile), _formats(trials), *_by_layer(layers, trials, zeros)]
    footer = (
        "Formats are simulated: values of few bits in the gradient's own type. By itself that saves neither time nor "
        "memory; it shows what such hardware would compute. Made by lograd: Profile.to_html."
    )
    return write_page(path, title, sections, footer)


def _numbers(layers: Sequence[LayerProfile], zeros: Sequence[PruningOutlook]) -> dict[str, str]:
    gaining = [one for one in zeros if one.no_gain is None]
    share = sum(layer.elements * layer.zero_share for layer in layers) / max(sum(layer.elements for layer in layers), 1)
    good = f"{median(one.good for one in gaining):.0%}" if gaining else "none"
    return {
        f"zeros with a good cosine; median of {len(gaining)} of {len(zeros)} layers that may gain time": good,
        "KS distance to lognormal, median": _number(median(layer.ks(LogNormal) for layer in layers), ".2f"),
        "σ of ln|g|, median": _number(median(layer.sigma for layer in layers), ".2f"),
        "exact zeros already": f"{share:.1%}",
    }


def _zeros(profile: Measurements, found: Sequence[PruningOutlook]) -> list[Section]:
    if not found:
        return []
    measured = any(one.arrives is not None for one in found)
    text = (
        "Zeros save time: on the CPU, products of a pruned gradient skip them. Pruning is stochastic and unbiased, so "
        "it adds noise: the cosine between a gradient and its pruned copy says how much. It is predicted from the "
        f"histogram of the last observed step: {VERDICTS_IN_WORDS}. Layers in which zeros save no time are small, or "
        "no sparse kernel serves them; `profile.plan(sparsity=0.85)` leaves them alone.\n\n"
    )
    text += (
        "Noise was measured: its column says how much arrives in the weight gradients if this layer alone is pruned, "
        "|error of dW|² / |dW|² summed over all layers: 1 is as much noise as one weight gradient has signal."
        if measured
        else "How much of this noise arrives in the weight gradients was not measured; `lograd.profile(..., noise=2)` "
        "or `lograd profile --noise 2` does it."
    )
    columns = ["layer", f"at {USUAL:.0%}", "good up to", "fair up to", f"noise at {USUAL:.0%}"]
    columns += [*(f"{sparsity:.0%} zeros" for sparsity in SPARSITIES), "<time"]
    rows = [
        [
            one.name,
            verdict(one.cosine(USUAL)),
            f"{one.good:.0%}",
            f"{one.fair:.0%}",
            "–" if (noise := one.noise(USUAL)) is None else f"{noise:.2g}",
            *(f"{cosine:.3f}" for cosine in one.cosines),
            one.no_gain or "may save time",
        ]
        for one in found
    ]
    joint = prediction.joint_outlook(found, profile.noise)
    table = text_table("Predicted cosine over sparsity", columns, rows)
    return [Section("Sparsity: zeros that save time", text, figures=_over_sparsity(found, joint), tables=[table])]


def _minibatch(profile: Measurements) -> list[Section]:
    """Return the variance of the gradient over minibatches, by weight tensor."""
    found = profile.minibatch
    if found is None:
        return [Section("The minibatch's own variance", profile.unitless)] if profile.unitless else []
    rows = [
        [
            one.name,
            f"{one.elements:,}",
            f"{one.variance.mean:.3g} ± {one.variance.error:.2g}",
            percent(one.variance.mean / found.unit) if found.unit > 0 else "–",
            f"{one.signal:.3g}",
            "–" if one.noise_scale is None else f"{one.noise_scale:.3g}",
        ]
        for one in (*found.tensors, found.total)
    ]
    columns = ("weight tensor", "elements", "V", "share", "signal |E g|²", "V / signal, batches")
    text = (
        f"{found.words()} Noise of a plan is told in this unit: a step to which noise adds ρ V is worth about one with "
        "1 / (1 + ρ) of the samples."
    )
    return [Section("The minibatch's own variance", text, tables=[text_table("", columns, rows)])]


def _formats(found: dict[str, list[FormatTrial]]) -> Section:
    text = (
        f"Recommended is the float of the fewest bits whose predicted cosine is {GOOD_COSINE:g} or more, in the split "
        'that is best for the layer\'s law; `profile.plan(bits="recommended")` takes it. Errors are predicted from the '
        "histogram of the last observed step, and measured by rounding values captured from that step."
    )
    shown = [one for trials in found.values() for trial in trials for one in (trial.predicted, trial.measured)]
    if any(one and one.relative_error >= 1 and verdict(one.cosine) != "risky" for one in shown):
        text += f"\n\n{LARGE_RELATIVE_ERROR}"
    columns = ("layer", *(f"<FP{bits}" for bits in prediction.WIDTHS), "<recommended")
    rows = []
    for name, trials in found.items():
        best, splits = prediction.recommended(trials), {trial.name: str(trial.format) for trial in trials}
        chosen = "more than 8 bits" if best is None else f"{best.name}, {best.format}"
        widths = [splits.get(f"FP{bits}", "–") for bits in prediction.WIDTHS]
        rows.append([name, *widths, chosen if trials else "–"])
    table = text_table("The best split of each width, and the recommended format", columns, rows)
    return Section("Formats", text, figures=_over_bits(list(found.values())), tables=[table])


def _by_layer(
    layers: Sequence[LayerProfile], trials: dict[str, list[FormatTrial]], zeros: Sequence[PruningOutlook]
) -> list[Section]:
    """Return a folded section for each layer."""
    places = np.linspace(0, len(layers) - 1, min(MOST_DRAWN, len(layers))).round().astype(int).tolist()
    outlook = {one.name: one for one in zeros}
    sections = []
    for place, layer in enumerate(layers):
        shape = f", weight {'×'.join(map(str, layer.weight_shape))}" if layer.weight_shape else ""
        heading = f"{place + 1}. {layer.name}, {layer.kind}{shape}"
        if layer.law is None:
            zero = all(record.zeros == record.elements for record in layer.records)
            why = "Every element of this gradient was zero" if zero else "No element was finite but zeros"
            sections.append(Section(heading, f"{why}, so it has no law.", folded=True))
            continue
        text = f"σ {_number(layer.sigma, '.2f')}, {layer.zero_share:.1%} zeros. KS distance to each law: "
        text += ", ".join(f"{fit.family} {fit.ks:.3f}" for fit in layer.last.fits if fit.law) + "."
        if (one := outlook.get(layer.name)) is not None:
            gain = "they may save time" if one.no_gain is None else one.no_gain
            text += f" Zeros: the cosine is good up to {one.good:.0%} and fair up to {one.fair:.0%}; {gain}."
        tables = [_trial_table(layer, trials[layer.name])]
        sections.append(
            Section(heading, text, figures=[layer_figure(layer)] if place in places else (), tables=tables, folded=True)
        )
    return sections


def _trial_table(layer: LayerProfile, found: Sequence[FormatTrial]) -> TextTable:
    columns = ["width", "<format"]
    for name in ("relative error", "cosine", "zeros"):
        columns += [f"{name} predicted", f"{name} measured"]
    rows = []
    for trial in found:
        cells = [trial.name, str(trial.format)]
        for name, form in (("relative_error", ".4f"), ("cosine", ".4f"), ("sparsity", ".1%")):
            sides = (trial.predicted, trial.measured)
            cells += ["–" if one is None else format(getattr(one, name), form) for one in sides]
        rows.append(cells)
    caption = (
        f"Stochastic rounding, largest magnitude at the top of the range; measured on {layer.sample.size:,} values of "
        f"step {layer.last.step}."
    )
    return text_table("", columns, rows, caption)
