"""Packets: tensors and coded tensors as self-describing bytes, for a wire or a file.

`encode` turns a tensor into a packet, a uint8 tensor, and `decode` makes the tensor again, bit for bit.  A neural
gradient after stochastic pruning takes about 2 bits per element at 90 % zeros.  docs/packet-format.md describes the
bytes.
"""

from .reading import DEFAULT_LIMIT, decode
from .sizes import largest
from .writing import encode, prune_and_encode

__all__ = ["DEFAULT_LIMIT", "decode", "encode", "largest", "prune_and_encode"]
