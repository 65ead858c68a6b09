"""The block Householder quantizer of [chen2020]: rows of wide range are spread over rows of narrow range, then rounded.

A NaN is spread over its column of its group, as a matrix product does; as a code it is 255, or with 8 bits a `low` of
NaN, as in `affine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidValue
from . import affine
from .arguments import Rounding, Seed
from .coded import Householder
from .contracts import COUNTS, FLOAT_TYPES, type_name
from .layouts import empty_for, in_layout_of, in_type
from .registry import Kernel, call, register, run, when_native


def quantize_block_householder(
    x: Tensor, bits: int, rounding: Rounding = "stochastic", seed: Seed = 0, offset: Seed = 0, *, counted: bool = False
) -> Any:
    """BHQ of [chen2020]: T^-1 PSQ(T x), where T spreads the few rows with a wide range over many with a narrow one.

    Rows are sorted by range and grouped, one large row with some small ones (`householder_groups`).
    In a group of n rows T = H diag(s1, s2, ..., s2) with the Householder reflection

        H = I - v v^T / (1 - 1 / sqrt n),    v = 1 / sqrt n - e1,    so that H e1 = 1 / sqrt n,

    applied as a rank-1 update, never as a matrix; s1, s2 as the paper's code sets them from the two ranges.  A group of
    one row is left as it is, where that code divides by zero.  Reconstructed from the code's behaviour.

    Sums are in float64 and the transform is rounded once to float32, so a small row comes back to 2^-23 of what its
    group's largest row leaves in it.  Arguments as in `quantize_per_tensor`; x has at least two dimensions.
    """
    return affine.quantize_values("quantize_block_householder", x, bits, rounding, seed, offset, counted)


def pack_block_householder(
    x: Tensor, bits: int, rounding: Rounding = "stochastic", seed: Seed = 0, offset: Seed = 0, *, counted: bool = False
) -> Any:
    """A `CodedTensor` of T x whose decode() is `quantize_block_householder`; its transform is T.  Arguments as there.

    With `counted` the result is an `Encoded`.
    """
    arguments = affine.quantizer_arguments(x, bits, rounding, True, seed, offset)
    codes, parameters, groups, stretch, counts = call("quantize_block_householder", x, *arguments)
    coded = affine.coded_rows(x, codes, parameters, f"uint{bits}", (Householder(groups, stretch),))
    return affine.with_counts(coded, counts, counted)


class Groups(NamedTuple):
    """Rows in groups, listed group by group, the largest row of each first; all of shape (rows,)."""

    order: Tensor
    """The row at each place."""
    first: Tensor
    """The place where the group of each place begins."""
    stretch: Tensor
    """float32 factor of the row at each place."""
    share: Tensor
    """float64 1 / sqrt n, n the size of the group of each place."""


def _widened_ranges(ranges: Tensor) -> Tensor:
    """Widths of the rows, above zero: a row that is constant has a little of the widest, and 1 where all are."""
    width = ranges[1].double() - ranges[0].double()
    if not len(width):
        return width
    widest = width.amax()
    return torch.where(widest > 0, width + affine.WIDENING * widest, 1.0)


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


def _check_groups(codes: Tensor, parameters: Tensor, groups: Tensor, stretch: Tensor, *rest: object) -> None:
    """Refuses groups of another size than the codes; `_groups_of` looks at their elements, which become addresses."""
    affine.check_parameters(codes, parameters)
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


# -------------------------------------------------------------------------------------------------------------- kernels


def _reflected(z: Tensor, groups: Groups) -> Tensor:
    """H z for each group, as z - v (v . z) / (1 - 1 / sqrt n) with v = 1 / sqrt n - e1.

    In float64, rounded once; the sum runs down the group, so that its rounding is defined too.
    """
    share, first = groups.share[:, None], groups.first
    place = torch.arange(len(first), device=z.device) - first
    total = torch.zeros_like(z, dtype=torch.float64)
    for k in range(int(place.max()) + 1 if len(place) else 0):
        members = (place == k).nonzero()[:, 0]
        total[first[members]] += z[members].double()
    factor = torch.where(share < 1, 1 / (1 - share), 0.0)
    t = (total[first] * share - z[first].double()) * factor
    v = torch.where(place[:, None] == 0, share - 1, share)
    return (z.double() - v * t).float()


def reflect(x: Tensor, groups: Groups, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Return H diag(stretch) clamp(x, bounds) in float32, and the number of clamped elements."""
    x = x.float()
    low, high = bounds[0][:, None], bounds[1][:, None]
    clamped = torch.where(x < low, low, torch.where(x > high, high, x))
    out = torch.empty_like(x)
    out[groups.order] = _reflected(clamped[groups.order] * groups.stretch[:, None], groups)
    return out, ((x < low) | (x > high)).sum()


