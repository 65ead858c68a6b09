"""The integer gradient quantizers: each is written once, over the passes of `row_passes`, for every device.

Bookkeeping of a few numbers per row is in float64 and inside the operators, where no compiler reorders it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidValue
from ..contracts import COUNTS, type_name
from ..layouts import dense, flat
from ..registry import register
from ..writers import register_writer
from .row_passes import WIDENING, Groups, Passes, Plain

Rest = tuple[Tensor, ...]


def matrix(x: Tensor, rows: int) -> Tensor:
    """A contiguous tensor as so many rows."""
    return x.view(rows, x.numel() // rows if rows else 0)


def per_tensor(passes: Passes, out: Tensor, x: Tensor, bits: int, stochastic: bool, packed: bool, key: Tensor) -> Rest:
    """The writer of `quantize_per_tensor`: scale, low and zero of the tensor, and counts."""
    bins = 2**bits - 1
    ranges, parameters, counts = passes.quantize_tensor(matrix(x, 1), matrix(out, 1), bins, stochastic, key)
    return _decoding(parameters, ranges, bins, packed), counts


def per_sample(passes: Passes, out: Tensor, x: Tensor, bits: int, stochastic: bool, packed: bool, key: Tensor) -> Rest:
    """The writer of `quantize_per_sample`: scale, low and zero of each row, and counts."""
    bins, rows = 2**bits - 1, x.shape[0]
    ranges, parameters, counts = passes.quantize_samples(matrix(x, rows), matrix(out, rows), bins, stochastic, key)
    return _decoding(parameters, ranges, bins, packed), counts


def _decoding(parameters: Tensor, ranges: Tensor, bins: int, packed: bool) -> Tensor:
    """Scale, low and zero.  Where all 256 codes are numbers, a row with a NaN decodes to NaN as a whole."""
    result = parameters[:3]
    if packed and bins == 255:
        result[1] = torch.where(ranges[2] > 0, torch.nan, result[1])
    return result


def interval(
    passes: Passes, out: Tensor, x: Tensor, gamma: Tensor, bits: int, stochastic: bool, packed: bool, key: Tensor
) -> Rest:
    """The writer of `quantize_interval`: scale, low and zero; largest magnitude and clipped share; counts."""
    levels = 2 ** (bits - 1) - 1
    statistics, parameters, counts = passes.quantize_interval(
        matrix(x, 1), matrix(out, 1), gamma.double(), levels, stochastic, key
    )
    return parameters[:3], statistics, counts


def block_householder(
    passes: Passes, out: Tensor, x: Tensor, bits: int, stochastic: bool, packed: bool, key: Tensor
) -> Rest:
    """The writer of `quantize_block_householder`: scale, low and zero of each row; groups; stretch; counts."""
    bins, rows = 2**bits - 1, x.shape[0]
    x, result = matrix(x, rows), matrix(out, rows)
    ranges = passes.ranges(x)
    groups = householder_groups(_widened_ranges(ranges))
    # The result serves as the workspace where it can: a fresh one costs more than the arithmetic.
    work = result if result.dtype == torch.float32 else torch.empty_like(x, dtype=torch.float32)
    clamped = passes.reflect(x, work, groups, ranges[:2])
    work_ranges, parameters, counts = passes.quantize_samples(work, result if packed else work, bins, stochastic, key)
    if not packed:
        counts = passes.reflect_back(work, result, groups)
    counts = torch.stack([counts[0], counts[1], clamped[2]])
    decoding = _decoding(parameters, work_ranges, bins, packed)
    return decoding, torch.stack([groups.order, groups.first]), groups.stretch, counts


def _widened_ranges(ranges: Tensor) -> Tensor:
    """Widths of the rows, above zero: a row that is constant has a little of the widest, and 1 where all are."""
    width = ranges[1].double() - ranges[0].double()
    if not len(width):
        return width
    widest = width.amax()
    return torch.where(widest > 0, width + WIDENING * widest, 1.0)


def householder_groups(ranges: Tensor) -> Groups:
    """Groups of rows that share a reflection, and how rows are stretched before it, from their float64 ranges.

    Sorted descending, v_1 >= ... >= v_N.  The number G of groups is the largest below N with (N - G) v_G > v_1 + ... +
    v_G: the smallest of the large rows is entitled to at least one small partner.  The N - G small rows are dealt, in
    order, in proportion to v_i.  (For N = 2 nothing satisfies the rule: one group.)
    """
    count, device = len(ranges), ranges.device
    place = torch.arange(count, device=device)
    v, row = ranges.sort(descending=True, stable=True)
    total = v.cumsum(0)
    entitled = ((count - 1 - place) * v / total > 1) * (place + 1)
    large = entitled.max().clamp(min=1) if count else place.sum()
    small = count - large

    weight = torch.where(place < large, v, 0.0)
    dealt = (small * weight / weight.sum()).cumsum(0).round().long()
    dealt = torch.where(place >= large - 1, small, dealt)
    group = torch.where(place < large, place, torch.searchsorted(dealt, place - large, right=True))

    listed = group.argsort(stable=True)
    group, v = group[listed], v[listed]
    first = torch.searchsorted(group, group)
    n = (torch.searchsorted(group, group, right=True) - first).double()
    share = _share(n)
    # Entries of H beside 1 / sqrt n: the diagonal, and from n = 3 on the rest.
    rest = 1 / (n - n.sqrt())
    greatest = torch.maximum(share, torch.maximum((1 - rest).abs(), torch.where(n > 2, rest, 0.0)))
    lambda1, lambda2 = v[first], v[(first + 1).clamp(max=max(count - 1, 0))]
    s1 = (lambda1 * share) ** (-1 / 3)
    s2 = (lambda2 * greatest / (n - 1)) ** (-1 / 3)
    norm = (1 / s1**2 + 1 / s2**2).sqrt()
    stretch = torch.where(n > 1, torch.where(first == place, s1, s2) * norm, 1.0)
    return Groups(row[listed], first, stretch.float(), share)


def dequantize_rows(
    passes: Passes, out: Tensor, codes: Tensor, parameters: Tensor, bins: int, dtype: torch.dtype
) -> Rest:
    """The writer of `dequantize_rows`."""
    rows = parameters.shape[1]
    passes.dequantize(matrix(codes, rows), matrix(out, rows), parameters.contiguous(), bins)
    return ()


def dequantize_block_householder(
    passes: Passes,
    out: Tensor,
    codes: Tensor,
    parameters: Tensor,
    groups: Tensor,
    stretch: Tensor,
    bins: int,
    dtype: torch.dtype,
) -> Rest:
    """The writer of `dequantize_block_householder`."""
    rows, listed = parameters.shape[1], _groups_of(groups, stretch)
    result = matrix(out, rows)
    work = result if result.dtype == torch.float32 else torch.empty_like(result, dtype=torch.float32)
    passes.dequantize(matrix(codes, rows), work, parameters.contiguous(), bins)
    passes.reflect_back(work, result, listed)
    return ()


def largest_and_scale(passes: Passes, x: Tensor, top: float) -> Tensor:
    """The largest finite magnitude m, and top / m."""
    return passes.largest_and_scale(matrix(flat(dense(x)), 1), top)


# --------------------------------------------------------------------------------------------------------------- checks


def check_samples(x: Tensor, *rest: object) -> None:
    """Refuses a tensor without rows."""
    if x.dim() < 2:
        raise InvalidValue(
            f"x must have at least 2 dimensions, samples first; got {tuple(x.shape)}; x[None] is one sample."
        )


def check_parameters(codes: Tensor, parameters: Tensor, *rest: object) -> None:
    """Refuses parameters that are not three for the tensor, or three for each row."""
    rows = parameters.shape[-1] if parameters.dim() else 0
    if parameters.dim() != 2 or parameters.shape[0] != 3 or rows not in (1, codes.shape[0] if codes.dim() else 1):
        raise InvalidValue(
            "scale, low and zero must have one element, or one for each row of the codes; got "
            f"{tuple(parameters.shape[1:])} for codes of shape {tuple(codes.shape)}."
        )


def check_groups(codes: Tensor, parameters: Tensor, groups: Tensor, stretch: Tensor, *rest: object) -> None:
    """Refuses groups of another size than the codes; `_groups_of` looks at their elements, which become addresses."""
    check_parameters(codes, parameters)
    rows = parameters.shape[1]
    for what, value, dtype, shape in (
        ("groups", groups, torch.int64, (2, rows)),
        ("stretch", stretch, torch.float32, (rows,)),
    ):
        if value.dtype != dtype or tuple(value.shape) != shape or codes.dim() < 2 or codes.shape[0] != rows:
            got = f"{type_name(value.dtype)} of shape {tuple(value.shape)} for codes of shape {tuple(codes.shape)}"
            raise InvalidValue(f"{what} must be {type_name(dtype)} of shape {shape}, one for each row; got {got}.")


def _groups_of(groups: Tensor, stretch: Tensor) -> Groups:
    """The groups of a packed tensor; refused where their elements name rows that are not there."""
    rows = groups.shape[1]
    place = torch.arange(rows, device=groups.device)
    order, first = groups.contiguous().unbind()
    listed = torch.equal(order.sort().values, place)
    if not (listed and bool(((first >= 0) & (first <= place)).all()) and bool((first[first] == first).all())):
        raise InvalidValue(
            "groups must list every row once, and where each group begins; these were changed since packing."
        )
    size = torch.bincount(first, minlength=rows)[first] if rows else first
    return Groups(order, first, stretch.contiguous(), _share(size))


def _share(size: Tensor) -> Tensor:
    """1 / sqrt n in float64.  On a CPU by NumPy, which rounds it correctly: PyTorch's own depends on the machine, and
    what was packed on one is decoded on another."""
    if size.device.type == "cpu":
        return torch.from_numpy(1 / np.sqrt(size.numpy().astype(np.float64)))
    return 1 / size.double().sqrt()


def _packed_or_not(x: Tensor, *rest: Any) -> torch.dtype:
    return torch.uint8 if rest[-2] else x.dtype


def _counts(x: Tensor) -> Tensor:
    return x.new_empty(COUNTS, dtype=torch.int64)


def _parameters(x: Tensor, rows: Any) -> Tensor:
    return x.new_empty((3, rows), dtype=torch.float32)


# --------------------------------------------------------------------------------------------------------- registration

_COMMON = "int bits, bool stochastic, bool packed, Tensor key"

WRITERS: dict[str, Callable[..., Rest]] = {
    "quantize_per_tensor": per_tensor,
    "quantize_per_sample": per_sample,
    "quantize_interval": interval,
    "quantize_block_householder": block_householder,
    "dequantize_rows": dequantize_rows,
    "dequantize_block_householder": dequantize_block_householder,
}
"""Those that take a device's passes, a contiguous `out`, a contiguous x, and the operator's further arguments."""


def _define(
    name: str,
    arguments: str,
    results: str,
    fake: Callable[..., Rest],
    dtype: Callable[..., torch.dtype],
    check: Callable[..., None] | None = None,
) -> None:
    register_writer(
        f"{name}({arguments}) -> {results}", partial(WRITERS[name], Plain()), fake, order="rows", dtype=dtype,
        check=check,
    )  # fmt: skip


_define(
    "quantize_per_tensor", f"Tensor x, {_COMMON}", "(Tensor, Tensor, Tensor)",
    lambda x, *rest: (_parameters(x, 1), _counts(x)), _packed_or_not,
)  # fmt: skip
_define(
    "quantize_per_sample", f"Tensor x, {_COMMON}", "(Tensor, Tensor, Tensor)",
    lambda x, *rest: (_parameters(x, x.shape[0]), _counts(x)), _packed_or_not, check_samples,
)  # fmt: skip
_define(
    "quantize_interval", f"Tensor x, Tensor gamma, {_COMMON}", "(Tensor, Tensor, Tensor, Tensor)",
    lambda x, *rest: (_parameters(x, 1), x.new_empty(2, dtype=torch.float64), _counts(x)), _packed_or_not,
)  # fmt: skip
_define(
    "quantize_block_householder", f"Tensor x, {_COMMON}", "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    lambda x, *rest: (
        _parameters(x, x.shape[0]), x.new_empty((2, x.shape[0]), dtype=torch.int64),
        x.new_empty(x.shape[0], dtype=torch.float32), _counts(x),
    ),
    _packed_or_not, check_samples,
)  # fmt: skip
_define(
    "dequantize_rows", "Tensor codes, Tensor parameters, int bins, ScalarType dtype", "Tensor",
    lambda codes, *rest: (), lambda codes, *rest: rest[-1], check_parameters,
)  # fmt: skip
_define(
    "dequantize_block_householder",
    "Tensor codes, Tensor parameters, Tensor groups, Tensor stretch, int bins, ScalarType dtype", "Tensor",
    lambda codes, *rest: (), lambda codes, *rest: rest[-1], check_groups,
)  # fmt: skip
register(
    "largest_and_scale(Tensor x, float top) -> Tensor",
    partial(largest_and_scale, Plain()),
    None,
    lambda x, top: x.new_empty(2, dtype=torch.float32),
)
