"""Data for the built-in models: batch number `index` of an epoch is a function of (seed, epoch, index) and no more.

So a run that was killed asks for the batches that it had not seen yet, and gets the same ones.
"""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lograd import InvalidValue
from lograd.errors import LogradWarning
from lograd.files.atomic import read_file

Batch = tuple[Tensor, Tensor]
ORDER, AUGMENTATION = range(2)
"""Streams of random numbers: independent of each other for the same seed and epoch."""


class Dataset(ABC):
    """Training and test examples in memory."""

    sizes: dict[str, int]
    """The sizes that the model must be built for: classes, tokens."""
    train_size: int
    test_size: int
    fingerprint: str
    """Hexadecimal digits that change with the content of the files."""

    def __init__(self, batch: int, seed: int) -> None:
        self.batch_size, self.seed = batch, seed
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training examples."""
        return self.train_size // self.batch_size

    def check_batch(self) -> None:
        """Refuse a batch that is larger than the training part."""
        if not self.steps_per_epoch:
            raise InvalidValue(
                f"batch must be at most the number of training examples, {self.train_size}; got {self.batch_size}."
            )

    def random(self, stream: int, epoch: int, index: int = 0) -> np.random.Generator:
        """Random numbers that follow from seed, stream, epoch and index alone."""
        return np.random.default_rng([self.seed, stream, epoch, index])

    def chosen(self, epoch: int, index: int) -> NDArray[np.int64]:
        """The numbers of the examples of a batch, out of a new permutation for each epoch."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.random(ORDER, epoch).permutation(self.train_size)
        return self._order[index * self.batch_size : (index + 1) * self.batch_size]

    @abstractmethod
    def batch(self, epoch: int, index: int) -> Batch:
        """Inputs and targets of one training step."""

    @abstractmethod
    def test_batches(self) -> Iterator[Batch]:
        """All test examples once, in order."""


def warn_of_new_classes(path: Path, train: NDArray[np.int64], test: NDArray[np.int64]) -> None:
    """No training learns a class that it never sees."""
    if len(new := np.setdiff1d(test, train)):
        share = float(np.isin(test, new).mean())
        names = ", ".join(map(str, new[:5])) + (", ..." if len(new) > 5 else "")
        warnings.warn(
            f"{path}: the training part has no example of class {names}, so {share:.1%} of the test part cannot be "
            "learned.",
            LogradWarning,
            stacklevel=4,
        )


def fingerprint(*paths: Path) -> str:
    """Hexadecimal digits of the content of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(read_file(path))
    return digest.hexdigest()[:16]
