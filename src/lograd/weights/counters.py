"""Exact counts of what was done to weights in low precision."""

from __future__ import annotations

from typing import NamedTuple

from .tensor import Counts, LowPrecisionTensor


class Counters(NamedTuple):
    """Exact counts of what a handle has done, and bytes in memory now."""

    steps: int
    """Steps of the optimizers that are bound."""
    weights: int
    """Weights in low precision, element by element."""
    elements: int
    """Elements that were rounded stochastically."""
    clipped: int
    """Elements outside of the range of their row; none, as rows grow before."""
    grown: int
    """Rows that got a wider spacing, since a weight left the range."""
    shrunk: int
    """Rows that got a finer spacing, since their weights had become small."""
    lost: int
    """Rows that were written with NaN or infinity among them, and decode to NaN; for bfloat16, such elements."""
    bytes: int
    """Bytes of the weights in low precision, spacings included."""
    float_bytes: int
    """Bytes that they had before."""


def counted(stored: dict[str, LowPrecisionTensor], steps: int, float_bytes: int) -> Counters:
    """Return the counts of all weights together."""
    counts = [weight.counts for weight in stored.values()]
    total = Counts(*map(sum, zip(*counts, strict=True))) if counts else Counts(0, 0, 0, 0, 0)
    return Counters(
        steps,
        sum(weight.numel() for weight in stored.values()),
        sum(weight.rounded for weight in stored.values()),
        *total[1:],
        sum(weight.bytes for weight in stored.values()),
        float_bytes,
    )
