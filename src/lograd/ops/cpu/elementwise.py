"""Operators that treat every element by itself, by the native kernels of the same names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import native
from ..contracts import COUNTS, FLOAT_TYPES, TENSORS
from ..reference.elementwise import OPERATORS, counts_for
from ..writers import Writer, add_writer

_NO_COUNTS = torch.empty(0, dtype=torch.int64, device="cpu")


def _writer(name: str, arguments: str) -> Writer:
    kernel, address = native.kernel(name), native.address
    tensors = [
        (place, argument, TENSORS[argument].dtypes[0], TENSORS[argument].elements or 0)
        for place, (kind, argument) in enumerate(pair.split() for pair in arguments.split(", "))
        if kind == "Tensor"
    ]

    def write(out: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor]:
        *values, counted = rest
        counts = counts_for(x, True) if counted else _NO_COUNTS
        for place, argument, dtype, elements in tensors:
            values[place] = address(argument, values[place], dtype, elements)
        n = x.numel()
        kernel(
            FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), address("out", out, x.dtype, n), n, *values,
            torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS + 1) if counted else 0,
        )  # fmt: skip
        return (counts,)

    return write


for _name, (_arguments, _) in OPERATORS.items():
    add_writer(_name, "cpu", _writer(_name, _arguments))
