"""The random Hadamard transform: spreads outliers over a block before it is quantized, and leaves products as they are.

Both operands of a product are transformed along the dimension that is summed over, with the same seed: H D is
orthogonal, so (H D X)^T (H D Y) = X^T Y.  [tseng2025] does so in the backward pass, with blocks of 64.
"""

from __future__ import annotations

from torch import Tensor

from ..errors import InvalidValue, sentence
from .arguments import check_floats, check_out, key_of
from .contracts import BLOCKS
from .reference.hadamard import check_columns
from .registry import call


def hadamard(x: Tensor, block: int = 64, seed: int | Tensor | None = 0, *, out: Tensor | None = None) -> Tensor:
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
        out: where the result goes; x itself is allowed.

    >>> import torch
    >>> hadamard(torch.ones(16), block=16, seed=None)[:3]
    tensor([4., 0., 0.])
    """
    return _run(x, block, seed, False, out)


def hadamard_inverse(y: Tensor, block: int = 64, seed: int | Tensor | None = 0, *, out: Tensor | None = None) -> Tensor:
    """x = D H y / sqrt(n), which undoes `hadamard` with the same block and seed.

    In float32 the way there and back changes a block by at most ((1 + u)^(2k + 4) - 1) |x|_2, u = 2^-24, k = log2(n).
    """
    return _run(y, block, seed, True, out)


def _run(x: Tensor, block: int, seed: int | Tensor | None, inverse: bool, out: Tensor | None) -> Tensor:
    check_floats(x)
    if block not in BLOCKS:
        raise InvalidValue(sentence("block", block, "one of 16, 32, 64, 128"))
    check_columns(x, block)
    key = None if seed is None else key_of(seed, 0, x)
    if out is None:
        result: Tensor = call("hadamard", x, block, key, inverse)
        return result
    check_out(out, x, x.dtype)
    call("hadamard_out", x, block, key, inverse, out)
    return out
