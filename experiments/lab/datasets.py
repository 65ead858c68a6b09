"""Data in memory: batch number `index` of an epoch is a function of (seed, epoch, index) and of nothing else.

So a run that was stopped asks for the batches that it had not seen yet, and gets the same ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from lograd import InvalidValue

from .config import Config

Batch = tuple[Tensor, Tensor]
ORDER, AUGMENTATION = range(2)
"""Streams of random numbers, independent of each other for the same seed and epoch."""
KEYS = ("train_images", "train_labels", "test_images", "test_labels")
SHIFT = 4
"""Pixels by which a crop moves an image at most; the border is black, as torchvision's RandomCrop makes it."""
CHARACTERS, WORDS = 128, 64
"""The contexts of `CharTransformer` and `SentenceClassifier`."""
TEST_SHARE = 0.1
"""The end of a text, on which it is tested."""
PADDING, UNKNOWN = range(2)
MULTIPLE = 8
"""Batches of sentences are padded to a multiple of it: few shapes, and little padding."""


class Dataset(ABC):
    """Training and test examples in memory."""

    sizes: dict[str, int]
    """The sizes that the model must be built for: classes, tokens."""
    train_size: int

    def __init__(self, batch: int, seed: int) -> None:
        self.batch_size, self.seed = batch, seed
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training examples."""
        return self.train_size // self.batch_size

    def random(self, stream: int, epoch: int, index: int = 0) -> np.random.Generator:
        """Return random numbers that follow from seed, stream, epoch and index alone."""
        return np.random.default_rng([self.seed, stream, epoch, index])

    def chosen(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Return the numbers of the examples of a batch, out of a new permutation for each epoch."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.random(ORDER, epoch).permutation(self.train_size)
        return self._order[index * self.batch_size : (index + 1) * self.batch_size]

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the training batches from a step on, without end."""
        while True:
            yield self.batch(*divmod(start, self.steps_per_epoch))
            start += 1

    @abstractmethod
    def batch(self, epoch: int, index: int) -> Batch:
        """Return inputs and targets of one training step."""

    @abstractmethod
    def test_batches(self) -> Iterator[Batch]:
        """Yield all test examples once, in order."""


