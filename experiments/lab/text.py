"""A text for the character model: nine tenths to train on, the end of it to test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from lograd import InvalidValue
from lograd.files.atomic import CannotRead, read_file

from .data import AUGMENTATION, Batch, Dataset, fingerprint

CONTEXT = 128
"""Characters of a window, the context of `CharTransformer`."""
TEST_SHARE = 0.1


class Text(Dataset):
    """Windows of CONTEXT characters; their grid is shifted by a random number of characters in each epoch."""

    def __init__(self, path: Path, batch: int, seed: int) -> None:
        super().__init__(batch, seed)
        if path.is_dir():
            raise CannotRead(f"Cannot read the text {path}: it is a folder, and a text file is needed.")
        try:
            text = read_file(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CannotRead(f"Cannot read the text {path}: it is not UTF-8 ({error}).") from None
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        held_out = int(len(points) * TEST_SHARE)
        if held_out <= CONTEXT:
            raise InvalidValue(
                f"{path}: a text of {int((CONTEXT + 1) / TEST_SHARE)} characters or more is needed; got {len(points)}."
            )
        alphabet, codes = np.unique(points, return_inverse=True)
        tokens = torch.from_numpy(codes.reshape(-1).astype(np.int64))
        self.train, self.test = tokens[:-held_out], tokens[-held_out:]
        self.sizes = {"tokens": len(alphabet)}
        # One window less than fits leaves room for the shift, and each window needs the character after it.
        self.train_size, self.test_size = (len(self.train) - 1) // CONTEXT - 1, (len(self.test) - 1) // CONTEXT
        self.fingerprint = fingerprint(path)

    def batch(self, epoch: int, index: int) -> Batch:
        shift = int(self.random(AUGMENTATION, epoch).integers(CONTEXT))
        return _windows(self.train, torch.from_numpy(self.chosen(epoch, index)) * CONTEXT + shift)

    def test_batches(self) -> Iterator[Batch]:
        for numbers in torch.split(torch.arange(self.test_size), max(self.batch_size, 32)):
            yield _windows(self.test, numbers * CONTEXT)


def _windows(tokens: torch.Tensor, starts: torch.Tensor) -> Batch:
    windows = tokens[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
