"""Two small real data sets inside the package, for the demo and for first tries: handwritten digits and a play.

Source, licence and how they were made: README.md in this folder.
"""

from __future__ import annotations

import gzip
import io
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

TEST_IMAGES = 500
"""The last images of the file are the test set."""


class Digits(NamedTuple):
    """Images are float32 (count, 1, 8, 8) from 0 (paper) to 1 (ink) in steps of 1/16; labels are int64, 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits() -> Digits:
    """1,297 training and 500 test images of handwritten digits (UCI, CC BY 4.0) [alpaydin1998].

    @misc{alpaydin1998,
      title  = {Optical Recognition of Handwritten Digits},
      author = {Alpaydin, Ethem and Kaynak, Cenk},
      year   = {1998},
      note   = {UCI Machine Learning Repository, doi:10.24432/C50P49}
    }
    """
    import torch

    with np.load(io.BytesIO(_read("digits.npz")), allow_pickle=False) as file:
        images = torch.from_numpy(file["images"]).float().div(16).unsqueeze(1)
        labels = torch.from_numpy(file["labels"]).long()
    return Digits(images[:-TEST_IMAGES], labels[:-TEST_IMAGES], images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def shakespeare() -> str:
    """Romeo and Juliet: 133,465 characters, 61 of them different (public domain)."""
    return gzip.decompress(_read("romeo.txt.gz")).decode("ascii")


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
