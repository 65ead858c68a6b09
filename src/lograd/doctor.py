"""The times of a few layers on this CPU, in FP32 and in every way that may be faster, and what follows from them.

A time is that of a forward and a backward with dX, dW and the bias's gradient.  All ways of a layer take turns in one
process, so that other work on the machine hits all of them.  `lograd doctor` shows the times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from .attachment import attach
from .engine.stopwatch import seconds
from .errors import plural
from .measure.timing import take_no_statistics
from .ops.sparse_products import release_workspace
from .plan import Plan
from .progress import progress
from .text import TextTable, text_table
from .treatments import Backend

BUDGET = 16.0
"""Seconds for all layers: with the imports and a probe of AMX, the command ends within half a minute."""
TURNS = 9
"""Turns of each way, if there is time for so many."""
SLOW = 4.0
"""A way that takes so many times longer than FP32 is timed once, since more turns would not change what is said."""
MARGIN = 1.05
"""Smaller ratios than this, of two times on a machine that does other things as well, count as equal."""

FP32, BF16 = "FP32", "bf16 autocast"
CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels-last"
ATTACHED: dict[str, tuple[str, Backend]] = {
    "int8-full": ("int8-full", "integer"),
    "int6-full": ("int6-full", "integer"),
    "int4-full": ("int4-full", "integer"),
    "prune85 sparse": ("prune85", "sparse"),
}
"""The recipe and the backend of each way of lograd's; all of them are slow without the native module."""
HOW = {
    BF16: "torch.autocast('cpu', torch.bfloat16)",
    "int8-full": "lograd.accelerate(model)",
    "int6-full": "lograd.accelerate(model)",
    "int4-full": "lograd.attach(model, lograd.Plan.uniform('int4-full'))",
    "prune85 sparse": "lograd.attach(model, lograd.Plan.uniform('prune85'))",
}
"""How each way is switched on, the one with the least noise first: of ways that are equally fast, the first counts."""

Call = Callable[[], object]


class TimedLayer(NamedTuple):
    """A layer with the shape of its input."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of its input: images have two."""
        return (CONTIGUOUS, CHANNELS_LAST) if len(self.shape) == 4 else (CONTIGUOUS,)


LAYERS = (
    TimedLayer("Linear 512 x 768 -> 768", lambda: nn.Linear(768, 768), (512, 768)),
    TimedLayer("Linear 1024 x 384 -> 1536", lambda: nn.Linear(384, 1536), (1024, 384)),
    TimedLayer("Conv2d 64, 3x3, 32x32, batch 8", lambda: nn.Conv2d(64, 64, 3, padding=1), (8, 64, 32, 32)),
    TimedLayer("Conv2d 256, 3x3, 8x8, batch 16", lambda: nn.Conv2d(256, 256, 3, padding=1), (16, 256, 8, 8)),
)


@final
@dataclass(frozen=True)
class LayerTimes:
    """The times of a layer.

    Args:
        layer: its name.
        milliseconds: medians, by way and layout.
        failed: ways that do not run, and why.
    """

    layer: str
    milliseconds: Mapping[str, Mapping[str, float]]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def speedups(self) -> dict[str, float]:
        """How many times faster than FP32 each way is, both in their better layout.

        FP32 channels-last is compared with contiguous FP32 instead, as it is one of the two layouts.
        """
        fp32 = self.milliseconds[FP32]
        last = {CHANNELS_LAST: fp32[CONTIGUOUS] / fp32[CHANNELS_LAST]} if CHANNELS_LAST in fp32 else {}
        best = min(fp32.values())
        return last | {way: best / min(taken.values()) for way, taken in self.milliseconds.items() if way != FP32}


# -- timing --


def time_layers(threads: int, skipped: Collection[str] = ()) -> list[LayerTimes]:
    """Time all layers.

    Args:
        threads: of PyTorch and of lograd's kernels.
        skipped: ways that are not to be tried.
    """
    start, share = time.perf_counter(), BUDGET / len(LAYERS)
    found = []
    with _threads(threads), progress("timing layers", len(LAYERS), "layer") as advance:
        for place, layer in enumerate(LAYERS, 1):
            found.append(_timed(layer, skipped, start + place * share))
            advance(1)
    return found


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed(layer: TimedLayer, skipped: Collection[str], deadline: float) -> LayerTimes:
    """Time a layer in turns until the deadline, at least once."""
    calls: dict[tuple[str, str], Call] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        for way in (FP32, BF16, *ATTACHED):
            if way in skipped:
                continue
            try:
                calls |= {(way, layout): _prepared(layer, way, layout, stack) for layout in layer.layouts}
            except Exception as error:  # PyTorch raises all kinds, and the other ways are still worth a table
                if way == FP32:
                    raise
                failed[way] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        taken = {key: [_seconds(call)] for key, call in calls.items()}
        slow = SLOW * min(taken[FP32, layout][0] for layout in layer.layouts)
        again = {key: call for key, call in calls.items() if taken[key][0] <= slow or key[0] == FP32}
        turn = 0.0
        for _ in range(TURNS - 1):
            if (now := time.perf_counter()) + turn >= deadline:
                break
            for key, call in again.items():
                taken[key].append(_seconds(call))
            turn = time.perf_counter() - now
    found: dict[str, dict[str, float]] = {}
    for (way, layout), each in taken.items():
        found.setdefault(way, {})[layout] = 1e3 * median(each)
    return LayerTimes(layer.name, found, failed)


