"""Weights that are stored in low precision only, and updated by stochastic rounding: no float32 copy between steps."""

from .handle import WeightCounters, WeightsHandle, low_precision_weights
from .tensor import LowPrecisionTensor

__all__ = ["LowPrecisionTensor", "WeightCounters", "WeightsHandle", "low_precision_weights"]
