"""Where the data of an experiment lies: in the file that was given, in a folder of several sets, or in the package."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Literal

import numpy as np

from lograd import InvalidValue
from lograd.files import replace_file

from .. import data as embedded
from ..lab.datasets import KEYS

Kind = Literal["images", "text", "sentences"]
ENDINGS = {"images": ".npz", "text": ".txt"}
SENTENCES = "sst2"
"""The folder of sentences that is taken where no other is asked for."""
DIGITS = {"train": 320, "test": 160}
"""Digits that are written: enough for a few steps."""
SPEAKERS = ("ROMEO", "JULIET")
"""The classes of the embedded sentences: who says them."""


def find(path: Path, kind: Kind, name: str = "") -> Path:
    """Return the data of a kind: the path itself, or the only set of this kind in the folder that it is.

    Args:
        path: a file, the folder of one data set, or a folder of several sets.
        kind: of the data.
        name: of the folder that is wanted among several; for sentences SENTENCES where it is not given.
    """
    if not path.is_dir() or _is_one_set(path, kind):
        return path
    if name or kind == "sentences":
        name = name or SENTENCES
        found = [one for one in (path / name,) if _is_one_set(one, kind)]
        wanted = f"a folder {name} with a train.tsv"
    else:
        found = sorted(path.glob(f"*{ENDINGS[kind]}"))
        wanted = f"one file with {kind}, *{ENDINGS[kind]}"
    if len(found) != 1:
        had = ", ".join(one.name for one in found) or "none"
        raise InvalidValue(f"the folder {path} must have {wanted}; it has {had}. --data may name the file itself.")
    return found[0]


def _is_one_set(path: Path, kind: Kind) -> bool:
    return kind == "sentences" and (path / "train.tsv").is_file()


def embedded_data(folder: Path) -> Path:
    """Write the small data sets of the package as files, unless they are there; return the folder.

    They are some of the digits, the play, and its speeches as sentences of two classes.
    """
    digits, play, speeches = folder / "digits.npz", folder / "play.txt", folder / SENTENCES
    if not digits.exists():
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(digits, _digits())
    if not play.exists():
        replace_file(play, embedded.shakespeare().encode())
    if not (speeches / "dev.tsv").exists():
        speeches.mkdir(parents=True, exist_ok=True)
        lines = _speeches()
        for number, part in enumerate(("train", "dev")):
            chosen = [line for place, line in enumerate(lines) if (place % 5 == 0) == bool(number)]
            replace_file(speeches / f"{part}.tsv", "\n".join(["sentence\tlabel", *chosen, ""]).encode())
    return folder


def _digits() -> bytes:
    """Return the first digits of both parts as an .npz file."""
    found = embedded.digits()
    arrays = {}
    for key, whole in zip(KEYS, found, strict=True):
        tensor = whole[: DIGITS[key.partition("_")[0]]]
        if tensor.dim() == 4:
            pixels = tensor.mul(255).byte().permute(0, 2, 3, 1).expand(-1, -1, -1, 3)
            arrays[key] = pixels.numpy()
        else:
            arrays[key] = tensor.numpy().astype(np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _speeches() -> list[str]:
    """Return the lines of the two speakers, each with the number of its speaker behind a tab."""
    speeches = re.findall(r"^([A-Z ]+):\n((?:.+\n)+)", embedded.shakespeare(), flags=re.MULTILINE)
    return [
        f"{line}\t{SPEAKERS.index(speaker)}"
        for speaker, text in speeches
        if speaker in SPEAKERS
        for line in text.splitlines()
    ]
