"""Products alone, on operands that are coded already: every pair of widths on one matrix product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lograd import ops
from lograd.formats import BlockFormat, parse_format
from lograd.ops.coded import CodedTensor

from .cases import FP32, Call, Case, Make

Coder = Callable[[Tensor], CodedTensor]
"""Makes codes of a matrix."""


def integers(bits: int, symmetric: bool = False) -> Coder:
    """Whole numbers of a width, with one scale."""
    return lambda x: ops.pack_integers(x, bits, symmetric=symmetric)


def luq(x: Tensor) -> CodedTensor:
    """FP4 1-3-0: a sign and powers of two."""
    coded: CodedTensor = ops.pack_luq(x, 4)
    return coded


def blocks(name: str) -> Coder:
    """A block format, with a scale for each block of the summed dimension."""

    def code(x: Tensor) -> CodedTensor:
        format = parse_format(name)
        assert isinstance(format, BlockFormat)
        scale = ops.tensor_scale_of(x, format) if format.scale.mantissa else 1.0
        coded: CodedTensor = ops.quantize_block_codes(x, format, tensor_scale=scale)
        return coded

    return code


PAIRS: dict[str, tuple[Coder, Coder]] = {
    **{
        f"INT{a} x INT{b}": (integers(a), integers(b, symmetric=True))
        for a, b in ((4, 4), (5, 5), (6, 4), (6, 6), (8, 4), (8, 5), (8, 6), (8, 8))
    },
    "LUQ FP4 x INT4": (luq, integers(4, symmetric=True)),
    "MXFP4 x MXFP4": (blocks("mxfp4"), blocks("mxfp4")),
    "NVFP4 x NVFP4": (blocks("nvfp4"), blocks("nvfp4")),
}


def product(first: Coder, second: Coder, rows: int, inner: int, columns: int) -> Make:
    """The product of two coded matrices, the second of them transposed, as of a linear layer."""

    def make() -> Call:
        a, b = first(_matrix(rows, inner, 0)), second(_matrix(columns, inner, 1))
        return lambda: ops.integer_linear(a, b)

    return make


def int_mm(rows: int, inner: int, columns: int) -> Make:
    """int8 x int8 to int32, without scales."""

    def make() -> Call:
        a = torch.randint(-128, 128, (rows, inner), dtype=torch.int8)
        b = torch.randint(-128, 128, (inner, columns), dtype=torch.int8)
        return lambda: torch._int_mm(a, b)

    return make


def bfloat16_mm(rows: int, inner: int, columns: int) -> Make:
    """A product of two bfloat16 matrices."""

    def make() -> Call:
        a, b = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
        return lambda: nn.functional.linear(a, b)

    return make


def _matrix(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def cases(quick: bool) -> list[Case]:
    """One product for all pairs of widths."""
    rows, inner, columns = (96, 64, 128) if quick else (2048, 768, 3072)

    def dense() -> Call:
        a, b = _matrix(rows, inner, 0), _matrix(columns, inner, 1)
        return lambda: a @ b.t()

    ours = {name: product(*pair, rows, inner, columns) for name, pair in PAIRS.items()}
    others = {
        FP32: dense,
        "torch._int_mm": int_mm(rows, inner, columns),
        "bfloat16": bfloat16_mm(rows, inner, columns),
    }
    return [Case("products", f"GEMM {rows} x {inner} x {columns}", ours, others)]
