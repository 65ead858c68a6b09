"""The table of a profile for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import plural
from ..laws import HalfNormal, LogNormal
from ..report import TextTable, text_table
from .records import LayerProfile

COLUMNS = (
    "layer", "<kind", "<weight", "elements/step", "zeros", "masked", "sigma (ln)", "smallest", "largest",
    "KS lognormal", "KS normal", "<nearest law", "weights' sigma",
)  # fmt: skip
DROPPABLE = ("weights' sigma", "smallest", "largest", "<weight", "masked", "<kind", "elements/step")
"""Columns that a narrow terminal does without, the least important first."""


def profile_table(layers: Mapping[str, LayerProfile], missed: Mapping[str, str], steps: int) -> TextTable:
    observed = max((len(layer.records) for layer in layers.values()), default=0)
    title = f"Gradients of {plural(len(layers), 'layer')}, {observed:,} observed of {plural(steps, 'step')}"
    lines = [f"{name}: not observed, {reason}" for name, reason in missed.items()]
    return text_table(title, COLUMNS, [_row(layer) for layer in layers.values()], "\n".join(lines), droppable=DROPPABLE)


def _row(layer: LayerProfile) -> list[str]:
    known = [record for record in layer.records if record.law is not None]
    masked = layer.masked
    return [
        layer.name,
        layer.kind,
        "×".join(map(str, layer.weight_shape)) if layer.weight_shape else "–",
        f"{layer.elements:,}",
        f"{layer.zero_share:.1%}",
        "–" if masked is None else f"{masked:.1%}",
        _number(layer.sigma, ".2f"),
        _octave(min((record.smallest for record in known), default=np.nan)),
        _octave(max((record.largest for record in known), default=np.nan)),
        _number(layer.ks(LogNormal), ".3f"),
        _number(layer.ks(HalfNormal), ".3f"),
        layer.nearest_law or "–",
        _number(layer.weight_sigma, ".2f"),
    ]


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)


def _octave(value: float) -> str:
    return "–" if np.isnan(value) else f"2^{np.log2(value):.1f}"
