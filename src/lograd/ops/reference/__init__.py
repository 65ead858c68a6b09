"""The operators as they are defined: schema, contract and fake of each beside its kernel in plain PyTorch.

Importing this package declares them all.  Every kernel of another backend equals the one here bit for bit.
"""

from . import (
    blocks,
    codes,
    elementwise,
    hadamard,
    integer_products,
    integers,
    learned,
    levels,
    normalization,
    rows,
    statistics,
)

__all__ = [
    "blocks", "codes", "elementwise", "hadamard", "integer_products", "integers", "learned", "levels",
    "normalization", "rows", "statistics",
]  # fmt: skip
