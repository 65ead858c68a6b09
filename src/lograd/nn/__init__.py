"""Layers with a recipe, and what a plan does beside layers.

`Linear`, `Conv1d` and `Conv2d` take the place of torch's layers.  `attention` computes the attention of a whole model
in integers; `saved_activations` keeps what other layers save as codes; `normalization` computes BatchNorm, which stays
in float32, and the ReLU behind it in one pass.
"""

from .layers import Conv1d, Conv2d, Linear
from .normalization import NormalizationHandle, normalization
from .replacement import AttentionHandle, attention
from .saved import SavedHandle, saved_activations
from .softmax_attention import scaled_dot_product_attention

__all__ = [
    "AttentionHandle", "Conv1d", "Conv2d", "Linear", "NormalizationHandle", "SavedHandle", "attention", "normalization",
    "saved_activations", "scaled_dot_product_attention",
]  # fmt: skip
