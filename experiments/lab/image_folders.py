"""Images as they are published: a folder for each class, as ImageNet has, and the binary files of CIFAR-100."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lograd import InvalidValue
from lograd.files.atomic import CannotRead, read_file

from .data import AUGMENTATION, Batch, Dataset, warn_of_new_classes

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
TESTS = ("val", "test")
"""Names that the folder of test images may have."""
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the channels on ImageNet, as everybody takes them."""
MARGIN = 256 / 224
"""The shorter side of a test image over that of the square that is cut from it."""
READERS = 8
"""Threads that read and cut images; the decoder lets them run side by side."""
CIFAR = ("train.bin", "test.bin")
CIFAR_ROW = 2 + 3 * 32 * 32
"""Bytes of an image of CIFAR-100: two labels, the coarse and the fine one, and the pixels of three channels."""


class Cut(NamedTuple):
    """The part of an image that becomes a square, as shares of its sides, and whether it is mirrored."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool


class ImageFolder(Dataset):
    """Images in train/CLASS/ and val/CLASS/, read when they are asked for; classes are numbered by their names.

    Args:
        path: the folder with train and val (or test).
        augment: cut a random part of 8 to 100 % out of each training image, and mirror one half of them; else, and for
            test images, the middle is taken.
        pixels: of a side of the squares.
    """

    def __init__(self, path: Path, batch: int, seed: int, augment: bool, pixels: int) -> None:
        super().__init__(batch, seed)
        _pillow()  # refused before the folders are searched
        test = next((path / name for name in TESTS if (path / name).is_dir()), path / TESTS[0])
        names = [one.name for one in _folders(path / "train")]
        numbers = {name: number for number, name in enumerate(names)}
        (self.train, self.train_labels), (self.test, self.test_labels) = (
            _listed(part, numbers) for part in (path / "train", test)
        )
        warn_of_new_classes(path, self.train_labels, self.test_labels)
        self.train_size, self.test_size = len(self.train), len(self.test)
        self.sizes = {"classes": len(names)}
        self.fingerprint, self.augment, self.pixels = _names_and_sizes(path, [*self.train, *self.test]), augment, pixels

    def batch(self, epoch: int, index: int) -> Batch:
        chosen = self.chosen(epoch, index)
        files = [self.train[number] for number in chosen]
        random = self.random(AUGMENTATION, epoch, index)
        cuts = [_random_cut(random) if self.augment else None for _ in files]
        return self._read(files, cuts), torch.from_numpy(self.train_labels[chosen])

    def test_batches(self) -> Iterator[Batch]:
        for start in range(0, self.test_size, self.batch_size):
            part = slice(start, start + self.batch_size)
            files = self.test[part]
            yield self._read(files, [None] * len(files)), torch.from_numpy(self.test_labels[part])

    def _read(self, files: Sequence[Path], cuts: Sequence[Cut | None]) -> torch.Tensor:
        with ThreadPoolExecutor(READERS) as threads:
            squares = list(threads.map(_square, files, cuts, [self.pixels] * len(files)))
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2).float().div_(255)
        mean, spread = (torch.tensor(one).view(1, 3, 1, 1) for one in (MEAN, SPREAD))
        return pixels.sub_(mean).div_(spread).contiguous()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise InvalidValue("a folder of images needs Pillow, which is not installed: pip install pillow") from None
    return Image


def _folders(path: Path) -> list[Path]:
    found = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    if not found:
        raise CannotRead(f"Cannot read the images {path}: a folder with a folder for each class is needed.")
    return found


def _listed(path: Path, numbers: dict[str, int]) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the images of a part with their classes."""
    files, labels = list[Path](), list[int]()
    for folder in _folders(path):
        if folder.name not in numbers:
            raise InvalidValue(f"{folder}: there is no class of this name among the training images.")
        own = sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS)
        files += own
        labels += [numbers[folder.name]] * len(own)
    if not files:
        raise CannotRead(f"Cannot read the images {path}: there is no file that ends in {', '.join(ENDINGS)}.")
    return files, np.array(labels, dtype=np.int64)


def _names_and_sizes(path: Path, files: Sequence[Path]) -> str:
    """Return hexadecimal digits of names and sizes: to read all of ImageNet would take an hour."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()} {file.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def _random_cut(random: np.random.Generator) -> Cut:
    """Return a part of 8 to 100 % of an image, its sides in proportions from 3:4 to 4:3."""
    root, ratio = np.sqrt(random.uniform(0.08, 1.0)), np.sqrt(np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3))))
    width, height = min(root * ratio, 1.0), min(root / ratio, 1.0)
    left, top = random.random(2) * (1 - width, 1 - height)
    return Cut(float(left), float(top), float(width), float(height), bool(random.random() < 0.5))


def _square(file: Path, cut: Cut | None, pixels: int) -> NDArray[np.uint8]:
    """Return a part of an image as a square of three channels."""
    library = _pillow()
    try:
        with library.open(file) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError) as error:
        raise CannotRead(f"Cannot read the image {file}: {error}.") from error
    width, height = image.size
    if cut is None:
        side = min(width, height) / MARGIN
        box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    else:
        box = (cut.left * width, cut.top * height, (cut.left + cut.width) * width, (cut.top + cut.height) * height)
    array = np.asarray(image.resize((pixels, pixels), library.Resampling.BILINEAR, box))
    return np.ascontiguousarray(array[:, ::-1] if cut is not None and cut.mirrored else array)


def read_cifar100(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays of CIFAR-100 from the folder of its binary version, with the hundred fine classes."""
    arrays = {}
    for part, name in zip(("train", "test"), CIFAR, strict=True):
        content = read_file(path / name)
        if not content or len(content) % CIFAR_ROW:
            raise CannotRead(f"Cannot read the images {path / name}: its size must be a multiple of {CIFAR_ROW} bytes.")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_ROW)
        arrays[f"{part}_labels"] = rows[:, 1]
        arrays[f"{part}_images"] = np.ascontiguousarray(rows[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return arrays