def reflect_back(x: Tensor, groups: Groups, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return diag(1 / stretch) H x in a type, and the numbers of zeros and NaN."""
    result = torch.empty_like(x)
    result[groups.order] = _reflected(x[groups.order], groups) / groups.stretch[:, None]
    return in_type(result, dtype), torch.stack([(result == 0).sum(), result.isnan().sum()])


def _run(
    inverse: bool, dtype: torch.dtype, x: Tensor, out: Tensor, groups: Groups, bounds: Tensor | None = None
) -> Tensor:
    counts = x.new_zeros(COUNTS, dtype=torch.int64)
    order, first, stretch, share = groups
    run("reflect_rows", inverse, FLOAT_TYPES[dtype], x, out, *x.shape, order, first, stretch, share, bounds, counts)
    return counts


def _reflect_native(x: Tensor, groups: Groups, bounds: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, dtype=torch.float32)
    return out, _run(False, x.dtype, x, out, groups, bounds.contiguous())[2]


def _reflect_back_native(x: Tensor, groups: Groups, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Write over x where the result has its type: a fresh tensor costs more than the arithmetic."""
    result = x if dtype == torch.float32 else torch.empty_like(x, dtype=dtype)
    return result, _run(True, dtype, x, result, groups)


def _quantizer(
    ranges_of: Callable[..., Tensor], reflect: Callable[..., Any], quantize: Callable[..., Any],
    reflect_back: Callable[..., Any],
) -> Kernel:  # fmt: skip
    """Return the kernel that gives values or codes, (scale, low, zero), groups, stretch and counts."""

    def kernel(x: Tensor, bits: int, stochastic: bool, packed: bool, key: Tensor) -> tuple[Tensor, ...]:
        matrix, last = affine.as_matrix(x, x.shape[0]), 2**bits - 1
        ranges = ranges_of(matrix)
        groups = householder_groups(_widened_ranges(ranges))
        turned, outside = reflect(matrix, groups, ranges[:2])
        room = None if packed else turned
        result, found, parameters, counts = quantize("samples", turned, last, stochastic, packed, key, out=room)
        if not packed:
            result, counts = reflect_back(result, groups, x.dtype)
        parameters = affine.decoding_parameters(parameters, found, last, packed)
        listed, counts = torch.stack([groups.order, groups.first]), torch.stack([counts[0], counts[1], outside])
        return in_layout_of(x, result.view(x.shape)), parameters, listed, groups.stretch, counts

    return kernel


def _dequantizer(dequantize: Callable[..., Tensor], reflect_back: Callable[..., Any]) -> Kernel:
    def kernel(
        codes: Tensor, parameters: Tensor, groups: Tensor, stretch: Tensor, bins: int, dtype: torch.dtype
    ) -> Tensor:
        listed, matrix = _groups_of(groups, stretch), affine.as_matrix(codes, parameters.shape[1])
        values = dequantize(matrix, parameters.contiguous(), bins, torch.float32)
        return in_layout_of(codes, reflect_back(values, listed, dtype)[0].view(codes.shape))

    return kernel


def _fake(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    rows = x.shape[0]
    result, parameters, counts = affine.fake_rows(x, rows, rest[-2])
    groups, stretch = x.new_empty((2, rows), dtype=torch.int64), x.new_empty(rows, dtype=torch.float32)
    return result, parameters, groups, stretch, counts


register(
    f"quantize_block_householder(Tensor x, {affine.QUANTIZER}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _quantizer(affine.row_ranges, reflect, affine.quantize_rows, reflect_back),
    when_native(
        _quantizer(affine.row_ranges_native, _reflect_native, affine.quantize_rows_native, _reflect_back_native)
    ),
    _fake,
    affine.check_batch,
)
register(
    "dequantize_block_householder(Tensor codes, Tensor parameters, Tensor groups, Tensor stretch, int bins, "
    "ScalarType dtype) -> Tensor",
    _dequantizer(affine.dequantize_matrix, reflect_back),
    when_native(_dequantizer(affine.dequantize_matrix_native, _reflect_back_native)),
    lambda codes, *rest: empty_for(codes, rest[-1]),
    _check_groups,
)
