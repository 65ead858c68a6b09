"""Kernels for the CPU: calls of the native module, added to the table of operators where that module is in use."""

from ... import native

if native.status().available:
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
