"""How operators on codes, blocks and rows are registered: signature, fake, plain PyTorch, and native for the CPU.

A format travels as its text, so that a signature stays short and a compiled graph holds no Python object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..formats import BlockFormat, Format
from .library import dense, library


def register(signature: str, plain: Callable[..., Any], compiled: Callable[..., Any] | None, fake: Any) -> None:
    """`compiled` is None where the native module is not in use."""
    name = signature.partition("(")[0]
    library.define(signature)
    library.impl(name, plain, "CompositeExplicitAutograd")
    if compiled is not None:
        library.impl(name, compiled, "CPU")
    torch.library.register_fake(f"lograd::{name}", fake, lib=library)


def text_of(format: BlockFormat | Format) -> str:
    """str(format), in steps that torch.compile can follow."""
    if isinstance(format, BlockFormat):
        return "/".join((str(format.element), str(format.size), str(format.scale)))
    return str(format)


def empty_for(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A result in the layout of x; contiguous where x has gaps or overlaps."""
    return torch.empty_like(dense(x), dtype=dtype)


def in_layout_of(x: Tensor, result: Tensor) -> Tensor:
    """A fresh contiguous result, in the layout of x."""
    out = empty_for(x, result.dtype)
    return result if out.stride() == result.stride() else out.copy_(result)


def narrowed(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y in another type, with one NaN for all: torch writes NaN as it happens to compute them."""
    y = y.to(dtype)
    return y.masked_fill(y.isnan(), math.nan)


def rows_and_columns(x: Tensor) -> tuple[int, int]:
    """A tensor as rows of its last dimension; one without dimensions is a row of one."""
    columns = x.shape[-1] if x.dim() else 1
    return (x.numel() // columns if columns else 0), columns
