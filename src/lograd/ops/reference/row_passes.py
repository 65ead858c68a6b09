"""Passes over the rows of a matrix: what a device must be able to do, and the definition in plain PyTorch.

The integer quantizers of `rows` are written once over these passes; that the passes of two devices give the same bits
is all that their equality needs.  A matrix is a contiguous tensor of two dimensions; a result goes into `out`, which
may be x.

A row i has a scale s, a `low`, a `zero` and the bounds of its finite elements.  Its codes are

    code = clamp(round(s (x - low)) + zero, 0, bins),    and back:    (code - zero) / s + low.

A uint8 code of 255 is NaN where it is free (bins < 255).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..layouts import in_type
from ..random import uniform

NAN_CODE = 255
# Beyond any code; keeps what is far outside the range small.
_FAR = 512.0
WIDENING = 1e-8
"""By this share of itself a range is widened at either end."""
# A little below float32's largest number, so that every code decodes to a finite one.
_WIDEST = 3.4e38
_LARGEST = torch.finfo(torch.float32).max


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


class Passes(Protocol):
    """The passes that a device must have."""

    def ranges(self, x: Tensor) -> Tensor:
        """(3, rows) float32: smallest and largest finite element, 0 and 0 if there is none; 1 where a row has a NaN."""

    def quantize_samples(
        self, x: Tensor, out: Tensor, bins: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values, or codes if `out` is uint8, with each row's own range: (ranges, parameters, counts).

        `parameters` (5, rows) float32: scale, low, zero and the bounds of the finite elements.  Counted are zeros (of
        values only), NaN and elements outside the bounds.
        """

    def quantize_tensor(
        self, x: Tensor, out: Tensor, bins: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `quantize_samples`, for one row with `tensor_parameters`."""

    def quantize_interval(
        self, x: Tensor, out: Tensor, gamma: Tensor, levels: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `quantize_samples`, for one row with `interval_parameters`: (statistics, parameters, counts).

        The statistics, float64, are the largest magnitude and the share of elements beyond the interval.
        """

    def largest_and_scale(self, x: Tensor, top: float) -> Tensor:
        """(2,) float32: the largest finite magnitude m of one row and top / m, finite, and 1 if m is 0."""

    def dequantize(self, codes: Tensor, out: Tensor, parameters: Tensor, bins: int) -> None:
        """Write the values of codes into `out`; `parameters` (3, rows): scale, low, zero."""

    def reflect(self, x: Tensor, out: Tensor, groups: Groups, bounds: Tensor) -> Tensor:
        """out = H diag(stretch) clamp(x, bounds): float32 from x of any type; counts the clamped elements."""

    def reflect_back(self, x: Tensor, out: Tensor, groups: Groups) -> Tensor:
        """out = diag(1 / stretch) H x, of any type from float32 x; counts zeros and NaN."""


def _row_parameters(ranges: Tensor, bins: int) -> Tensor:
    """Each row's range, widened, covers all codes; `sample_parameters` in csrc/kernels/rows."""
    low, high = _widened(ranges[0].double(), ranges[1].double())
    scale = _scale(torch.full_like(low, bins), (high - low).clamp(max=_WIDEST))
    return torch.stack([scale, low.float(), torch.zeros_like(ranges[0]), ranges[0], ranges[1]])


def tensor_parameters(ranges: Tensor, bins: int) -> Tensor:
    """One range, widened to include zero and moved until zero is a code; `quantize_tensor` in csrc/kernels/rows."""
    smallest, largest = ranges[0].double(), ranges[1].double()
    low, high = _widened(smallest.clamp(max=0), largest.clamp(min=0))
    zero = (-low * (torch.full_like(low, bins) / (high - low))).floor().clamp(max=bins - 1)
    zero = torch.where(high > low, zero, 0.0)
    # The paper's B / (mx' - mn), with the moved upper end mx', is zero / -mn.  Without a whole step below zero
    # (zero = 0) the upper end decides instead.
    above = torch.where(smallest < 0, 1.0, 0.0).double()
    scale = torch.where(zero > 0, _scale(zero, -low), _scale(bins - above, high))
    zero = torch.where(zero > 0, zero, above)
    scale = torch.maximum(scale, ((bins - zero) / _WIDEST).float())  # else the upper end would decode to infinity
    return torch.stack([scale, torch.zeros_like(ranges[0]), zero.float(), ranges[0], ranges[1]])


def _widened(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """A float64 range and a little more, so that float32 rounding does not push its ends outside."""
    more = WIDENING * (high - low)
    return low - more, high + more


def _scale(steps: Tensor, width: Tensor) -> Tensor:
    """float32 steps / width, finite; 1 where the width is 0, as all elements then are the same, and remain so.

    Both are float64 tensors: PyTorch divides a number by a tensor through the reciprocal, which rounds twice.
    """
    return torch.where(width > 0, (steps / width).clamp(max=_LARGEST), 1.0).float()


def interval_parameters(largest: Tensor, gamma: Tensor, levels: int) -> Tensor:
    """`levels` steps on either side of zero, up to c = gamma max |x|; `quantize_interval` in csrc/kernels/rows."""
    clip = (gamma.reshape(1) * largest.double()).float()
    scale = _scale(torch.full_like(clip, levels, dtype=torch.float64), clip.double())
    return torch.stack([scale, torch.zeros_like(scale), torch.full_like(scale, levels), -clip, clip])


class Plain(Passes):
    """The passes in plain PyTorch, which are the definition."""

    def ranges(self, x: Tensor) -> Tensor:
        x = x.float()
        if x.shape[1] == 0:
            return x.new_zeros(3, x.shape[0])
        finite = x.isfinite()
        some = finite.any(1)
        low = torch.where(some, torch.where(finite, x, torch.inf).amin(1), 0.0)
        high = torch.where(some, torch.where(finite, x, -torch.inf).amax(1), 0.0)
        return torch.stack([low + 0.0, high + 0.0, x.isnan().any(1).float()])

    def _quantize(self, x: Tensor, out: Tensor, parameters: Tensor, bins: int, stochastic: bool, key: Tensor) -> Tensor:
        x = x.float()
        scale, low, zero, smallest, largest = (row[:, None] for row in parameters)
        y = (x - low) * scale
        steps = torch.where(y.abs() < _FAR, y.abs(), _FAR)
        code = (torch.copysign(rounded(steps, stochastic, key), y) + zero).clamp(0, bins)
        nan, outside = x.isnan(), ((x < smallest) | (x > largest)).sum()  # x may be out
        if out.dtype == torch.uint8:
            zeros = torch.zeros_like(nan)
            out.copy_(torch.where(nan, _nan_code(bins), code))
        else:
            value = torch.where(nan, x, (code - zero) / scale + low)
            zeros = value == 0
            out.copy_(in_type(value, out.dtype))
        return torch.stack([zeros.sum(), nan.sum(), outside])

    def quantize_samples(
        self, x: Tensor, out: Tensor, bins: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ranges = self.ranges(x)
        parameters = _row_parameters(ranges, bins)
        return ranges, parameters, self._quantize(x, out, parameters, bins, stochastic, key)

    def quantize_tensor(
        self, x: Tensor, out: Tensor, bins: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ranges = self.ranges(x)
        parameters = tensor_parameters(ranges, bins)
        return ranges, parameters, self._quantize(x, out, parameters, bins, stochastic, key)

    def quantize_interval(
        self, x: Tensor, out: Tensor, gamma: Tensor, levels: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        largest = self._largest(x)
        parameters = interval_parameters(largest, gamma, levels)
        counts = self._quantize(x, out, parameters, 2 * levels, stochastic, key)
        return torch.stack([largest[0].double(), counts[2].double() / max(x.numel(), 1)]), parameters, counts

    def largest_and_scale(self, x: Tensor, top: float) -> Tensor:
        largest = self._largest(x)
        # Below the smallest normal numbers the quotient overflows.
        tops = torch.full_like(largest, top)
        scale = torch.where(largest > 0, tops / largest, 1.0).clamp(max=_LARGEST)
        # A subnormal scale has few digits; rounded down, it would make top / scale infinite.
        scale = torch.where(tops / scale <= _LARGEST, scale, torch.nextafter(scale, torch.ones_like(scale)))
        return torch.cat([largest, scale])

    def _largest(self, x: Tensor) -> Tensor:
        low, high, _ = self.ranges(x)
        return torch.maximum(-low, high) + 0.0

    def dequantize(self, codes: Tensor, out: Tensor, parameters: Tensor, bins: int) -> None:
        scale, low, zero = (row[:, None] for row in parameters)
        value = (codes.float() - zero) / scale + low
        value = torch.where(codes == NAN_CODE, torch.nan, value) if bins < NAN_CODE else value
        out.copy_(in_type(value, out.dtype))

    def reflect(self, x: Tensor, out: Tensor, groups: Groups, bounds: Tensor) -> Tensor:
        x = x.float()
        low, high = bounds[0][:, None], bounds[1][:, None]
        outside = ((x < low) | (x > high)).sum()  # x may be out
        clamped = torch.where(x < low, low, torch.where(x > high, high, x))
        out[groups.order] = _reflected(clamped[groups.order] * groups.stretch[:, None], groups)
        nothing = torch.zeros((), dtype=torch.int64, device=x.device)
        return torch.stack([nothing, nothing, outside])

    def reflect_back(self, x: Tensor, out: Tensor, groups: Groups) -> Tensor:
        result = torch.empty_like(x)
        result[groups.order] = _reflected(x[groups.order], groups) / groups.stretch[:, None]
        out.copy_(in_type(result, out.dtype))
        return torch.stack([(result == 0).sum(), result.isnan().sum(), torch.zeros_like(groups.order).sum()])


def _nan_code(bins: int) -> float:
    return float(NAN_CODE) if bins < NAN_CODE else 0.0


def rounded(steps: Tensor, stochastic: bool, key: Tensor) -> Tensor:
    """Nearest, ties to even; or up if the fraction, which float32 holds exactly, plus U reaches 1."""
    if not stochastic:
        return steps.round()
    whole = steps.floor()
    return whole + (uniform(steps.numel(), key).view_as(steps) >= 1 - (steps - whole).double()).float()


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
