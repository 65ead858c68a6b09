"""The times of a few layers on this CPU, in FP32 and in every way that may be faster; `lograd doctor` shows them.

A time is that of a forward and a backward with dX, dW and the bias's gradient.  All ways of a layer take turns in one
process, so that other work on the machine hits all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from .. import Plan, attach
from ..engine.stopwatch import seconds
from ..measure.timing import take_no_statistics
from ..ops.sparse_products import release_workspace
from ..report.progress import Advance, progress
from ..treatments import Backend

BUDGET = 16.0
"""Seconds for all layers: with the imports and a probe of AMX, the command ends within half a minute."""
TURNS = 9
"""Turns of each way, if there is time for so many."""
SLOW = 4.0
"""A way that takes so many times longer than FP32 is timed once, since more turns would not change what is said."""

FP32, BF16, SPARSE = "FP32", "bf16 autocast", "prune85 sparse"
INTEGERS = ("int8-full", "int6-full", "int4-full")
CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels-last"

_ATTACHED: dict[str, tuple[str, Backend]] = {
    **{name: (name, "integer") for name in INTEGERS},
    SPARSE: ("prune85", "sparse"),
}
"""The recipe and the backend of each way of lograd's."""
NATIVE = tuple(_ATTACHED)
"""Ways that are slow without the native module."""
WAYS = (FP32, BF16, *NATIVE)

Call = Callable[[], object]


class Layer(NamedTuple):
    """A layer with the shape of its input."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of its input: images have two."""
        return (CONTIGUOUS, CHANNELS_LAST) if len(self.shape) == 4 else (CONTIGUOUS,)


LAYERS = (
    Layer("Linear 512 x 768 -> 768", lambda: nn.Linear(768, 768), (512, 768)),
    Layer("Linear 1024 x 384 -> 1536", lambda: nn.Linear(384, 1536), (1024, 384)),
    Layer("Conv2d 64, 3x3, 32x32, batch 8", lambda: nn.Conv2d(64, 64, 3, padding=1), (8, 64, 32, 32)),
    Layer("Conv2d 256, 3x3, 8x8, batch 16", lambda: nn.Conv2d(256, 256, 3, padding=1), (16, 256, 8, 8)),
)


@final
@dataclass(frozen=True)
class LayerTimes:
    """The times of a layer.

    Args:
        layer: its name.
        milliseconds: medians, by way and layout.
        turns: how many times all but slow ways were timed.
        spread: the upper quartile of the times of FP32 over the lower one; 1 on a machine that does nothing else.
        failed: ways that do not run, and why.
    """

    layer: str
    milliseconds: Mapping[str, Mapping[str, float]]
    turns: int = TURNS
    spread: float = 1.0
    failed: Mapping[str, str] = field(default_factory=dict)


def time_layers(threads: int, skipped: Container[str] = ()) -> list[LayerTimes]:
    """Time all layers.

    Args:
        threads: of PyTorch and of lograd's kernels.
        skipped: ways that are not to be tried.
    """
    start, share = time.perf_counter(), BUDGET / len(LAYERS)
    with _threads(threads), progress("timing layers", TURNS * len(LAYERS), "turn") as advance:
        return [_timed(layer, skipped, start + (place + 1) * share, advance) for place, layer in enumerate(LAYERS)]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed(layer: Layer, skipped: Container[str], deadline: float, advance: Advance) -> LayerTimes:
    """Time a layer in turns until the deadline, at least once."""
    calls: dict[tuple[str, str], Call] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        for way in WAYS:
            if way in skipped:
                continue
            try:
                calls |= {(way, layout): _prepared(layer, way, layout, stack) for layout in layer.layouts}
            except Exception as error:  # PyTorch raises all kinds, and the other ways are still worth a table
                if way == FP32:
                    raise
                failed[way] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        taken = {key: [_seconds(call)] for key, call in calls.items()}
        fp32 = min(taken[FP32, layout][0] for layout in layer.layouts)
        again = {key: call for key, call in calls.items() if taken[key][0] <= SLOW * fp32 or key[0] == FP32}
        advance(1)
        turns, turn = 1, 0.0
        while turns < TURNS and (now := time.perf_counter()) + turn < deadline:
            for key, call in again.items():
                taken[key].append(_seconds(call))
            turns, turn = turns + 1, time.perf_counter() - now
            advance(1)
        advance(TURNS - turns)
    found: dict[str, dict[str, float]] = {}
    for (way, layout), each in taken.items():
        found.setdefault(way, {})[layout] = 1e3 * median(each)
    spread = max(_spread(taken[FP32, layout]) for layout in layer.layouts)
    return LayerTimes(layer.name, found, turns, spread, failed)


def _spread(times: list[float]) -> float:
    low, _, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else (1.0, 1.0, 1.0)
    return high / low


def _prepared(layer: Layer, way: str, layout: str, stack: ExitStack) -> Call:
    """Return a call of a way that has run before; what it attaches goes with the stack."""
    kind = torch.channels_last if layout == CHANNELS_LAST else torch.contiguous_format
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(layer.build())
        x = torch.randn(layer.shape).contiguous(memory_format=kind).requires_grad_()
        if layout == CHANNELS_LAST:
            model.to(memory_format=kind)  # type: ignore[call-overload]
        g = _gradient(model(x))
    call = _call(model, x, g, autocast=way == BF16)
    if way in _ATTACHED:
        recipe, backend = _ATTACHED[way]
        handle = stack.enter_context(attach(model, Plan.uniform(recipe, keep=()), backend=backend))
        call()
        handle.step()  # the first step takes the statistics from which thresholds are computed
        take_no_statistics(handle)
    call()
    return call


def _gradient(y: Tensor) -> Tensor:
    """Return a gradient for an output, in its layout: magnitudes are lognormal, as those of networks are."""
    return torch.randn_like(y).mul_(2).exp_() * torch.randn_like(y).sign_()


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
