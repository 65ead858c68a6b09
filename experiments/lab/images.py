"""Images from one .npz file with a training and a test part, of any size and number of classes, or of CIFAR-100."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import avg_pool2d

from lograd import InvalidValue
from lograd.files.archives import read_arrays
from lograd.files.atomic import CannotRead

from .data import AUGMENTATION, Batch, Dataset, fingerprint, warn_of_new_classes
from .image_folders import CIFAR, read_cifar100

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
LIMIT = 2**35
"""Bytes of memory that the images may take."""
SHIFT = 4
"""Pixels by which a crop moves an image at most; the border is black, as torchvision's RandomCrop makes it."""


class Images(Dataset):
    """Channels are normalised by mean and standard deviation of the training part.

    Args:
        pixels: sides that images are averaged down to after augmentation; None leaves their size.
    """

    def __init__(
        self, path: Path, batch: int, seed: int, augment: bool, smallest: int, pixels: int | None = None
    ) -> None:
        super().__init__(batch, seed)
        arrays = read_images(path)
        for part in ("train", "test"):
            _check(path, part, arrays, smallest)
        self.block = _block(path, arrays["train_images"].shape[1:3], pixels)
        self.train, self.test = arrays["train_images"], arrays["test_images"]
        self.train_labels, self.test_labels = (arrays[key].astype(np.int64) for key in ("train_labels", "test_labels"))
        if self.train.shape[1:] != self.test.shape[1:]:
            raise InvalidValue(
                f"{path}: training and test images must have the same size; got {self.train.shape[1:]} and "
                f"{self.test.shape[1:]}."
            )
        warn_of_new_classes(path, self.train_labels, self.test_labels)
        self.train_size, self.test_size = len(self.train), len(self.test)
        self.sizes = {"classes": int(max(self.train_labels.max(), self.test_labels.max())) + 1}
        self.fingerprint, self.augment = (
            fingerprint(*([path / one for one in CIFAR] if path.is_dir() else [path])),
            augment,
        )
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
        for start in range(0, self.test_size, size):
            part = slice(start, start + size)
            yield self._normalised(self.test[part]), torch.from_numpy(self.test_labels[part])

    def _normalised(self, images: NDArray[np.uint8]) -> torch.Tensor:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        pixels = pixels.sub_(self.mean).div_(self.spread).contiguous()
        return pixels if self.block == 1 else avg_pool2d(pixels, self.block)


def _block(path: Path, sides: tuple[int, ...], pixels: int | None) -> int:
    """Return the sides of the squares that are averaged."""
    height, width = sides
    if pixels is None:
        return 1
    if height != width or height % pixels:
        raise InvalidValue(
            f"pixels must divide the sides of square images; got {pixels} for images of {height} x {width} pixels in "
            f"{path}."
        )
    return height // pixels


def augmented(images: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Each image moved by up to SHIFT pixels in both directions, and mirrored with probability one half."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
    top, left = random.integers(0, 2 * SHIFT + 1, (2, count))
    mirrored = random.random((count, 1)) < 0.5
    rows, columns = top[:, None] + np.arange(height), left[:, None] + np.arange(width)
    columns = np.where(mirrored, columns[:, ::-1], columns)
    result: NDArray[np.uint8] = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]
    return result


def read_images(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file of images, or of the binary files of CIFAR-100, by their names in KEYS."""
    what = f"Cannot read the images {path}"
    if (path / CIFAR[0]).is_file():
        return dict(read_cifar100(path))
    if not path.is_file():
        raise CannotRead(f"{what}: there is no such file." if not path.exists() else f"{what}: it is a folder.")
    try:
        with open(path, "rb") as file:
            arrays = read_arrays(file, KEYS, LIMIT)
    except OSError as error:
        raise CannotRead(f"{what}: {error.strerror}.") from error
    except InvalidValue as error:
        raise CannotRead(f"{what}: {error} An .npz file with {', '.join(KEYS)} is needed.") from None
    if missing := [key for key in KEYS if key not in arrays]:
        raise InvalidValue(f"{what}: an .npz file with {', '.join(KEYS)} is needed; {missing[0]} is missing.")
    return arrays


def _check(path: Path, part: str, arrays: dict[str, NDArray[Any]], smallest: int) -> None:
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < smallest:
        raise InvalidValue(
            f"{path}: {part}_images must be uint8 of shape N x H x W x 3 with sides of {smallest} pixels or more for "
            f"this model; got {images.dtype} of shape {images.shape}."
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1] or not len(labels):
        raise InvalidValue(
            f"{path}: {part}_labels must be whole numbers, one for each of {len(images)} images (at least one); "
            f"got {labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= 2**16:
        raise InvalidValue(f"{path}: {part}_labels must be class numbers from 0; got {labels.min()} to {labels.max()}.")
