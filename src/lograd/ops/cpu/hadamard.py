"""The random Hadamard transform, by its native kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import native
from ..contracts import FLOAT_TYPES
from ..layouts import rows_and_columns
from ..writers import add_writer


def hadamard(out: Tensor, x: Tensor, block: int, key: Tensor | None, inverse: bool) -> tuple[()]:
    """The writer."""
    address, n = native.address, x.numel()
    native.kernel("hadamard")(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), address("out", out, x.dtype, n), *rows_and_columns(x),
        block, 0 if key is None else address("key", key, torch.int64, 2), inverse, torch.get_num_threads(),
    )  # fmt: skip
    return ()


add_writer("hadamard", "cpu", hadamard)
