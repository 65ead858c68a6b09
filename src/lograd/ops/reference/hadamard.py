"""The random Hadamard transform in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import InvalidValue
from ..layouts import narrowed, rows_and_columns
from ..random import philox
from ..writers import register_writer

_SIGN_STREAM = 2  # rounding draws from streams 0 and 1, so one seed may serve both


def random_signs(columns: int, seed: Tensor) -> Tensor:
    """1.0 and -1.0 for the positions of the last dimension."""
    index = torch.arange(columns, device=seed.device)
    words = torch.stack(philox(index >> 7, _SIGN_STREAM, seed), dim=-1)
    word = words.gather(-1, ((index >> 5) & 3)[:, None])[:, 0]
    return 1.0 - 2.0 * ((word >> (index & 31)) & 1).float()


def check_columns(x: Tensor, block: int, *rest: object) -> None:
    """Refuses a last dimension that is no multiple of the block."""
    columns = x.shape[-1] if x.dim() else 1
    if columns % block:
        raise InvalidValue(
            f"the last dimension must be a multiple of the block of {block}; got {columns}: pad it with zeros, or "
            f"choose a smaller block."
        )


def hadamard(out: Tensor, x: Tensor, block: int, key: Tensor | None, inverse: bool) -> tuple[()]:
    """The writer: log2(block) stages of sums and differences in float32, with random signs before or after them."""
    rows, columns = rows_and_columns(x)
    y = x.float().reshape(rows, columns)
    signs = y.new_ones(columns) if key is None else random_signs(columns, key[0])
    if not inverse:
        y = y * signs
    distance = 1
    while distance < block:
        pairs = y.reshape(rows, columns // (2 * distance), 2, distance)
        a, b = pairs.unbind(2)
        y = torch.stack([a + b, a - b], dim=2).reshape(rows, columns)
        distance *= 2
    y = y * (1 / math.sqrt(block))
    if inverse:
        y = y * signs
    out.copy_(narrowed(y, x.dtype).reshape(x.shape))
    return ()


register_writer(
    "hadamard(Tensor x, int block, Tensor? key, bool inverse) -> Tensor",
    hadamard,
    lambda x, *rest: (),
    order="rows",
    check=check_columns,
)
