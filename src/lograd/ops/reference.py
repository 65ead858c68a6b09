"""The operators in plain PyTorch: the definition, for any device, that every other kernel equals bit for bit.

Each maps a flat float32 tensor to one and to the number of elements that saturated; `key` is (seed, offset), see
`random`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .grid import Grid
from .random import lower32, uniform, upper16

Result = tuple[Tensor, Tensor | int]


def stochastic_prune(x: Tensor, threshold: Tensor, key: Tensor) -> Result:
    """Eq. 5 of [chmiel2021]: sign(x) max(|x|, a) if |x| > U a, else 0.  NaN stays NaN.

    The upper 16 bits of U decide, in float32, unless |x| lies in the one interval of width a / 2^16 where they cannot;
    there all 48 bits decide, in float64.
    """
    a = threshold.float()
    step = a * 2.0**-16
    high16 = upper16(x.numel(), key)
    m = x.abs()
    low = high16.float() * step
    undecided = (m > low) & (m <= low + step)
    full = (high16 + lower32(x.numel(), key).double() * 2.0**-32) * step.double()
    keep = torch.where(undecided, m.double() > full, ~(m <= low))
    kept = torch.copysign(torch.where(m < a, a, m), x)
    return torch.where(keep, torch.where(x.isnan(), x, kept), 0.0), 0


def threshold_prune(x: Tensor, threshold: Tensor) -> Result:
    """Keep |x| > t, and NaN."""
    return torch.where(x.abs() <= threshold.float(), 0.0, x), 0


def dither(x: Tensor, step: Tensor, key: Tensor) -> Result:
    """x rounded stochastically to multiples of `step`: non-subtractive dither."""
    d = step.float()
    steps = x.abs() / d
    rounded = torch.where(steps < 2.0**23, _stochastic(steps, key), steps)
    return torch.copysign(rounded * d, x), 0


def quantize(x: Tensor, scale: Tensor, grid: Grid, stochastic: bool, key: Tensor) -> Result:
    """Q(scale x) / scale, saturating.  NaN stays NaN."""
    s = scale.float()
    y = x * s
    m = y.abs().clamp(max=max(grid.largest, grid.largest_negative))
    exponent = torch.zeros_like(m, dtype=torch.int32)
    if not grid.integer:
        exponent = (torch.frexp(m).exponent - 1).where(m > 0, grid.smallest_exponent)
        exponent = exponent.clamp(min=grid.smallest_exponent) - grid.mantissa
    steps = torch.ldexp(m, -exponent)
    if stochastic:
        rounded = _stochastic(steps, key)
    else:
        rounded = steps.round()
        if not grid.integer and grid.mantissa == 0:
            stays = (steps == 1.5) & ((exponent & 1) == (0 if grid.odd_exponents_up else 1))
            rounded = torch.where(stays, 1.0, rounded)
    limit = torch.where(y.signbit(), grid.largest_negative, grid.largest)
    value = torch.minimum(torch.ldexp(rounded, exponent), limit.to(m.dtype))
    return torch.where(x.isnan(), x, torch.copysign(value, y) / s), (y.abs() > limit).sum()


def _stochastic(steps: Tensor, key: Tensor) -> Tensor:
    """Up if the fraction plus U reaches 1; float32 holds the fraction, float64 the comparison, exactly."""
    whole = steps.floor()
    return whole + (uniform(steps.numel(), key) >= 1 - (steps - whole).double()).float()
