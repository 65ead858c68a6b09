"""Block about weights in low precision: bytes, peaks and times, from committed results."""

from __future__ import annotations

from .blocks import Maker, table
from .from_results import benchmark, where


def weights() -> str:
    """Bytes for each parameter, the peak of the optimizer's part and the time of a step, by optimizer and storage."""
    parts = ("weights", "gradients", "state")
    lines = [
        [
            row["optimizer"], row["way"], *(f"{row[part]:.2f}" for part in parts),
            f"{sum(row[part] for part in parts):.2f}", f"{row['optimizer peak MB']:.0f}", f"{row['time / FP32']:.2f}",
        ]
        for row in benchmark("weights")["rows"]
        if row["optimizer"] == "AdamW"
    ]  # fmt: skip
    columns = ["optimizer", "stored as", *parts, "together", "peak, MB", "time / FP32"]
    return f"{table(columns, lines, words=2)}\n\n{where('weights')}"


BLOCKS: dict[str, Maker] = {"weights": weights}
"""A function for each name of a block."""
