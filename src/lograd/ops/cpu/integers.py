"""Levels of a tensor by csrc's native kernels, with all threads of PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ... import native
from ..contracts import COUNTS, FLOAT_TYPES
from ..layouts import dense
from ..reference import integers as reference
from ..reference import levels
from ..reference.integers import Results, empty_codes, row_count
from ..registry import add_kernel


class _Planes(NamedTuple):
    """How a tensor lies in memory: planes of channels, whose codes keep that order or have channels side by side."""

    batch: int
    channels: int
    inner: int
    transposed: bool


def integer_codes(
    x: Tensor,
    limits: Tensor | None,
    fold: Tensor | None,
    fold_dim: int,
    bits: int,
    per_channel: bool,
    symmetric: bool,
    stochastic: bool,
    key: Tensor,
    power_of_two: bool = False,
) -> Results:
    """The kernel of the CPU; layouts that are neither rows nor images go to the reference."""
    x = dense(x)
    planes = _planes(x, per_channel)
    if planes is None and not stochastic:  # without random numbers the order does not matter
        x = x.contiguous()
        planes = _planes(x, per_channel)
    if planes is None:
        return reference.integer_codes(
            x, limits, fold, fold_dim, bits, per_channel, symmetric, stochastic, key, power_of_two
        )
    rows, address = row_count(x, per_channel), native.address
    codes, counts = empty_codes(x), x.new_empty(COUNTS + 1, dtype=torch.int64)
    parameters, found = (x.new_empty((2, rows), dtype=torch.float32) for _ in range(2))
    limits = None if limits is None else limits.contiguous()
    factors = 0 if fold is None else len(fold)
    fold = fold.contiguous() if fold is not None and factors else None
    native.kernel("integer_codes")(
        type=FLOAT_TYPES[x.dtype], x=address("x", x, x.dtype, x.numel()),
        codes=address("codes", codes, torch.uint8, x.numel()),
        batch=planes.batch, channels=planes.channels, inner=planes.inner, transposed=planes.transposed,
        per_row=per_channel, limits=0 if limits is None else address("limits", limits, torch.float32, 2 * rows),
        fold=0 if fold is None else address("fold", fold, torch.float32, factors),
        fold_channels=factors, fold_inner=x.stride(fold_dim) if factors > 1 else 1,
        bits=bits, symmetric=symmetric, power_of_two=power_of_two, stochastic=stochastic,
        key=address("key", key, torch.int64, 2),
        parameters=address("parameters", parameters, torch.float32, 2 * rows),
        found=address("found", found, torch.float32, 2 * rows),
        counts=address("counts", counts, torch.int64, COUNTS + 1), threads=torch.get_num_threads(),
    )  # fmt: skip
    return codes, parameters, found, counts


def _planes(x: Tensor, per_channel: bool) -> _Planes | None:
    """How a dense tensor lies; None where its order is one that the kernels do not know."""
    shape = tuple(x.shape)
    rows = row_count(x, per_channel)
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return _Planes(rows, 1, x.numel() // max(rows, 1), False)
    if x.is_contiguous():
        if x.dim() == 4:
            return _Planes(shape[0], shape[1], shape[2] * shape[3], True)
        return _Planes(rows, 1, x.numel() // max(rows, 1), False)
    if x.dim() == 2 and not per_channel and x.t().is_contiguous():
        return _Planes(1, shape[1], shape[0], True)
    return None


def dequantize_levels(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """The kernel of `dequantize_levels`: codes as they lie, which are rows of memory where each row has its scale."""
    rows, codes, size = max(scale.numel(), zero.numel()), dense(codes), codes.numel()
    if rows > 1 and size and codes.stride(0) != size // rows:  # rows do not follow each other in memory
        return torch.empty_like(codes, dtype=dtype).copy_(dequantize_levels(codes.contiguous(), scale, zero, dtype))
    if bool((scale == 0).any()):  # 0 / 0 is a NaN of another sign
        return levels.dequantize_levels(codes, scale, zero, dtype)
    scale = torch.where(scale.isnan(), torch.nan, scale).reshape(-1)  # one NaN for all
    parameters = torch.stack([each.expand(rows) for each in (scale, torch.zeros_like(scale), zero.reshape(-1))])
    out = torch.empty_like(codes, dtype=dtype)
    address = native.address
    native.kernel("dequantize_rows")(
        FLOAT_TYPES[dtype], address("codes", codes, torch.uint8, size), rows, size // max(rows, 1),
        address("out", out, dtype, size), address("parameters", parameters, torch.float32, 3 * rows), 255,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


add_kernel("integer_codes", "cpu", integer_codes)
add_kernel("dequantize_levels", "cpu", dequantize_levels)
