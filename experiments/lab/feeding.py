"""The batches of a user's model, epoch after epoch, as a function of the seed alone.

Batches draw from random states of their own, which no training step touches.  So a run that was killed asks again for
the batches of its epoch, passes over those that it has seen, and goes on with the same ones: shuffled, augmented, or
out of a buffer.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from lograd import InvalidValue
from lograd.errors import LogradWarning
from lograd.files.checks import check_object, check_whole

from .loading import Made, own_words
from .randomness import RandomState, mixed, seed_all
from .sharing import is_apart

BATCHES = 1
"""The stream of random numbers that batches draw from; the model's weights follow from the seed alone."""


@final
class Feed:
    """One batch after the other, and one ahead, so that the end of an epoch is known when it is reached."""

    def __init__(self, made: Made, seed: int) -> None:
        self.made, self.seed = made, seed
        self.epoch, self.index = 0, 0
        """The epoch, and how many of its batches were taken."""
        self._iterator: Iterator[Any] | None = None
        self._ahead: list[Any] = []
        self._stream = RandomState.now()
        self._expected: int | None = None
        """The digest of the next batch, as a checkpoint has it."""
        self.apart = False
        """True if each rank has batches of its own."""
        if isinstance(made.batches, Iterator):
            raise InvalidValue(
                f"the batches of {made.target} can be iterated only once ({type(made.batches).__name__}), and each "
                "epoch needs them anew; return a list, a DataLoader, or a function of the number of the epoch."
            )

    def length(self) -> int | None:
        """Batches of the first epoch; None where they do not tell."""
        with self._drawing():
            self._reseed(0)
            try:
                length = len(self.made.epoch(0))  # type: ignore[arg-type]
            except (TypeError, NotImplementedError):
                return None
        if length < 1:
            raise InvalidValue(f"the batches of {self.made.target} must be at least one; there are none.")
        return length

    def take(self) -> Any:
        """The next batch, of this epoch or the one after it."""
        self.peek()
        self.index += 1
        return self._ahead.pop()

    def peek(self) -> Any:
        """Return the batch that `take` takes next."""
        while self.ends_epoch():
            pass  # at most once: an epoch without batches is refused
        return self._ahead[0]

    def ends_epoch(self) -> bool:
        """Return True if all batches of the epoch were taken; the next epoch begins then."""
        if self._look_ahead():
            return False
        if not self.index:
            raise InvalidValue(f"the batches of {self.made.target} must be at least one; epoch {self.epoch} has none.")
        self.epoch, self.index, self._iterator = self.epoch + 1, 0, None
        return True

    def _look_ahead(self) -> bool:
        if not self._ahead:
            with self._drawing():
                if self._iterator is None:
                    self._iterator = self._begun()
                self._ahead = list(islice(self._iterator, 1))
            self._compare()
        return bool(self._ahead)

    def _begun(self) -> Iterator[Any]:
        """The epoch from its first batch that was not taken yet."""
        self._reseed(self.epoch)
        batches = self.made.epoch(self.epoch)
        _follow(batches, self.epoch)
        self.apart = is_apart(batches)
        iterator = iter(batches)
        for taken in range(self.index):
            if next(iterator, self) is self:
                raise InvalidValue(
                    f"the run had taken {self.index} batches of epoch {self.epoch}, and {self.made.target} now has "
                    f"only {taken}."
                )
        return iterator

    def _reseed(self, epoch: int) -> None:
        seed_all(mixed(self.seed, BATCHES, epoch))

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """The random states of the batches are in force, and afterwards those of the model again."""
        outside = RandomState.now()
        self._stream.restore()
        try:
            with own_words(f"the batches of {self.made.target}"):
                yield
        finally:
            self._stream = RandomState.now()
            outside.restore()

    # -- the checkpoint --

    def state_dict(self) -> dict[str, Any]:
        """Epoch, index, and a checksum of the next batch."""
        return {"epoch": self.epoch, "index": self.index, "next": digest(self._ahead) if self._ahead else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state; the batches that were taken are passed over."""
        check_object("the batches of the checkpoint", state, ("epoch", "index", "next"), None)
        for name in ("epoch", "index"):
            check_whole(f"{name} of the batches", state[name])
        if state["next"] is not None:
            check_whole("the checksum of the next batch", state["next"])
        self.epoch, self.index, self._expected = state["epoch"], state["index"], state["next"]
        self._iterator, self._ahead = None, []

    def _compare(self) -> None:
        """Say so where the batches of a resumed run are others than before."""
        if self._expected is not None and self._expected != digest(self._ahead):
            warnings.warn(
                f"batch {self.index} of epoch {self.epoch} is another one than before the run was stopped, so its bits "
                f"will differ from an uninterrupted one; let the batches of {self.made.target} draw from the random "
                "states of torch, numpy or Python, without persistent workers, or return a function of the epoch.",
                LogradWarning,
                stacklevel=2,
            )
        self._expected = None


def _follow(batches: Iterable[Any], epoch: int) -> None:
    """Let generators and counts of epochs that a DataLoader or its sampler keeps follow from the epoch alone."""
    sampler = getattr(batches, "batch_sampler", None)
    parts = [batches, getattr(batches, "dataset", None), getattr(batches, "sampler", None), sampler]
    parts.append(getattr(sampler, "sampler", None))
    seed = int(torch.randint(2**62, ()))
    for part in parts:
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(seed)
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)


def digest(batch: Any, start: int = 0) -> int:
    """A checksum of all tensors, arrays, numbers and texts of a batch; other objects do not count."""
    if isinstance(batch, Tensor):
        if batch.layout is not torch.strided:
            return start
        batch = batch.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(batch, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(batch).tobytes() if batch.dtype != object else b"", start)
    if isinstance(batch, Mapping):
        return digest([part for pair in batch.items() for part in pair], start)
    if isinstance(batch, list | tuple):
        for part in batch:
            start = digest(part, start)
        return start
    return zlib.crc32(repr(batch).encode(), start) if isinstance(batch, int | float | str | bool) else start
