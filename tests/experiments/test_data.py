"""The data inside the package is what it claims to be, byte for byte."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import torch

import experiments.data

FOLDER = Path(experiments.data.__file__).parent
IMAGES = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
LABELS = "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
PLAY = "daf75ba27c60f42b32c77b4a77d3bbd98c0bd5d3f3ee3e47376bfa9687b8cde7"


def digest(content):
    return hashlib.sha256(content).hexdigest()


def test_digits_are_those_of_uci():
    data = experiments.data.digits()
    images, labels = torch.cat([data.train_images, data.test_images]), torch.cat([data.train_labels, data.test_labels])
    assert (data.train_images.shape, data.test_images.shape) == ((1297, 1, 8, 8), (500, 1, 8, 8))
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert digest((images * 16).to(torch.uint8).numpy().tobytes()) == IMAGES
    assert digest(labels.to(torch.uint8).numpy().tobytes()) == LABELS
    assert float(images.max()) == 1.0
    # Every class is in both parts, about evenly.
    for part in (data.train_labels, data.test_labels):
        assert torch.bincount(part).min() > 0.08 * len(part)


def test_the_play_is_whole():
    text = experiments.data.shakespeare()
    assert digest(text.encode()) == PLAY
    assert (len(text), len(set(text))) == (133_465, 61)
    assert text.startswith("SAMPSON:\nGregory, o' my word, we'll not carry coals.\n")
    assert text.endswith("For never was a story of more woe\nThan this of Juliet and her Romeo.\n")


def test_the_files_are_small_and_hold_no_pickle():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 120_000
    with zipfile.ZipFile(FOLDER / "digits.npz") as file:
        assert sorted(file.namelist()) == ["images.npy", "labels.npy"]
    with np.load(FOLDER / "digits.npz", allow_pickle=False) as file:
        assert {name: file[name].dtype.name for name in file.files} == {"images": "uint8", "labels": "uint8"}


def test_the_licences_are_noted():
    text = (FOLDER / "README.md").read_text()
    assert all(words in text for words in ("CC BY 4.0", "10.24432/C50P49", "Public domain"))