def _prepared(layer: TimedLayer, way: str, layout: str, stack: ExitStack) -> Call:
    """Return a call of a way that has run before; what it attaches goes with the stack."""
    kind = torch.channels_last if layout == CHANNELS_LAST else torch.contiguous_format
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(layer.build())
        x = torch.randn(layer.shape).contiguous(memory_format=kind).requires_grad_()
        if layout == CHANNELS_LAST:
            model.to(memory_format=kind)  # type: ignore[call-overload]
        y = model(x)
        g = torch.randn_like(y).mul_(2).exp_() * torch.randn_like(y).sign_()  # lognormal, as those of networks are
    call = _call(model, x, g, autocast=way == BF16)
    if way in ATTACHED:
        recipe, backend = ATTACHED[way]
        handle = stack.enter_context(attach(model, Plan.uniform(recipe, keep=()), backend=backend))
        call()
        handle.step()  # the first step takes the statistics from which thresholds are computed
        take_no_statistics(handle)
    call()
    return call


def _call(model: nn.Module, x: Tensor, g: Tensor, autocast: bool) -> Call:
    wanted = (x, *model.parameters())

    def call() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = model(x)
        return torch.autograd.grad(y.float(), wanted, g)

    return call


def _seconds(call: Call) -> float:
    start = seconds()
    call()
    taken = seconds() - start
    release_workspace()  # as handle.step() does between two training steps
    return taken


# -- what follows from the times --


def missing_ways(no_kernels: str, no_bf16: str) -> dict[str, str]:
    """Return the ways that cannot be timed, with the reason.

    Args:
        no_kernels: the reason why the native module is not in use; empty if it is.
        no_bf16: the reason why 16-bit products would end the process; empty if they do not.
    """
    found = {BF16: no_bf16} if no_bf16 else {}
    return found | (dict.fromkeys(ATTACHED, f"the native module is not in use: {no_kernels}") if no_kernels else {})


def mean_speedups(rows: Sequence[LayerTimes], missing: Mapping[str, str]) -> dict[str, float]:
    """Return the geometric mean of each way's speed-ups over all layers, or over those that have two layouts."""
    found = [row.speedups for row in rows]
    ways = [way for way in (CHANNELS_LAST, *HOW) if way not in missing and any(way in one for one in found)]
    return {way: geometric_mean([one[way] for one in found if way in one]) for way in ways}


def advice(rows: Sequence[LayerTimes], missing: Mapping[str, str]) -> str:
    """Return one sentence: what is fastest here, how to switch it on, and what could not be timed."""
    gains = mean_speedups(rows, missing)
    last = gains.pop(CHANNELS_LAST, 1.0)
    best = max(gains.values(), default=1.0)
    first = next((way for way in HOW if way in gains and best <= MARGIN * gains[way]), None)
    if first is None or best < MARGIN:
        parts = ["Nothing is clearly faster than FP32 here"]
        parts += [f"{first} comes nearest, {gains[first]:.2f} times FP32 by geometric mean"] if first else []
    else:
        parts = [f"Fastest here: {first}, {gains[first]:.2f} times FP32 by geometric mean"]
        parts += [f"switch it on with {HOW[first]}"]
    if best < MARGIN <= last or (first == BF16 and last >= MARGIN):  # lograd.accelerate turns images by itself
        parts += [f"FP32 convolutions are {last:.2f} times faster after model.to(memory_format=torch.channels_last)"]
    for reason in dict.fromkeys(missing.values()):
        ways = [way for way in HOW if missing.get(way) == reason]
        parts += [f"{', '.join(ways)} {'were' if len(ways) > 1 else 'was'} not timed, since {reason}"]
    return "; ".join(parts) + "."


def speed_table(rows: Sequence[LayerTimes], missing: Mapping[str, str], threads: int) -> TextTable:
    """Return the table of speed-ups, a row for each layer and one for the geometric means."""
    columns = (CHANNELS_LAST, *HOW)

    def cells(found: Mapping[str, float]) -> list[str]:
        return [f"{found[way]:.2f}" if way in found and way not in missing else "–" for way in columns]

    lines = [[row.layer, f"{min(row.milliseconds[FP32].values()):.1f}", *cells(row.speedups)] for row in rows]
    lines.append(["geometric mean", "", *cells(mean_speedups(rows, missing))])
    caption = (
        f"Forward and backward (dX, dW and the bias) on {plural(threads, 'thread')}, medians of up to {TURNS} turns. "
        "FP32 and every way count in the better layout of images; channels-last is FP32 against contiguous FP32."
    )
    return text_table("times faster than FP32", ["layer", "FP32, ms", *columns], lines, caption)


def times_to_dict(rows: Sequence[LayerTimes], missing: Mapping[str, str], threads: int) -> dict[str, Any]:
    """Return the times as plain values for JSON."""
    return {
        "threads": threads,
        "layers": [
            {
                "layer": row.layer,
                "milliseconds": {way: dict(taken) for way, taken in row.milliseconds.items()},
                "times faster than FP32": row.speedups,
            }
            for row in rows
        ],
        "geometric means": mean_speedups(rows, missing),
        "not timed": dict(missing),
    }
