"""Weights that are stored in low precision only, and updated by stochastic rounding: no float32 copy between steps."""

from .handle import Counters, WeightsHandle, low_precision_weights
from .tensor import LowPrecisionTensor

__all__ = ["Counters", "LowPrecisionTensor", "WeightsHandle", "low_precision_weights"]
