"""Labelled sentences from train.tsv and dev.tsv; words are numbered by the training part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lograd import InvalidValue
from lograd.files.atomic import CannotRead, read_file

from .data import Batch, Dataset, fingerprint, warn_of_new_classes

CONTEXT = 64
"""Words of a sentence that are kept, the context of `SentenceClassifier`."""
PADDING, UNKNOWN = range(2)
FEWEST = 2
"""Occurrences in the training part for a word to get a number of its own."""
MULTIPLE = 8
"""Batches are padded to a multiple of it: few shapes, and little padding."""


class Sentences(Dataset):
    """Words are split at spaces and lower case."""

    def __init__(self, folder: Path, batch: int, seed: int) -> None:
        super().__init__(batch, seed)
        paths = [folder / "train.tsv", folder / "dev.tsv"]
        if not folder.is_dir() or not all(path.is_file() for path in paths):
            raise CannotRead(f"Cannot read the sentences {folder}: a folder with train.tsv and dev.tsv is needed.")
        (train, self.train_labels), (test, self.test_labels) = map(_read, paths)
        counts = Counter(word for words in train for word in words)
        frequent = sorted((word for word in counts if counts[word] >= FEWEST), key=lambda word: (-counts[word], word))
        numbers = {word: number for number, word in enumerate(frequent, start=UNKNOWN + 1)}
        self.train, self.test = (
            [np.array([numbers.get(word, UNKNOWN) for word in words[:CONTEXT]]) for words in part]
            for part in (train, test)
        )
        warn_of_new_classes(folder, self.train_labels, self.test_labels)
        self.train_size, self.test_size = len(train), len(test)
        classes = int(max(self.train_labels.max(), self.test_labels.max())) + 1
        self.sizes = {"tokens": len(frequent) + UNKNOWN + 1, "classes": max(classes, 2)}
        self.fingerprint = fingerprint(*paths)

    def batch(self, epoch: int, index: int) -> Batch:
        chosen = self.chosen(epoch, index)
        return _padded([self.train[i] for i in chosen]), torch.from_numpy(self.train_labels[chosen])

    def test_batches(self) -> Iterator[Batch]:
        for start in range(0, self.test_size, self.batch_size):
            part = slice(start, start + self.batch_size)
            yield _padded(self.test[part]), torch.from_numpy(self.test_labels[part])


def _padded(sentences: list[NDArray[np.int64]]) -> torch.Tensor:
    longest = max(len(words) for words in sentences)
    batch = torch.full((len(sentences), -(-longest // MULTIPLE) * MULTIPLE), PADDING)
    for row, words in zip(batch, sentences, strict=True):
        row[: len(words)] = torch.from_numpy(words)
    return batch


def _read(path: Path) -> tuple[list[list[str]], NDArray[np.int64]]:
    try:
        header, *lines = read_file(path).decode("utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CannotRead(f"Cannot read the sentences {path}: it is not UTF-8 ({error}).") from None
    if header.rstrip("\r").split("\t") != ["sentence", "label"]:
        raise InvalidValue(f"{path}: the first line must be 'sentence', a tab and 'label'; got {header[:60]!r}.")
    sentences, labels = [], []
    for number, line in enumerate(lines, start=2):
        words, tab, label = line.rpartition("\t")
        label = label.strip()
        if not tab or not words.strip() or not label.isdecimal() or len(label) > 4:
            raise InvalidValue(
                f"{path}, line {number}: a sentence, a tab and a class number below 10000 are needed; "
                f"got {line[:60]!r}."
            )
        sentences.append(words.lower().split())
        labels.append(int(label))
    if not sentences:
        raise InvalidValue(f"{path}: at least one sentence is needed; there is none after the header.")
    return sentences, np.array(labels, dtype=np.int64)
