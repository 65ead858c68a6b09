"""Batches of the experiments that are measured in memory, one after the other and without end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lograd import InvalidValue

from .. import data as embedded
from ..lab.datasets import KEYS, read_images

Batch = tuple[Tensor, Tensor]
SHIFT = 4
"""Pixels by which an augmented batch is moved at most."""


def training_images(path: Path | None) -> Batch:
    """Normalised images of 3x32x32 with their labels; without a file, the digits inside the package, enlarged."""
    if path is None:
        digits = embedded.digits()
        pixels = F.interpolate(digits.train_images, size=32, mode="bilinear").expand(-1, 3, -1, -1)
        return pixels.sub(0.3).div(0.37), digits.train_labels
    arrays = read_images(path)
    pixels = torch.from_numpy(arrays[KEYS[0]]).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.27)
    return pixels, torch.from_numpy(arrays[KEYS[1]]).long()


def images(path: Path | None, batch: int) -> Iterator[Batch]:
    """Images drawn with replacement."""
    pixels, labels = training_images(path)
    generator = torch.Generator().manual_seed(0)
    while True:
        chosen = torch.randint(len(labels), (batch,), generator=generator)
        yield pixels[chosen].contiguous(), labels[chosen]


def augmented_images(path: Path | None, batch: int, seed: int = 0) -> Iterator[Batch]:
    """Images in shuffled epochs, each batch shifted, and each image mirrored with probability one half."""
    pixels, labels = training_images(path)
    pixels, generator = pixels.contiguous(), torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(labels), generator=generator)
        for chosen in torch.split(order, batch):
            moved = F.pad(pixels[chosen], (SHIFT,) * 4)
            top, left = torch.randint(2 * SHIFT + 1, (2,), generator=generator).tolist()
            moved = moved[:, :, top : top + 32, left : left + 32]
            flip = torch.rand(len(chosen), 1, 1, 1, generator=generator) < 0.5
            yield torch.where(flip, moved.flip(3), moved), labels[chosen]


def noisy(batches: Iterator[Batch]) -> Iterator[Batch]:
    """For a network that removes noise: an image with noise, and the image."""
    generator = torch.Generator().manual_seed(1)
    for pixels, _ in batches:
        yield pixels + 0.5 * torch.randn(pixels.shape, generator=generator), pixels


def text(batch: int, context: int) -> tuple[Iterator[Batch], int]:
    """Windows of a play with the next character at each place, and how many characters there are."""
    play = embedded.shakespeare()
    numbers = {character: number for number, character in enumerate(sorted(set(play)))}
    tokens = torch.tensor([numbers[character] for character in play])

    def windows() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        while True:
            starts = torch.randint(len(tokens) - context - 1, (batch, 1), generator=generator)
            window = tokens[starts + torch.arange(context + 1)]
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()

    return windows(), len(numbers)


def sentences(folder: Path, batch: int, context: int) -> tuple[Iterator[Batch], int]:
    """Labelled sentences, or pairs of them, drawn with replacement, and how many tokens there are.

    Each line of train.tsv has the sentences of an example and its class, with tabs between, as CoLA and MRPC have; a
    pair is joined by a token of its own.  0 stands for padding and 1 for words that occur once.
    """
    path = folder / "train.tsv"
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    if not lines or any(len(line) < 2 or not line[-1].strip().isdecimal() for line in lines):
        raise InvalidValue(f"{path}: sentences and a class number with tabs between are needed in each line.")
    words = [" [pair] ".join(line[:-1]).lower().split()[:context] for line in lines]
    counts = Counter(word for line in words for word in line)
    numbers = {word: number for number, word in enumerate(sorted(one for one in counts if counts[one] > 1), start=2)}
    tokens = torch.zeros(len(words), context, dtype=torch.long)
    for row, line in zip(tokens, words, strict=True):
        row[: len(line)] = torch.tensor([numbers.get(word, 1) for word in line])
    labels = torch.tensor([int(line[-1]) for line in lines])

    def drawn() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        while True:
            chosen = torch.randint(len(labels), (batch,), generator=generator)
            longest = max(int((tokens[chosen] != 0).sum(1).max()), 1)
            yield tokens[chosen][:, :longest].contiguous(), labels[chosen]

    return drawn(), len(numbers) + 2
