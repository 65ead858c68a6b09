"""The page of a profile: all layers at a glance first, then each layer under a line that opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import plural
from ..laws import HalfNormal, Law, LogNormal
from ..plan import StepWork, percent
from ..report import Page
from ..treatments.verdicts import GOOD_COSINE, LARGE_RELATIVE_ERROR, VERDICTS_IN_WORDS, verdict
from . import precision
from .charts import format_charts, layer_charts, overview_charts, quantile_of
from .contributions import Contributions
from .minibatch import Minibatch
from .precision import FormatTrial
from .records import LayerProfile
from .sparsity import joint_outlook, pruning_outlooks
from .sparsity_page import add_sparsity, sparsity_in_words, sparsity_tile
from .table import variance_lines, work_lines, work_share

FOOTER = "Made by lograd: Profile.to_html"
LAW_COLUMNS = (
    "#", "layer", "kind", "elements/step", "zeros", "masked", "σ", "σ of dW", "KS lognormal", "KS normal",
    "nearest law",
)  # fmt: skip
FORMAT_COLUMNS = (
    "#", "layer", *(f"FP{bits}" for bits in precision.WIDTHS), "recommended", "relative error", "measured", "cosine",
    "measured",
)  # fmt: skip
TRIAL_COLUMNS = (
    "width", "format", "relative error predicted", "measured", "cosine predicted", "measured", "zeros predicted",
    "measured",
)  # fmt: skip
VARIANCE_COLUMNS = ("weight tensor", "elements", "V", "share", "signal |E g|²", "V / signal, batches")


def build(
    layers: Mapping[str, LayerProfile],
    missed: Mapping[str, str],
    steps: int,
    title: str,
    work: StepWork | None = None,
    uncounted: str = "",
    broken: str | None = None,
    noise: Contributions | None = None,
    minibatch: Minibatch | None = None,
    unitless: str | None = None,
) -> Page:
    """Return the page of a profile.

    Errors of all formats are computed here, which takes some milliseconds for each layer.

    Args:
        layers: the observed layers, in order of execution.
        missed: layers without a gradient, each with the reason.
        steps: backward passes, observed or not.
        title: the title of the page.
        work: operations of the whole step; None where they were not counted, and `uncounted` says why.
        broken: a sentence on NaN and infinite gradients; None where all were finite.
        noise: how noise travels between layers, where that was measured.
        minibatch: the variance of the gradient over minibatches; else `unitless` says why not, where noise is known.
    """
    observed = max((len(layer.records) for layer in layers.values()), default=0)
    page = Page(title, f"{plural(len(layers), 'layer')}, {observed:,} of {steps:,} backward passes observed.", FOOTER)
    if broken is not None:
        page.note(f"{broken} No plan follows from such gradients. Laws below are of the finite elements alone.")
    if not layers:
        return _missed(page.note("No layer was observed."), missed)
    found = {name: precision.format_trials(layer) for name, layer in layers.items()}
    ordered = list(layers.values())
    zeros = pruning_outlooks(layers, noise)
    tile = sparsity_tile(zeros)
    page.metrics([*([] if tile is None else [tile]), *_tiles(ordered, found)])
    if zeros:
        numbers = {name: number for number, name in enumerate(layers, start=1)}
        add_sparsity(page, zeros, numbers, joint_outlook(zeros, noise))
    _laws(page, ordered)
    _missed(page, missed)
    _work(page, layers, work, uncounted)
    _minibatch(page, minibatch, unitless)
    _formats(page, found)
    page.heading("Layer by layer")
    page.text("Open a layer to see its magnitudes, the laws fitted to them, and what each format would do to it.")
    for number, layer in enumerate(ordered, start=1):
        part = _details(layer, found[layer.name])
        for one in (one for one in zeros if one.name == layer.name):
            part.text(sparsity_in_words(one))
        page.fold(_summary(number, layer), part)
    return page.note(
        "Formats are simulated: values of few bits in the gradient's own type. By itself that saves neither time nor "
        "memory; it shows what such hardware would compute."
    )


def _laws(page: Page, layers: Sequence[LayerProfile]) -> None:
    page.heading("Laws over depth and time")
    page.text(
        "The neural gradient of a layer is the gradient of the loss with respect to its output. Layers are numbered in "
        "the order in which they run. σ is the standard deviation of ln|g| over the nonzero elements; the KS distance "
        "is the largest gap between the distribution of |g| and a fitted law. Masked are the zeros in the gradient at "
        "the output of the BatchNorm behind a layer, which its backward refills with small values."
    )
    page.charts(*overview_charts(layers))
    rows = [_law_row(number, layer) for number, layer in enumerate(layers, start=1)]
    page.table(LAW_COLUMNS, rows, "Laws of all layers; means over the observed steps", "rllrrrrrrrl")


def _formats(page: Page, found: Mapping[str, list[FormatTrial]]) -> None:
    page.heading("Formats")
    page.text(
        f"Recommended is the float of the fewest bits whose predicted cosine is {GOOD_COSINE:g} or more, in the "
        'split that is best for the layer\'s law; `profile.plan(bits="recommended")` takes it. Its relative error is '
        "predicted from the histogram of the last observed step and measured by rounding values captured from that "
        f"step. Cosines are {VERDICTS_IN_WORDS}."
    )
    trials = [shown for trials in found.values() for trial in trials for shown in (trial.predicted, trial.measured)]
    if any(one and one.relative_error >= 1 and verdict(one.cosine) != "risky" for one in trials):
        page.text(LARGE_RELATIVE_ERROR)
    page.charts(*format_charts(list(found.values())))
    rows = [_format_row(number, name, trials) for number, (name, trials) in enumerate(found.items(), start=1)]
    page.table(FORMAT_COLUMNS, rows, "The best split of each width, and the recommended format", "rlllllllrrrr")


def _tiles(layers: Sequence[LayerProfile], found: Mapping[str, list[FormatTrial]]) -> list[tuple[str, str, str]]:
    def median(family: type[Law]) -> float:
        return quantile_of(layer.ks(family) for layer in layers)

    low, middle, high = (quantile_of((layer.sigma for layer in layers), share) for share in (0.0, 0.5, 1.0))
    elements = np.array([layer.elements for layer in layers])
    zeros = float(elements @ [layer.zero_share for layer in layers] / max(elements.sum(), 1))
    gaps = [_gap(trial) for trials in found.values() for trial in trials if trial.name == "FP6" and trial.measured]
    broken = sum(record.nan + record.infinities for layer in layers for record in layer.records)
    tiles = [
        (_tile(median(LogNormal)), "KS distance to lognormal", f"median; normal {_tile(median(HalfNormal))}"),
        (_tile(middle), "σ of ln|g|", f"median; {_tile(low)} to {_tile(high)}"),
        (f"{zeros:.1%}", "exact zeros already", f"of {elements.sum():,} elements per step"),
    ]
    if gaps:
        tiles.append((f"{np.median(gaps):.1%}", "gap, predicted to measured", "relative error of FP6; median"))
    if broken:
        tiles.append((f"{broken:,}", "NaN or infinite elements", "left out of all laws"))
    return tiles


def _gap(trial: FormatTrial) -> float:
    """Return the distance of the predicted relative error from the measured one, as a share of the latter."""
    measured = trial.measured.relative_error if trial.measured else 0.0
    return abs(trial.predicted.relative_error / measured - 1) if measured else 0.0


def _law_row(number: int, layer: LayerProfile) -> list[object]:
    masked = layer.masked
    return [
        number,
        layer.name,
        layer.kind,
        f"{layer.elements:,}",
        f"{layer.zero_share:.1%}",
        None if masked is None else f"{masked:.1%}",
        _digits(layer.sigma, 2),
        _digits(layer.weight_sigma, 2),
        _digits(layer.ks(LogNormal), 3),
        _digits(layer.ks(HalfNormal), 3),
        layer.nearest_law,
    ]


def _format_row(number: int, name: str, found: list[FormatTrial]) -> list[object]:
    best = precision.recommended(found)
    splits = {trial.name: str(trial.format) for trial in found}
    row: list[object] = [number, name, *(splits.get(f"FP{bits}") for bits in precision.WIDTHS)]
    if best is None:
        return [*row, "more than 8 bits" if found else None, None, None, None, None]
    _, _, relative, relative_measured, cosine, cosine_measured, *_ = _trial_row(best)
    return [*row, f"{best.name}, {best.format}", relative, relative_measured, cosine, cosine_measured]


def _summary(number: int, layer: LayerProfile) -> str:
    shape = f", weight {'×'.join(map(str, layer.weight_shape))}" if layer.weight_shape else ""
    return f"{number}. `{layer.name}` {layer.kind}{shape}: σ {_tile(layer.sigma)}, {layer.zero_share:.1%} zeros"


def _details(layer: LayerProfile, found: list[FormatTrial]) -> Page:
    part = Page(layer.name)
    if not found:
        zero = all(record.zeros == record.elements for record in layer.records)
        why = "Every element of this gradient was zero" if zero else "No element of this gradient was finite but zeros"
        return part.note(f"{why}, so it has no law.")
    part.charts(*layer_charts(layer), phone=False)
    ranking = ", ".join(f"{fit.family} {fit.ks:.3f}" for fit in layer.last.fits if fit.law)
    if ranking:
        part.text(f"KS distance to each law at step {layer.last.step}: {ranking}.")
    best = precision.recommended(found)
    rows = [_trial_row(trial) for trial in found]
    chosen = [(row, column) for row, trial in enumerate(found) if trial is best for column in (0, 1)]
    caption = (
        f"What if: stochastic rounding, largest magnitude at the top of the range; measured on {layer.sample.size:,} "
        f"values of step {layer.last.step}"
    )
    return part.table(TRIAL_COLUMNS, rows, caption, "llrrrrrr", chosen)


def _trial_row(trial: FormatTrial) -> list[object]:
    predicted, measured = trial.predicted, trial.measured
    return [
        trial.name,
        str(trial.format),
        _digits(predicted.relative_error, 4),
        _digits(measured.relative_error, 4) if measured else None,
        f"{predicted.cosine:.4f} {verdict(predicted.cosine)}",
        f"{measured.cosine:.4f} {verdict(measured.cosine)}" if measured else None,
        f"{predicted.sparsity:.1%}",
        f"{measured.sparsity:.1%}" if measured else None,
    ]


def _missed(page: Page, missed: Mapping[str, str]) -> Page:
    if missed:
        page.table(("layer", "why it was not observed"), list(missed.items()), "Layers without a gradient")
    return page


def _work(page: Page, layers: Mapping[str, LayerProfile], work: StepWork | None, uncounted: str) -> None:
    """Add a table of where the operations of a step are, in layers and elsewhere."""
    page.heading("Work of a step")
    for line in work_lines(layers, work, uncounted)[:2]:
        page.text(line)
    if work is None:
        return
    rows: list[list[object]] = [[name, layer.kind, work_share(layer, work), None] for name, layer in layers.items()]
    left = sorted(work.untreated, key=lambda part: -part.total)
    rows += [[part.name, part.kind, percent(work.share(part.total)), f"not treated: {part.reason}"] for part in left]
    page.table(
        ("part", "kind", "work", "note"), rows, "Shares of the whole step; forward included where not treated", "llrl"
    )


def _minibatch(page: Page, minibatch: Minibatch | None, unitless: str | None) -> None:
    """Add the variance of the gradient over minibatches, by weight tensor."""
    lines = variance_lines(minibatch, unitless)
    if not lines:
        return
    page.heading("The minibatch's own variance")
    page.text(
        f"{lines[0]} Noise of a plan is told in this unit: a step to which noise adds ρ V is worth about one with "
        "1 / (1 + ρ) of the samples."
    )
    if minibatch is None:
        return
    rows: list[list[object]] = [
        [
            one.name,
            f"{one.elements:,}",
            f"{one.variance.mean:.3g} ± {one.variance.error:.2g}",
            percent(one.variance.mean / minibatch.unit) if minibatch.unit > 0 else None,
            f"{one.signal:.3g}",
            None if one.noise_scale is None else f"{one.noise_scale:.3g}",
        ]
        for one in (*minibatch.tensors, minibatch.total)
    ]
    page.table(VARIANCE_COLUMNS, rows, "Variance over minibatches at the weights of the profile", "lrrrrr")


def _tile(value: float) -> str:
    return _digits(value, 2) or "–"


def _digits(value: float, digits: int) -> str | None:
    return None if np.isnan(value) else f"{value:.{digits}f}"
