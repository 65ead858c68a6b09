"""Layers whose three products are computed in exact integers on the CPU.

Activations, weights and gradients are rounded to 2 to 8 bits; what the backward needs is saved as codes of one byte.
`functional` is for operands of your own; `Linear`, `Conv1d` and `Conv2d` take the place of torch's layers.  `attention`
computes the attention of a whole model in integers; `saved_activations` keeps what other layers save as codes;
`normalization` computes BatchNorm, which stays in float32, and the ReLU behind it in one pass.
"""

from . import functional
from .modules import Conv1d, Conv2d, Linear
from .normalization import NormalizationHandle, normalization
from .replacement import AttentionHandle, attention
from .saved import SavedHandle, saved_activations

__all__ = [
    "AttentionHandle", "Conv1d", "Conv2d", "Linear", "NormalizationHandle", "SavedHandle", "attention", "functional",
    "normalization", "saved_activations",
]  # fmt: skip
