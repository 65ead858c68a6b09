"""Layers and functions whose products of forward and backward run in exact integers."""

from .replacement import AttentionHandle, attention
from .saved import SavedHandle, saved_activations
from .softmax_attention import scaled_dot_product_attention

__all__ = ["AttentionHandle", "SavedHandle", "attention", "saved_activations", "scaled_dot_product_attention"]
