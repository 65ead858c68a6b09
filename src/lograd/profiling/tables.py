"""The table of a profile for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.table import Table

from ..laws import HalfNormal, LogNormal
from ..report import text_table
from ..treatments.verdicts import VERDICTS_IN_WORDS
from .records import LayerProfile
from .sparsity import zeros_of

COLUMNS = (
    "layer", "<kind", "<weight", "elements/step", "zeros", "masked", "sigma (ln)", "smallest", "largest",
    "KS lognormal", "KS normal", "<nearest law", "weights' sigma",
    "good zeros", "fair zeros",
)  # fmt: skip


def profile_table(layers: Mapping[str, LayerProfile], missed: Mapping[str, str], steps: int) -> Table:
    observed = max((len(layer.records) for layer in layers.values()), default=0)
    title = f"Gradients of {len(layers)} layers, {observed} observed of {steps} steps"
    meaning = f"Good and fair zeros: the sparsity up to which pruning has such a cosine; {VERDICTS_IN_WORDS}."
    lines = [meaning] if layers else []
    lines += [f"{name}: not observed, {reason}" for name, reason in missed.items()]
    return text_table(title, COLUMNS, [_row(layer) for layer in layers.values()], "\n".join(lines))


def _row(layer: LayerProfile) -> list[str]:
    known = [record for record in layer.records if record.law is not None]
    masked, zeros = layer.masked, zeros_of(layer)
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
        *(["–", "–"] if zeros is None else [f"{zeros.good:.0%}", f"{zeros.fair:.0%}"]),
    ]


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)


def _octave(value: float) -> str:
    return "–" if np.isnan(value) else f"2^{np.log2(value):.1f}"
