"""Layers and functions whose products of forward and backward run in exact integers."""

from .replacement import AttentionHandle, attention
from .softmax_attention import scaled_dot_product_attention

__all__ = ["AttentionHandle", "attention", "scaled_dot_product_attention"]
