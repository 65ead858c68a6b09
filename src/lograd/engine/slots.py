"""The slots of the small tensors of a treated layer, and the functions by which its operators write them.

Everything that changes during training is a tensor, so that nothing is compiled again.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

READY, STRIDE = range(2)
"""Slots of `control`: treat or pass through; take the histogram of one cache line in STRIDE, or none if 0."""
PASSES, ELEMENTS, NANOSECONDS = range(3)
"""Slots of `seen`: gradients that came by, their elements in all, time spent on statistics."""
COUNTERS = ("zeros_after", "nan", "clipped", "zeros_before", "elements", "treated", "passed_through", "pruned")
"""In the order of the operators' own counts, so that those are added at once.

`pruned` is counted where a sentence both prunes and rounds; elsewhere all new zeros come from the one or the other.
States of before it was counted have one slot less.
"""
CPU = torch.device("cpu")
LONGEST_ROW = 128
"""A row of one element may be padded to so many, each with its own random number."""


def count_treated(counters: Tensor, key: Tensor, counts: Tensor, elements: int) -> None:
    """Add the counts of a treated tensor to the counters, and move the key on to the next random numbers."""
    # Not counters[:4] += counts: that copies the sum over itself once more.
    counters[:4].add_(counts[:4])
    counters[4:7].add_(constant((elements, 1, 0), counters.device))
    if counts.numel() > 4:
        counters[7:].add_(counts[4:])
    key += constant((0, LONGEST_ROW * elements), key.device)


def all_counters(saved: Tensor) -> Tensor:
    """Return saved counters; those of a state from before `pruned` was counted get a zero for it."""
    return torch.nn.functional.pad(saved, (0, 1)) if saved.numel() == COUNTERS.index("pruned") else saved


def count_passed_through(counters: Tensor) -> None:
    """Count a tensor that passed through untreated."""
    counters[COUNTERS.index("passed_through")] += 1


def zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a small tensor of zeros that can be changed in training, even if it is made in inference mode.

    It is real although its layer may still be on the meta device.
    """
    with torch.inference_mode(False):
        return torch.zeros(size, dtype=dtype, device=CPU if device.type == "meta" else device)


@lru_cache(maxsize=1024)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a tensor of these values, made once: a small tensor costs as much as a small kernel."""
    return torch.tensor(values, device=device)
