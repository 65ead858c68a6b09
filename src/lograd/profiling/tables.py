"""The table of a profile for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.table import Table

from ..report import text_table
from .records import LayerProfile

COLUMNS = (
    "layer", "<kind", "<weight", "elements/step", "zeros", "masked by ReLU", "sigma of ln|g|", "smallest |g|",
    "largest |g|", "KS lognormal", "KS normal", "<nearest law", "sigma, weight gradient",
)  # fmt: skip


def profile_table(layers: Mapping[str, LayerProfile], missed: Mapping[str, str], steps: int, every: int) -> Table:
    observed = max((len(layer.records) for layer in layers.values()), default=0)
    title = f"Gradients of {len(layers)} layers, {observed} observed of {steps} steps"
    lines = [f"{name}: not observed, {reason}" for name, reason in missed.items()]
    return text_table(title, COLUMNS, [_row(layer) for layer in layers.values()], "\n".join(lines))


def _row(layer: LayerProfile) -> list[str]:
    record = layer.total
    nearest = next((fit.family for fit in record.fits if fit.law), "–")
    return [
        layer.name,
        layer.kind,
        "×".join(map(str, layer.weight_shape)) if layer.weight_shape else "–",
        f"{layer.elements:,}",
        f"{record.zero_share:.1%}",
        "–" if record.masked is None else f"{record.masked:.1%}",
        _number(record.sigma, ".2f"),
        _octave(record.smallest),
        _octave(record.largest),
        _number(record.ks("LogNormal"), ".3f"),
        _number(record.ks("HalfNormal"), ".3f"),
        nearest,
        _number(np.nanmean([one.sigma for one in layer.weight_records]), ".2f") if layer.weight_records else "–",
    ]


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)


def _octave(value: float) -> str:
    return "–" if np.isnan(value) else f"2^{np.log2(value):.1f}"
