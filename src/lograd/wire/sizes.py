"""The most bytes that a packet can have, known before anything is encoded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..ops.coded import CodedTensor
from .codes import described
from .header import BLOCK, DTYPES, FIXED, MOST_DIMENSIONS

BLOCK_OVERHEAD = 6
"""Bytes of a block beside those of its elements: two of the table, four of its head."""


def largest(x: Tensor | CodedTensor | Sequence[int], dtype: torch.dtype | None = None) -> int:
    """Return the most bytes of a packet of this tensor, or of any tensor of a shape and an element type.

    It holds for `encode` with any arguments and for `prune_and_encode`, so that a buffer of this size always suffices.

    Args:
        x: a tensor, a coded tensor, or a shape.
        dtype: the element type that goes with a shape; float32 if it is not given.

    >>> largest((16, 4096)), largest(torch.zeros(3, dtype=torch.float16))
    (262286, 49)
    """
    if isinstance(x, CodedTensor):
        description, arrays = described(x)
        return _header(x.codes.dim()) + 4 + len(description) + sum(map(len, arrays)) + x.codes.numel()
    if isinstance(x, Tensor):
        shape, dtype = tuple(x.shape), x.dtype
    elif isinstance(x, Sequence) and not isinstance(x, str | bytes) and all(type(size) is int for size in x):
        shape, dtype = tuple(x), torch.float32 if dtype is None else dtype
    else:
        raise InvalidType(sentence("x", x, "a tensor, a coded tensor or a shape"))
    if dtype not in DTYPES[:4]:
        raise InvalidType(sentence("dtype", dtype, "float32, bfloat16, float16 or float64"))
    if len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise InvalidValue(sentence("x", shape, f"a shape of at most {MOST_DIMENSIONS} sizes from 0 on"))
    return most_bytes(shape, dtype)


def most_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """The most bytes of a packet of such a tensor."""
    count = math.prod(shape)
    return _header(len(shape)) + BLOCK_OVERHEAD * blocks_of(count) + count * dtype.itemsize


def blocks_of(count: int) -> int:
    """The number of blocks of so many elements."""
    return (count + BLOCK - 1) // BLOCK


def _header(dimensions: int) -> int:
    return FIXED.size + 9 * dimensions
