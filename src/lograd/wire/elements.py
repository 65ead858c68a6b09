"""Elements of a float type as whole numbers, and kept values rounded to fewer mantissa bits.

A magnitude is the bits of an element without its sign: as whole numbers, magnitudes are ordered as the numbers are.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = Literal["exact", "bfloat16", "float8"]
VALUES = ("exact", "bfloat16", "float8")
_MANTISSA = {"bfloat16": 7, "float8": 2}
"""Mantissa bits of a kept value; its exponent keeps its range, as it is stored relative to alpha."""

Words = NDArray[np.int64]


class Kind(NamedTuple):
    """The bits of an element type."""

    bits: int
    mantissa: int

    @property
    def infinity(self) -> int:
        """The magnitude of infinity; larger ones are NaN."""
        return (1 << (self.bits - 1)) - (1 << self.mantissa)


KINDS = {torch.float32: Kind(32, 23), torch.bfloat16: Kind(16, 7), torch.float16: Kind(16, 10)}
"""The types that the method "pruned" takes."""
_WORDS = {32: (torch.int32, np.uint32), 16: (torch.int16, np.uint16)}


def cut_of(values: str, dtype: torch.dtype) -> int:
    """Mantissa bits that are cut from kept values of a type."""
    return 0 if values == "exact" else max(0, KINDS[dtype].mantissa - _MANTISSA[values])


def words_of(x: Tensor) -> Words:
    """The elements of a CPU vector as whole numbers from 0 on."""
    signed, unsigned = _WORDS[KINDS[x.dtype].bits]
    return x.view(signed).numpy().view(unsigned).astype(np.int64)


def tensor_of(words: Words, dtype: torch.dtype) -> Tensor:
    """The inverse of `words_of`."""
    signed, unsigned = _WORDS[KINDS[dtype].bits]
    return torch.from_numpy(words.astype(unsigned).view(unsigned.__name__.removeprefix("u"))).view(signed).view(dtype)


def smallest_magnitude(words: Words, kind: Kind) -> int:
    """The smallest magnitude that is not zero; 0 where there is none."""
    magnitudes = words & ((1 << (kind.bits - 1)) - 1)
    return int(magnitudes[magnitudes > 0].min(initial=1 << kind.bits)) % (1 << kind.bits)


def rounded(words: Words, kind: Kind, alpha: int, cut: int) -> Words:
    """Elements with `cut` mantissa bits less, to nearest with ties to even; zeros and those of magnitude alpha stay.

    Finite values stay finite, and NaN stays NaN.
    """
    if not cut:
        return words
    sign_bit = 1 << (kind.bits - 1)
    magnitude = words & (sign_bit - 1)
    near = (magnitude + (1 << (cut - 1)) - 1 + ((magnitude >> cut) & 1)) >> cut << cut
    near = np.minimum(near, kind.infinity - (1 << cut))
    nan = (magnitude | (1 << (kind.mantissa - 1))) >> cut << cut
    near = np.where(magnitude > kind.infinity, nan, np.where(magnitude == kind.infinity, magnitude, near))
    return (words & sign_bit) | np.where(magnitude == alpha, magnitude, near)
