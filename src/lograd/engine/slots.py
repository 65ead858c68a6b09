"""The slots of the small tensors of a treated layer, and the functions by which its operators write them.

Everything that changes during training is a tensor, so that nothing is compiled again.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

READY, STRIDE = range(2)
"""Slots of `control`: pass through (0) or treat (1); take the histogram of one cache line in STRIDE, or none if 0."""
PASSES, ELEMENTS, NANOSECONDS = range(3)
"""Slots of `seen`: gradients that came by, their elements in all, time spent on statistics."""
COUNTERS = (
    "zeros_after", "nan", "clipped", "zeros_before", "elements", "treated", "passed_through", "pruned", "fell_back",
)  # fmt: skip
"""In the order of the operators' own counts, so that those are added at once.

`pruned` is counted where a sentence both prunes and rounds; elsewhere all new zeros come from the one or the other.
`fell_back` counts tensors that were not finite, so that their product was dense where integer ones were in force.
States of before these were counted have fewer slots.
"""
LATER_COUNTERS = 2
"""Counters at the end that states of earlier versions may lack."""
CPU = torch.device("cpu")
LONGEST_ROW = 128
"""A row of one element may be padded to so many, each with its own random number."""


def count_treated(counters: Tensor, key: Tensor, counts: Tensor, elements: int) -> None:
    """Add the counts of a treated tensor to the counters, and move the key on to the next random numbers."""
    # Not counters[:4] += counts: that copies the sum over itself once more.
    counters[:4].add_(counts[:4])
    counters[4:7].add_(constant((elements, 1, 0), counters.device))
    if counts.numel() > 4:
        counters[7:8].add_(counts[4:])
    key += constant((0, LONGEST_ROW * elements), key.device)


def all_counters(saved: Tensor) -> Tensor:
    """Return saved counters; those of a state from before the last ones were counted get a zero for each."""
    missing = len(COUNTERS) - saved.numel()
    return torch.nn.functional.pad(saved, (0, missing)) if 0 < missing <= LATER_COUNTERS else saved


def count_passed_through(counters: Tensor) -> None:
    """Count a tensor that passed through untreated."""
    counters[COUNTERS.index("passed_through")] += 1


def count_fallen_back(counters: Tensor) -> None:
    """Count a tensor that was not finite, so that its product was dense."""
    counters[COUNTERS.index("fell_back")] += 1


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
