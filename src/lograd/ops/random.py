"""Counter-based randomness in plain PyTorch: the definition that csrc/rounding/random.isa.h repeats.

Element i of a tensor owns the 48-bit number U(seed, offset + i).  Its upper 16 bits are halfword i mod 8 of the block
i // 8 of Philox4x32-10 with counter (block, stream 0), its lower 32 bits word i mod 4 of block i // 4 of stream 1.  A
probability is therefore honoured to 2^-48.  Nothing else enters: not the shape, not the threads, not the step before.
A `key` is the int64 pair (seed, offset).

@inproceedings{salmon2011,
  title     = {Parallel Random Numbers: As Easy as 1, 2, 3},
  author    = {Salmon, John K. and Moraes, Mark A. and Dror, Ron O. and Shaw, David E.},
  booktitle = {International Conference for High Performance Computing, Networking, Storage and Analysis},
  year      = {2011}
}
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def philox(block: Tensor, stream: int, seed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words, as int64, for each 64-bit block number; [salmon2011] with ten rounds."""
    a, b = block & _MASK, (block >> 32) & _MASK
    c, d = torch.full_like(block, stream), torch.zeros_like(block)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        # The product of two 32-bit numbers wraps in int64; its bits are right all the same.
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = ((q >> 32) & _MASK) ^ b ^ k0, q & _MASK, ((p >> 32) & _MASK) ^ d ^ k1, p & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return a, b, c, d


def upper16(count: int, key: Tensor) -> Tensor:
    """The upper 16 bits of U for elements 0 to count - 1, as int64."""
    # An index is 64 bits without a sign: it wraps as it does in C++, and its shifts bring in zeros.
    index = torch.arange(count, device=key.device) + key[1]
    words = torch.stack(philox((index >> 3) & (2**61 - 1), 0, key[0]), dim=-1)
    word = words.gather(-1, ((index >> 1) & 3)[:, None])[:, 0]
    return (word >> (16 * (index & 1))) & 0xFFFF


def lower32(count: int, key: Tensor) -> Tensor:
    """The lower 32 bits of U for elements 0 to count - 1, as int64."""
    index = torch.arange(count, device=key.device) + key[1]
    return torch.stack(philox((index >> 2) & (2**62 - 1), 1, key[0]), dim=-1).gather(-1, (index & 3)[:, None])[:, 0]


def uniform(count: int, key: Tensor) -> Tensor:
    """U / 2^48 in [0, 1), exact in float64."""
    return upper16(count, key).double() * 2.0**-16 + lower32(count, key).double() * 2.0**-48


def rounded_up_or_down(steps: Tensor, key: Tensor) -> Tensor:
    """Return float32 steps rounded up if the fraction plus U reaches 1, else down.

    Float32 holds the fraction exactly, and float64 the comparison.
    """
    whole = steps.floor()
    return whole + (uniform(steps.numel(), key).view_as(steps) >= 1 - (steps - whole).double()).float()
