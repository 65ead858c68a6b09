"""The tables of a measurement for the terminal: weight tensors, and the layers whose treatments add noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import plural
from ..report import TextTable, text_table
from .measured import Measured
from .values import Findings, SiteVariance, TensorVariance

NOISE = ("rho = W/V",)
COLUMNS = (
    "weight tensor", "rho = W/V", "<bias", "noise W", "minibatch V", "signal |E g|²", "bias² / W", "band / W",
    "elements",
)  # fmt: skip
FORWARD = ("cosine to float32", "norm to float32")
MOST_NAMES = 4
"""The most tensors that a sentence names."""
SITE_COLUMNS = (
    "layer", "<product", "<treatment", "|G|²", "noise / |G|²", "by the law", "bound", "noise / bound", "in V",
    "arrives", "predicted",
)  # fmt: skip


def tensor_table(found: Findings) -> TextTable:
    """Return the table of weight tensors, with the whole gradient as the last row."""
    rows = [*found.tensors, found.total]
    forward = any(one.forward is not None for one in rows)
    columns = (*COLUMNS[:3], *FORWARD, *COLUMNS[3:]) if forward else COLUMNS
    notes: list[tuple[tuple[str, ...], str]] = []
    if found.total.rho is not None:
        notes.append((NOISE, _cost(found.total, found.total.rho)))
    notes.append((("<bias",), bias_words(found)))
    if forward:
        notes.append(
            (FORWARD, "To float32: the change of the exact gradient by the quantized forward, a bias of its own kind.")
        )
    return text_table(
        f"Variance of the gradients: {found.plan}",
        columns,
        [_tensor_row(one, forward) for one in rows],
        caption(found),
        droppable=("elements", "signal |E g|²", "band / W", "bias² / W", *FORWARD[1:], "minibatch V", "noise W"),
        notes=notes,
    )


def caption(found: Findings) -> str:
    """Return sentences on what was measured, and in which unit."""
    return (
        f"V from {found.batches:,} minibatches; W from {found.repeats} draws "
        f"of random numbers on {found.treated} of them. Squared norms are in the unit of the squared gradient, ± one "
        "standard error, which is that for these minibatches in W and bias²."
    )


def bias_words(found: Findings) -> str:
    """Return the verdict on the bias in a sentence."""
    if not found.biased:
        return "Bias: every tensor is inside the band, so chance alone explains it (4 sigma)."
    return f"Bias: {plural(len(found.biased), 'tensor')} outside the band of chance (4 sigma): {listed(found.biased)}."


def _cost(total: TensorVariance, rho: Measured) -> str:
    if not total.inside_band:
        return "W contains a bias, which no number of samples averages out, so rho does not say what it costs."
    return f"A step costs as much as one with {1 / (1 + rho.mean):.1%} of the samples, 1 / (1 + rho)."


def _tensor_row(one: TensorVariance, forward: bool) -> list[str]:
    share = [_ratio(value, one.noise.mean) for value in (one.bias.mean, one.band)]
    change = [] if not forward else ["–", "–"]
    if one.forward is not None:
        change = [f"{one.forward.cosine:.4f}", f"{one.forward.norm:.3f}"]
    return [
        one.name,
        measured(one.rho),
        verdict(one),
        *change,
        measured(one.noise),
        measured(one.minibatch),
        number(one.signal),
        *share,
        f"{one.elements:,}",
    ]


def verdict(one: TensorVariance) -> str:
    """Return where the bias of a tensor lies."""
    if one.noise.mean == 0:
        return "no noise"
    return "inside the band" if one.inside_band else "outside"


def site_table(found: Findings) -> TextTable:
    """Return the table of treated gradients, with what each adds to the weight gradients."""
    rows = [site_row(found, one, first) for one, first in _with_first(found.sites)]
    known = {one.layer for one in found.sites}
    others = () if found.contributions is None else found.contributions.layers
    extra = [[name, *["–"] * 7, *arrival_cells(found, name)] for name in others if name not in known]
    notes = []
    if found.contributions is not None:
        notes = [(("in V",), sum_words(found)), (("predicted",), prediction_words(found))]
    return text_table(
        "Noise by layer: the quantizers alone, and what each layer adds to all weight gradients",
        SITE_COLUMNS,
        [*rows, *extra],
        "Noise / |G|²: E|Q(G) − G|² of the quantizer on the exact gradient of the first minibatch; by the law: "
        "predicted from the histogram of |G|; bound: of the StatQuant paper. In V: the noise in the whole gradient "
        "with this layer alone treated, over V. Arrives: the same over |dW|², summed over the layers; predicted: by "
        "propagation.",
        droppable=("<treatment", "|G|²", "by the law", "noise / bound", "bound", "arrives", "predicted"),
        notes=notes,
    )


def _with_first(sites: tuple[SiteVariance, ...]) -> list[tuple[SiteVariance, bool]]:
    """Return each site, and True for the first of its layer."""
    names = [one.layer for one in sites]
    return [(one, names.index(one.layer) == place) for place, one in enumerate(sites)]


def site_row(found: Findings, one: SiteVariance, first: bool) -> list[str]:
    """Return the cells of a site; those of its layer stand in the row of its first site."""
    return [
        one.layer if first else "",
        one.product,
        one.words,
        number(one.energy),
        _ratio(one.noise.mean, one.energy),
        "–" if one.predicted is None else _ratio(one.predicted, one.energy),
        "–" if one.bound is None else _ratio(one.bound, one.energy),
        "–" if one.bound is None else _ratio(one.noise.mean, one.bound),
        *(arrival_cells(found, one.layer) if first else ["", "", ""]),
    ]


def arrival_cells(found: Findings, layer: str) -> list[str]:
    """Return what a layer adds: to the whole gradient in units of V, and relative to |dW|^2 with its prediction."""
    matrix = found.contributions
    if matrix is None or layer not in matrix.layers:
        return ["–", "–", "–"]
    row = matrix.layers.index(layer)
    unit = Measured(found.total.minibatch.mean, 0.0)  # the error of the unit is that of all rows, and stands elsewhere
    added = Measured(float(matrix.noise[row, -1]), float(matrix.errors[row, -1])).over(unit)
    return [measured(added), number(matrix.arrived[row]), number(matrix.predicted[row])]


def sum_words(found: Findings) -> str:
    """Return whether the noises of single layers add up to that of the plan, in a sentence."""
    assert found.contributions is not None
    whole, parts = found.total.noise, found.contributions.sum()
    deviating = [
        one.name
        for one in (*found.tensors, found.total)
        if not found.contributions.sum(one.name).agrees(one.noise.mean, one.noise.error)
    ]
    ratio = f"{parts.mean / whole.mean:.3g} of" if whole.mean > 0 else "as much as"
    where = f"; they differ by more than 4 sigma in {listed(deviating)}" if deviating else ", equal within 4 sigma"
    return f"Alone the layers add {ratio} the noise that they add together{where}."


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def prediction_words(found: Findings) -> str:
    """Return what propagation expects of the whole plan, in a sentence."""
    matrix = found.contributions
    assert matrix is not None
    if np.isnan(matrix.predicted_together):
        return "Propagation does not tell what arrives of the whole plan."
    return (
        f"Of the whole plan arrives {number(matrix.arrived_together)}; propagation, growth over depth included, "
        f"predicts {number(matrix.predicted_together)}."
    )


def number(value: float) -> str:
    """Return three significant digits; a dash for NaN."""
    return "–" if np.isnan(value) else f"{value:.3g}"


def measured(value: Measured | None) -> str:
    """Return a mean with its standard error; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value.mean:.3g} ± {value.error:.1g}"


def _ratio(value: float, over: float) -> str:
    return f"{value / over:.3g}" if over > 0 else "–"
