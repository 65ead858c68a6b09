"""The table of a profile for the terminal: one row for each layer, and sentences on what was not observed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import plural
from ..laws import HalfNormal, LogNormal
from ..plan import StepWork, percent
from ..report import TextTable, text_table
from ..treatments.verdicts import VERDICTS_IN_WORDS
from .minibatch import Minibatch
from .records import LayerProfile
from .sparsity import pruning_outlook

ZEROS = ("good zeros", "fair zeros")
COLUMNS = (
    "layer", "<kind", "<weight", "elements/step", "work", "zeros", "masked", "sigma (ln)", "smallest", "largest",
    "KS lognormal", "KS normal", "<nearest law", "weights' sigma", *ZEROS,
)  # fmt: skip
SHARE = "V"
SHARE_MEANS = "V: the share of the layer's weight in the minibatch's own variance of the gradient."
DROPPABLE = (
    "weights' sigma", "smallest", "largest", "<weight", "masked", "<kind", "elements/step", "KS normal", "KS lognormal",
    "<nearest law",
)  # fmt: skip
"""Columns that a narrow terminal does without, the least important first."""


def profile_table(
    layers: Mapping[str, LayerProfile],
    missed: Mapping[str, str],
    steps: int,
    work: StepWork | None,
    uncounted: str,
    broken: str | None,
    minibatch: Minibatch | None = None,
    unitless: str | None = None,
) -> TextTable:
    """Return the table of a profile; the arguments are the attributes of `Profile`."""
    observed = max((len(layer.records) for layer in layers.values()), default=0)
    title = f"Gradients of {plural(len(layers), 'layer')}, {observed:,} observed of {plural(steps, 'step')}"
    meaning = f"Good and fair zeros: the sparsity up to which pruning has such a cosine; {VERDICTS_IN_WORDS}."
    lines = [] if broken is None else [broken]
    lines += [f"{name}: not observed, {reason}" for name, reason in missed.items()]
    lines += work_lines(layers, work, uncounted)
    lines += variance_lines(minibatch, unitless)
    shares = () if minibatch is None else (SHARE,)
    place = COLUMNS.index("work") + 1
    rows = [_row(layer, work) for layer in layers.values()]
    if minibatch is not None:
        for layer, row in zip(layers, rows, strict=True):
            row.insert(place, variance_share(minibatch, layer) or "–")
    return text_table(
        title,
        (*COLUMNS[:place], *shares, *COLUMNS[place:]),
        rows,
        "\n".join(lines),
        droppable=(*DROPPABLE, SHARE) if shares else DROPPABLE,
        notes=[(ZEROS, meaning), *([(shares, SHARE_MEANS)] if shares else [])] if layers else [],
    )


def variance_lines(minibatch: Minibatch | None, unitless: str | None) -> list[str]:
    """Return a sentence on the minibatch's variance, or on why it is not known where noise is."""
    return [minibatch.words()] if minibatch is not None else [] if unitless is None else [unitless]


def variance_share(minibatch: Minibatch, layer: str) -> str | None:
    """Return the share of the minibatch's variance in a layer's weight; None where no weight is the layer's own."""
    share = minibatch.share(layer)
    return None if share is None else percent(share)


def work_lines(layers: Mapping[str, LayerProfile], work: StepWork | None, uncounted: str) -> list[str]:
    """Return sentences on what the column of work means, and on which part of the step no plan can treat."""
    if work is None:
        return [f"The multiply-adds of the whole training step were not counted{uncounted and f': {uncounted}'}."]
    counts = {name: (layer.flops_input or 0, layer.flops_weight or 0) for name, layer in layers.items()}
    return [
        "Work is the share of the products for dX and dW in the multiply-adds of the whole training step.",
        *work.lines(counts),
    ]


def work_share(layer: LayerProfile, work: StepWork | None) -> str | None:
    """Return the share of a layer's products for dX and dW in the whole step; None where it was not counted."""
    if work is None or layer.flops_weight is None:
        return None
    return percent(work.share((layer.flops_input or 0) + layer.flops_weight))


def _row(layer: LayerProfile, work: StepWork | None) -> list[str]:
    known = [record for record in layer.records if record.law is not None]
    masked, zeros = layer.masked, pruning_outlook(layer)
    return [
        layer.name,
        layer.kind,
        "×".join(map(str, layer.weight_shape)) if layer.weight_shape else "–",
        f"{layer.elements:,}",
        work_share(layer, work) or "–",
        f"{layer.zero_share:.1%}",
        "–" if masked is None else f"{masked:.1%}",
        _number(layer.sigma, ".2f"),
        _octave(min((record.smallest for record in known), default=np.nan)),
        _octave(max((record.largest for record in known), default=np.nan)),
        _number(layer.ks(LogNormal), ".3f"),
        _number(layer.ks(HalfNormal), ".3f"),
        layer.nearest_law or "–",
        _number(layer.weight_sigma, ".2f"),
        *(["–", "–"] if zeros is None else [f"{zeros.good:.0%}", f"{zeros.fair:.0%}"]),
    ]


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)


def _octave(value: float) -> str:
    return "–" if np.isnan(value) else f"2^{np.log2(value):.1f}"
