"""Layers and functions whose products of forward and backward run in exact integers."""

from .softmax_attention import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
