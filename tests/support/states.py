"""Equality of states: nested plain values with tensors in them."""

from __future__ import annotations

from typing import Any

import torch


def same(one: Any, other: Any) -> bool:
    """Nested values, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
