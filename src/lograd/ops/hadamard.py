"""The random Hadamard transform: spreads outliers over a block before it is quantized, and leaves products as they are.

Both operands of a product are transformed along the dimension that is summed over, with the same seed: H D is
orthogonal, so (H D X)^T (H D Y) = X^T Y.  [tseng2025] does so in the backward pass, with blocks of 64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InvalidValue
from .arguments import check_floats, key_of
from .contracts import FLOAT_TYPES
from .layouts import empty_for, in_layout_of, narrowed, rows_and_columns
from .random import philox
from .registry import call, register, run, when_native

_SIGN_STREAM = 2  # rounding draws from streams 0 and 1, so one seed may serve both


def hadamard(x: Tensor, block: int = 64, seed: int | Tensor | None = 0) -> Tensor:
    """y = H D x / sqrt(n) for each block of n neighbours along the last dimension.

    D holds random signs, one for each position of the last dimension and the same for every row: position i takes bit
    i mod 32 of word i // 32 mod 4 of block i // 128 of stream 2 of Philox4x32-10 with this seed (1 means minus).  H is
    the Walsh-Hadamard matrix of entries +-1 in Sylvester's order.

    Computed in float32 as log2(n) stages of sums and differences, at distance 1, 2, 4, ..., and one multiplication by
    1 / sqrt(n), which is exact where n is a power of 4.  Each stage rounds once, so with u = 2^-24 and k = log2(n)

        |y - exact|_2 <= ((1 + u)^(k + 2) - 1) |x|_2     block by block (k instead of k + 2 for a power of 4),

    as long as nothing overflows or underflows; the result is then rounded to the type of x.  NaN or infinity reaches
    its whole block.

    Args:
        x: float32, bfloat16 or float16; the last dimension a multiple of `block`.
        block: n, one of 16, 32, 64, 128.
        seed: names the signs; None leaves them out (the deterministic transform).

    >>> hadamard(torch.ones(16), block=16, seed=None)[:3]
    tensor([4., 0., 0.])
    """
    return _run(x, block, seed, False)


def hadamard_inverse(y: Tensor, block: int = 64, seed: int | Tensor | None = 0) -> Tensor:
    """x = D H y / sqrt(n), which undoes `hadamard` with the same block and seed.

    In float32 the way there and back changes a block by at most ((1 + u)^(2k + 4) - 1) |x|_2, u = 2^-24, k = log2(n).
    """
    return _run(y, block, seed, True)


def _run(x: Tensor, block: int, seed: int | Tensor | None, inverse: bool) -> Tensor:
    check_floats(x)
    key = None if seed is None else key_of(seed, 0, x)
    result: Tensor = call("hadamard", x, block, key, inverse)
    return result


def _check_columns(x: Tensor, block: int, *rest: object) -> None:
    """Refuses a last dimension that is no multiple of the block."""
    columns = x.shape[-1] if x.dim() else 1
    if columns % block:
        raise InvalidValue(
            f"the last dimension must be a multiple of the block of {block}; got {columns}: pad it with zeros, or "
            f"choose a smaller block."
        )


# -------------------------------------------------------------------------------------------------------------- kernels


def random_signs(columns: int, seed: Tensor) -> Tensor:
    """1.0 and -1.0 for the positions of the last dimension."""
    index = torch.arange(columns, device=seed.device)
    words = torch.stack(philox(index >> 7, _SIGN_STREAM, seed), dim=-1)
    word = words.gather(-1, ((index >> 5) & 3)[:, None])[:, 0]
    return 1.0 - 2.0 * ((word >> (index & 31)) & 1).float()


def _reference(x: Tensor, block: int, key: Tensor | None, inverse: bool) -> Tensor:
    """Return log2(block) stages of sums and differences in float32, with random signs before or after them."""
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
    return in_layout_of(x, narrowed(y, x.dtype).reshape(x.shape))


def _native(x: Tensor, block: int, key: Tensor | None, inverse: bool) -> Tensor:
    source = x.contiguous()
    out = torch.empty_like(source)
    run("hadamard", FLOAT_TYPES[x.dtype], source, out, *rows_and_columns(x), block, key, inverse)
    return in_layout_of(x, out)


register(
    "hadamard(Tensor x, int block, Tensor? key, bool inverse) -> Tensor",
    _reference,
    when_native(_native),
    lambda x, *rest: empty_for(x),
    _check_columns,
)
