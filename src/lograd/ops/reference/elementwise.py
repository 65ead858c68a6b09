"""Operators that treat every element by itself, in plain PyTorch: the definition that every other kernel equals.

Each maps a flat float32 tensor to one, and to the number of elements that saturated; a `key` is (seed, offset), see
`random`.  `OPERATORS` names them with their arguments; a new operator is a function here and a line there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..contracts import COUNTS
from ..grid import Grid
from ..layouts import flat, in_type
from ..random import lower32, uniform, upper16
from ..writers import Writer, register_writer

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


# --------------------------------------------------------------------------------------------------------- registration


def _quantize(x: Tensor, scale: Tensor, *grid_stochastic_key: Any) -> Result:
    *grid, stochastic, key = grid_stochastic_key
    return quantize(x, scale, Grid(*grid), stochastic, key)


OPERATORS: dict[str, tuple[str, Callable[..., Result]]] = {
    "stochastic_prune": ("Tensor threshold, Tensor key", stochastic_prune),
    "threshold_prune": ("Tensor threshold", threshold_prune),
    "dither": ("Tensor step, Tensor key", dither),
    "quantize": (
        "Tensor scale, bool integer, int mantissa, int smallest_exponent, bool odd_exponents_up, float largest, "
        "float largest_negative, bool stochastic, Tensor key",
        _quantize,
    ),
}
"""Arguments beside x, and the definition.  The native kernel of the same name takes (type, x, y, elements, *arguments,
threads, counts) with addresses in place of tensors."""


def counts_for(x: Tensor, counted: bool) -> Tensor:
    """Room for the zeros, NaN and saturated elements of a result and the zeros of x; empty unless `counted`."""
    return x.new_zeros(COUNTS + 1, dtype=torch.int64) if counted else x.new_empty(0, dtype=torch.int64)


def _writer(definition: Callable[..., Result]) -> Writer:
    def write(out: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor]:
        *values, counted = rest
        before = (flat(x) == 0).sum() if counted else None  # x may be out
        result, clipped = definition(flat(x).float(), *values)
        flat(out).copy_(in_type(result, out.dtype))
        if before is None:
            return (counts_for(x, False),)
        zeros, nan = (result == 0).sum(), result.isnan().sum()
        return (torch.stack([zeros, nan, torch.as_tensor(clipped, device=x.device), before]),)

    return write


for _name, (_arguments, _definition) in OPERATORS.items():
    register_writer(
        f"{_name}(Tensor x, {_arguments}, bool counted) -> (Tensor, Tensor)",
        _writer(_definition),
        lambda x, *rest: (counts_for(x, rest[-1]),),
        order="memory",
    )
