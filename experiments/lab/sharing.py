"""The share of a rank in a batch of a user's: its part of the examples, which are the first dimension of tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import DistributedSampler

from lograd import InvalidValue

from .ranks import Ranks

Plain = str | bytes | int | float | complex | None
WAY_OUT = "return tensors, or lists and dicts of them, or a DataLoader with a DistributedSampler"


class Share(NamedTuple):
    """A part of a batch, and the weight of its loss: the mean over ranks is then the mean over all examples."""

    part: Any
    weight: float


def share_of(batch: Any, ranks: Ranks, target: str) -> Share:
    """Return the share of this rank in a batch; a batch that cannot be divided is refused in one sentence.

    Shares differ by one example where the number of ranks does not divide the batch.

    Args:
        target: the name of the user's function.
    """
    sizes = sorted(set(_sizes(batch, target)))
    if len(sizes) != 1:
        found = f"they are {', '.join(map(str, sizes))}" if sizes else "there are no tensors"
        raise InvalidValue(
            f"the batches of {target} cannot be divided among {ranks.size} ranks: the first dimension of all tensors "
            f"must be the examples, and {found}; {WAY_OUT}."
        )
    size = sizes[0]
    if size < ranks.size:
        raise InvalidValue(
            f"a batch of {target} has fewer examples ({size}) than the run has ranks ({ranks.size}); leave it out, as "
            "drop_last=True of a DataLoader does, or take larger batches."
        )
    mine = slice(size * ranks.rank // ranks.size, size * (ranks.rank + 1) // ranks.size)
    return Share(_cut(batch, mine, size), (mine.stop - mine.start) * ranks.size / size)


def is_apart(batches: object) -> bool:
    """Return True for a DataLoader whose sampler gives each rank examples of its own."""
    samplers = [getattr(batches, "sampler", None), getattr(getattr(batches, "batch_sampler", None), "sampler", None)]
    return any(isinstance(one, DistributedSampler) for one in samplers)


def _sizes(batch: Any, target: str) -> Iterator[int]:
    """Yield the first dimension of each tensor."""
    if isinstance(batch, Tensor | np.ndarray):
        if batch.ndim:
            yield len(batch)
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _sizes(part, target)
    elif not isinstance(batch, Plain):
        raise InvalidValue(
            f"the batches of {target} have an object of type {type(batch).__name__}, which cannot be divided among "
            f"ranks; {WAY_OUT}."
        )


def _cut(batch: Any, mine: slice, size: int) -> Any:
    """Return a slice of all tensors, and of lists of plain values that have one for each example."""
    if isinstance(batch, Tensor | np.ndarray):
        return batch[mine] if batch.ndim else batch
    if isinstance(batch, Mapping):
        parts = {name: _cut(part, mine, size) for name, part in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return parts
        like = copy.copy(batch)  # a mapping with methods of its own, such as a tokenizer's
        like.update(parts)
        return like
    if isinstance(batch, list | tuple):
        if len(batch) == size and all(isinstance(part, Plain) for part in batch):
            return batch[mine]
        cut = [_cut(part, mine, size) for part in batch]
        return type(batch)(*cut) if hasattr(batch, "_fields") else type(batch)(cut)
    return batch
