"""What if a gradient had fewer bits: the error of each width, predicted from the law and measured on captured values.

Both speak of the last observed step, at the scale that puts the largest magnitude at the top of the format's range.
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
"""Roundings of the captured values that a measurement averages; one alone scatters."""


@dataclass(frozen=True)
class Error:
    """One format on one layer."""

    name: str
    format: Format
    predicted: Prediction
    measured: Prediction | None
    """On the captured values; None where there are none."""


def errors(layer: LayerProfile) -> list[Error]:
    """FP4 to FP8, each in its best split for the layer, and INT4 to INT8; none for a gradient of zeros."""
    law = layer.law
    if law is None:
        return []
    formats: list[tuple[str, Format]] = [(f"FP{bits}", _best(law, bits, SCALE)) for bits in WIDTHS]
    formats += [(f"INT{bits}", IntFormat(bits)) for bits in WIDTHS]
    statistics = Statistics(law)
    return [_error(name, format, statistics, layer.sample) for name, format in formats]


def recommended(found: list[Error]) -> Error | None:
    """The float of the fewest bits that keeps the direction, by prediction.

    Integers are not recommended: at an equal cosine they lose the small half of the gradient to zero.
    """
    good = [error for error in found if error.name.startswith("FP") and error.predicted.cosine >= GOOD_COSINE]
    return min(good, key=lambda error: error.format.bits, default=None)


def recommended_format(law: Empirical, scale: str, rounding: Literal["stochastic", "nearest"]) -> FloatFormat | None:
    """The same from the law alone, for any rule of `theory.scale`; None where no width is enough."""
    for bits in WIDTHS:
        format = _best(law, bits, scale)
        predicted = predict((Quantize(format, scale, rounding),), Statistics(law))
        if predicted is not None and predicted.cosine >= GOOD_COSINE:
            return format
    return None


def _best(law: Empirical, bits: int, scale: str) -> FloatFormat:
    """The split of so many bits with the least relative error, at the scale at which it will be rounded."""
    return theory.best_format(law, bits, scale=scale)


def _error(name: str, format: Format, statistics: Statistics, sample: Sample) -> Error:
    treatment = Quantize(format, SCALE)
    numbers = numbers_of((treatment,), statistics)
    predicted = predict((treatment,), statistics, numbers)
    assert predicted is not None, "a rounding of single elements can be predicted"
    return Error(name, format, predicted, measure(treatment, numbers[0]["scale"], sample))


def measure(treatment: Quantize, scale: float, sample: Sample) -> Prediction | None:
    """The same numbers as a prediction, from the operator itself on values of the gradient."""
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