class Images(Dataset):
    """Images from an .npz file; channels are normalised by mean and standard deviation of the training part.

    Args:
        pixels: sides that images are averaged down to after augmentation; None leaves their size.
    """

    def __init__(self, path: Path, batch: int, seed: int, augment: bool, pixels: int | None = None) -> None:
        super().__init__(batch, seed)
        self.train, train_labels, self.test, test_labels = (array for array in read_images(path).values())
        height, width = self.train.shape[1:3]
        if pixels is not None and (height != width or height % pixels):
            raise InvalidValue(f"pixels must divide the sides of square images; got {pixels} for {height} x {width}.")
        self.block = 1 if pixels is None else height // pixels
        self.train_labels, self.test_labels = train_labels.astype(np.int64), test_labels.astype(np.int64)
        self.train_size, self.augment = len(self.train), augment
        self.sizes = {"classes": int(max(self.train_labels.max(), self.test_labels.max())) + 1}
        # From counts of the 256 levels: exact whatever the size, and without a copy as float.
        levels = np.arange(256)
        counts = np.stack([np.bincount(self.train[..., c].ravel(), minlength=256) for c in range(3)])
        mean = counts @ levels / counts.sum(1)
        spread = np.sqrt(np.maximum(counts @ levels**2 / counts.sum(1) - mean**2, 1.0))
        self.mean, self.spread = (torch.tensor(x, dtype=torch.float32).view(1, 3, 1, 1) for x in (mean, spread))

    def batch(self, epoch: int, index: int) -> Batch:
        chosen = self.chosen(epoch, index)
        images = self.train[chosen]
        if self.augment:
            images = augmented(images, self.random(AUGMENTATION, epoch, index))
        return self._normalised(images), torch.from_numpy(self.train_labels[chosen])

    def test_batches(self) -> Iterator[Batch]:
        size = max(self.batch_size, 256)
        for start in range(0, len(self.test), size):
            part = slice(start, start + size)
            yield self._normalised(self.test[part]), torch.from_numpy(self.test_labels[part])

    def _normalised(self, images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        pixels = pixels.sub_(self.mean).div_(self.spread).contiguous()
        return pixels if self.block == 1 else avg_pool2d(pixels, self.block)


def augmented(images: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Return each image moved by up to SHIFT pixels in both directions, and mirrored with probability one half."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
    top, left = random.integers(0, 2 * SHIFT + 1, (2, count))
    mirrored = random.random((count, 1)) < 0.5
    rows, columns = top[:, None] + np.arange(height), left[:, None] + np.arange(width)
    columns = np.where(mirrored, columns[:, ::-1], columns)
    result: NDArray[np.uint8] = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]
    return result


def read_images(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by their names in KEYS: images are uint8, N x H x W x 3."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in KEYS}
    except (OSError, KeyError, ValueError) as error:
        raise InvalidValue(
            f"{path} must be an .npz file with {', '.join(KEYS)}; reading it raised {error!r}."
        ) from None


class Text(Dataset):
    """Windows of a text; their grid is shifted by a random number of characters in each epoch."""

    def __init__(self, path: Path, batch: int, seed: int) -> None:
        super().__init__(batch, seed)
        points = np.frombuffer(_read(path).encode("utf-32-le"), dtype=np.uint32)
        held_out = int(len(points) * TEST_SHARE)
        alphabet, codes = np.unique(points, return_inverse=True)
        tokens = torch.from_numpy(codes.reshape(-1).astype(np.int64))
        self.train, self.test = tokens[:-held_out], tokens[-held_out:]
        self.sizes = {"tokens": len(alphabet)}
        # One window less than fits leaves room for the shift, and each window needs the character after it.
        self.train_size = (len(self.train) - 1) // CHARACTERS - 1

    def batch(self, epoch: int, index: int) -> Batch:
        shift = int(self.random(AUGMENTATION, epoch).integers(CHARACTERS))
        return _windows(self.train, torch.from_numpy(self.chosen(epoch, index)) * CHARACTERS + shift)

    def test_batches(self) -> Iterator[Batch]:
        for numbers in torch.split(torch.arange((len(self.test) - 1) // CHARACTERS), max(self.batch_size, 32)):
            yield _windows(self.test, numbers * CHARACTERS)


def _windows(tokens: Tensor, starts: Tensor) -> Batch:
    windows = tokens[starts[:, None] + torch.arange(CHARACTERS + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class Sentences(Dataset):
    """Labelled sentences from train.tsv and dev.tsv; words are lower case, and numbered by the training part."""

    def __init__(self, folder: Path, batch: int, seed: int) -> None:
        super().__init__(batch, seed)
        train, self.train_labels = _sentences(folder / "train.tsv")
        test, self.test_labels = _sentences(folder / "dev.tsv")
        counts = Counter(word for words in train for word in words)
        frequent = sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word))
        numbers = {word: number for number, word in enumerate(frequent, start=UNKNOWN + 1)}
        self.train, self.test = (
            [np.array([numbers.get(word, UNKNOWN) for word in words[:WORDS]]) for words in part]
            for part in (train, test)
        )
        self.train_size = len(train)
        classes = int(max(self.train_labels.max(), self.test_labels.max())) + 1
        self.sizes = {"tokens": len(frequent) + UNKNOWN + 1, "classes": max(classes, 2)}

    def batch(self, epoch: int, index: int) -> Batch:
        chosen = self.chosen(epoch, index)
        return _padded([self.train[i] for i in chosen]), torch.from_numpy(self.train_labels[chosen])

    def test_batches(self) -> Iterator[Batch]:
        for start in range(0, len(self.test), self.batch_size):
            part = slice(start, start + self.batch_size)
            yield _padded(self.test[part]), torch.from_numpy(self.test_labels[part])


def _padded(sentences: list[NDArray[np.int64]]) -> Tensor:
    longest = max(len(words) for words in sentences)
    batch = torch.full((len(sentences), -(-longest // MULTIPLE) * MULTIPLE), PADDING)
    for row, words in zip(batch, sentences, strict=True):
        row[: len(words)] = torch.from_numpy(words)
    return batch


def _sentences(path: Path) -> tuple[list[list[str]], NDArray[np.int64]]:
    """Return words and classes of the lines below the header: a sentence, a tab and the number of its class."""
    lines = [line.rpartition("\t") for line in _read(path).rstrip("\n").split("\n")[1:]]
    if not lines or not all(words.strip() and label.strip().isdecimal() for words, _, label in lines):
        raise InvalidValue(f"{path}: a header, and a sentence, a tab and a class number in each line are needed.")
    return [words.lower().split() for words, _, _ in lines], np.array([int(label) for _, _, label in lines])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"Cannot read {path}: {error}.") from None


def load_data(config: Config) -> Dataset:
    """Return the data of a run."""
    path, batch = Path(config.data), config.batch or 1
    data: Dataset
    if config.task.kind == "images":
        data = Images(path, batch, config.seed, bool(config.augment), config.pixels)
    else:
        data = (Text if config.task.kind == "text" else Sentences)(path, batch, config.seed)
    if not data.steps_per_epoch:
        raise InvalidValue(f"batch must be at most the number of training examples, {data.train_size}; got {batch}.")
    return data
