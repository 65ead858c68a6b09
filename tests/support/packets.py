"""What the tests of packets share: gradients, coded tensors of all recipes, and packets with a forged checksum."""

from __future__ import annotations

import struct
import zlib
from functools import cache

import torch
from torch import Tensor

from lograd import ops
from lograd.formats import parse_format
from lograd.laws import Empirical
from lograd.ops.coded import CodedTensor, Folded
from lograd.treatments import Statistics, Treatment, recipe
from lograd.treatments.recipes import ALL_RECIPES
from lograd.treatments.treatment import Setting

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXTRA = ("mxfp4-rht", "nvfp4-ht", "int5-bhq-rht", "fp4-luq-rht", "mxfp6-e2m3", "int2-psq")


def same(a: Tensor, b: Tensor) -> bool:
    """True if two tensors have the same type, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    words = _WORDS[a.element_size()]
    return torch.equal(a.contiguous().view(words), b.contiguous().view(words))


def gradient(count: int, threshold: float = 4.0, sigma: float = 3.0, seed: int = 0) -> Tensor:
    """A lognormal gradient after stochastic pruning."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.exp(sigma * torch.randn(count, generator=generator)) * torch.randn(count, generator=generator).sign()
    pruned: Tensor = ops.stochastic_prune(x, threshold, seed=seed)
    return pruned


@cache
def coded_tensors() -> dict[str, CodedTensor]:
    """Coded tensors of every treatment that has codes, and of every layout."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 6, 5, 8, generator=generator)
    images = x.contiguous(memory_format=torch.channels_last)
    rows = ops.pack_per_sample(x, 4)
    found = {
        "halves": ops.pack_codes(x.half(), parse_format("int4"), 2.0),
        "images": ops.pack_codes(images, parse_format("e2m1"), 2.0),
        "nibbles": ops.pack_codes(x, parse_format("e2m1")).in_nibbles(),
        "nibbles of images": ops.pack_codes(images, parse_format("e2m1")).in_nibbles(),
        "nothing": ops.pack_codes(x[:0], parse_format("e2m1")),
        "one": ops.pack_codes(x[0, 0, 0, 0], parse_format("e2m1")),
        "folded": CodedTensor(
            rows.codes, rows.scale, rows.format, rows.layout, rows.zero, rows.low, None, (Folded(torch.arange(1.0, 7)),)
        ),
    }
    names = [*(entry.example for entry in ALL_RECIPES), *_EXTRA]
    for one in {str(one): one for name in names for part in recipe(name).sentences() for one in part}.values():
        if one.can_encode:
            found[str(one)] = one.encode(images, _setting(one, images)).coded
    return found


def _setting(one: Treatment, g: Tensor) -> Setting:
    numbers = one.numbers(Statistics(Empirical.fit(g))) if one.number_names else {}
    tensors = {name: torch.tensor(numbers[name], dtype=torch.float32) for name in one.number_names}
    return Setting(tensors, torch.tensor([7, 3]), torch.zeros(one.memory_size, dtype=torch.float64), (1,))


def sealed(data: bytes | bytearray) -> Tensor:
    """Bytes as a packet whose length and checksum are right, whatever else they say."""
    data = bytearray(data)
    data[8:16] = struct.pack("<Q", len(data))
    data[16:20] = struct.pack("<I", zlib.crc32(data[20:], zlib.crc32(data[:16])))
    return torch.frombuffer(data, dtype=torch.uint8)
