"""The effect of fewer bits on each layer: errors of each format, predicted from the law and measured on a sample.

Both are for the last observed step, at the scale that puts the largest magnitude at the top of the format's range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from .. import theory
from ..formats import FloatFormat, Format, IntFormat
from ..laws import Empirical
from ..treatments import Prediction, Quantize, Statistics, apply, numbers_of, predict
from ..treatments.verdicts import GOOD_COSINE
from .records import LayerProfile, Sample

WIDTHS = (4, 5, 6, 7, 8)
SCALE = "max"
NO_FORMAT = f"no float of at most {max(WIDTHS)} bits keeps a cosine of {GOOD_COSINE:g}"
DRAWS = 8
"""Stochastic roundings of the sample that a measurement averages."""


@dataclass(frozen=True)
class FormatTrial:
    """One format tried on the gradient of one layer."""

    name: str
    """Kind and width, such as "FP6" or "INT4"."""
    format: Format
    predicted: Prediction
    measured: Prediction | None
    """The same numbers, measured on the sample; None where there is none."""


def format_trials(layer: LayerProfile) -> list[FormatTrial]:
    """Try FP4 to FP8, each in its best split for the layer, and INT4 to INT8; an empty list for a gradient of zeros."""
    law = layer.law
    if law is None:
        return []
    formats: list[tuple[str, Format]] = [(f"FP{bits}", _best(law, bits, SCALE)) for bits in WIDTHS]
    formats += [(f"INT{bits}", IntFormat(bits)) for bits in WIDTHS]
    statistics = Statistics(law)
    return [_trial(name, format, statistics, layer.sample) for name, format in formats]


def recommended(found: list[FormatTrial]) -> FormatTrial | None:
    """Return the trial of the float with the fewest bits whose predicted cosine is good; None if none is.

    Integers are not recommended: at an equal cosine they round the smaller half of the gradient to zero.
    """
    good = [trial for trial in found if trial.name.startswith("FP") and trial.predicted.cosine >= GOOD_COSINE]
    return min(good, key=lambda trial: trial.format.bits, default=None)


def recommended_format(law: Empirical, scale: str, rounding: Literal["stochastic", "nearest"]) -> FloatFormat | None:
    """Return the float with the fewest bits whose predicted cosine is good; None where 8 bits are too few.

    Args:
        law: the histogram of the gradient.
        scale: a rule of `theory.scale`.
        rounding: how the gradient will be rounded.
    """
    for bits in WIDTHS:
        format = _best(law, bits, scale)
        predicted = predict((Quantize(format, scale, rounding),), Statistics(law))
        if predicted is not None and predicted.cosine >= GOOD_COSINE:
            return format
    return None


def _best(law: Empirical, bits: int, scale: str) -> FloatFormat:
    """Return the split of `bits` bits with the least relative error at the scale of the rounding."""
    return theory.best_format(law, bits, scale=scale)


def _trial(name: str, format: Format, statistics: Statistics, sample: Sample) -> FormatTrial:
    treatment = Quantize(format, SCALE)
    numbers = numbers_of((treatment,), statistics)
    predicted = predict((treatment,), statistics, numbers)
    assert predicted is not None, "a rounding of single elements can be predicted"
    return FormatTrial(name, format, predicted, measure(treatment, numbers[0]["scale"], sample))


def measure(treatment: Quantize, scale: float, sample: Sample) -> Prediction | None:
    """Measure sparsity, cosine and relative error by rounding a sample of the gradient; None for a sample of zeros."""
    finite = sample[np.isfinite(sample)]
    if not finite.any():
        return None
    values = torch.from_numpy(finite)
    draws = [apply((treatment,), values, seed, numbers=[{"scale": scale}]).result for seed in range(DRAWS)]
    x, y = finite.astype(np.float64), torch.stack(draws).double().numpy()
    nonzero = x != 0
    length = np.linalg.norm(x) * np.linalg.norm(y, axis=1)
    return Prediction(
        sparsity=float(np.mean(y == 0)),
        cosine=float(np.mean(np.divide(y @ x, length, out=np.zeros(DRAWS), where=length > 0))),
        relative_error=float(np.mean(np.abs(y[:, nonzero] / x[nonzero] - 1))),
    )
