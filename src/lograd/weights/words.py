"""Weights in low precision in words."""

from __future__ import annotations

from ..attachment.explain import Explanation
from ..errors import plural
from .counters import Counters
from .stepping import AT_ONCE, Stepping
from .tensor import LowPrecisionTensor


def explained(
    stored: dict[str, LowPrecisionTensor],
    kept: dict[str, str],
    counters: Counters,
    steppings: list[Stepping],
    state_bits: int | None,
) -> Explanation:
    """Return one line for each parameter, and a summary."""
    lines = {name: _line(weight) for name, weight in stored.items()} | kept
    now, before = counters.bytes, max(counters.float_bytes, 1)
    summary = [
        f"{counters.weights:,} weights in {now:,} bytes, {now / max(counters.weights, 1):.2f} each "
        f"({now / before:.0%} of before)",
        f"{plural(counters.steps, 'step')}; {counters.clipped:,} clipped; rows: {counters.grown:,} grown, "
        f"{counters.shrunk:,} shrunk, {counters.lost:,} lost to NaN or infinity",
    ]
    for stepping in steppings:
        how = f"at most {AT_ONCE:,} weights" if stepping.one_by_one else "all weights"
        summary.append(f"{type(stepping.optimizer).__name__}: {how} in float32 at a time, rounded once a step")
        if state_bits:
            summary.append("its moments: FP8 codes between steps")
    if not steppings:
        summary.append("no optimizer is bound: each operator that changes a weight in place rounds it")
    return Explanation(lines, ".\n".join(summary) + ".")


def _line(weight: LowPrecisionTensor) -> str:
    shape, coding = " x ".join(map(str, weight.shape)), weight.coding
    if weight.bare:
        return f"bfloat16, {shape}"
    return f"{coding.format}, {shape}, {plural(weight.spacing.numel(), 'spacing')}"
