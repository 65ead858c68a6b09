"""Small files to train on, made in a moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def images(path: Path, train: int = 64, test: int = 32, side: int = 8, classes: int = 4, **changes) -> Path:
    """Noise with a bright row whose place is the class."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        labels = np.arange(count) % classes
        pixels = random.integers(0, 80, (count, side, side, 3))
        pixels[np.arange(count), labels] += 150
        arrays |= {f"{part}_images": pixels.astype(np.uint8), f"{part}_labels": labels.astype(np.uint8)}
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def text(path: Path, characters: int = 4000) -> Path:
    words = np.random.default_rng(0).choice(["to be ", "or not ", "that is ", "the question\n", "naïve "], characters)
    path.write_text("".join(words)[:characters], encoding="utf-8")
    return path


def sentences(folder: Path, train: int = 64, test: int = 16) -> Path:
    folder.mkdir()
    for name, count in (("train", train), ("dev", test)):
        lines = [f"a {'fine' if i % 2 else 'dull'} film {'indeed ' * (i % 5)}\t{i % 2}" for i in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    return folder
