"""`lograd doctor`: versions, instruction sets and kernels; and which way of computing is fastest on this CPU.

The times come from `layer_times`; what is said of them is computed here, from the times alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import plural
from ..report import TextTable, text_table
from .console import Json, cell, out, print_json, print_table, show

if TYPE_CHECKING:  # torch takes seconds to import
    from .layer_times import LayerTimes

MARGIN = 1.05
"""Smaller ratios than this, of two times on a machine that does other things as well, count as equal."""
STEADY = 1.25
"""A larger spread of the times of FP32 comes from other programs."""
LEAST_TURNS = 5
"""A median of fewer turns is not trusted."""
CHANNELS_LAST = "channels-last"
HOW = {
    "bf16 autocast": "torch.autocast('cpu', torch.bfloat16)",
    "int8-full": "lograd.accelerate(model)",
    "int6-full": "lograd.accelerate(model)",
    "int4-full": "lograd.attach(model, lograd.Plan.uniform('int4-full'))",
    "prune85 sparse": "lograd.attach(model, lograd.Plan.uniform('prune85'))",
}
"""How each way is switched on, the one with the least noise first: of ways that are equally fast, the first counts."""
BF16, SPARSE = "bf16 autocast", "prune85 sparse"

Threads = Annotated[int | None, typer.Option(help="Threads of the timed layers.", show_default="PyTorch's own")]
WithTimes = Annotated[bool, typer.Option("--times/--no-times", help="Time layers, which takes up to half a minute.")]


def doctor(threads: Threads = None, times: WithTimes = True, as_json: Json = False) -> None:
    """Versions, instruction sets, native kernels: what a bug report needs; and what is fastest on this CPU.

    A few layers are timed in FP32, with bf16 autocast, channels-last, with 8-, 6- and 4-bit integers and with sparse
    products at 85 % zeros. One sentence says which is fastest and how to switch it on. If the CPU announces AMX, a
    child process tries it, since AMX of some virtual machines kills the process.
    """
    from ..formats.values import check_width
    from ..report.environment import describe, instruction_sets, probe_amx
    from ..report.progress import as_lines

    if threads is not None:  # more threads than cores wait for each other, and their times mean nothing
        check_width("--threads", threads, 1, os.cpu_count() or 1)
    amx = probe_amx()
    sections = describe() | {"instruction sets": instruction_sets(amx)}
    if not as_json:  # before the times, which make one wait
        for title, section in sections.items():
            print_table(title, ["", ""], [[key, cell(value)] for key, value in section.items()], header=False)
    if not times:
        if as_json:
            print_json(sections)
        return

    import torch

    from .layer_times import time_layers

    count = threads or torch.get_num_threads()
    missing = missing_ways(sections["native module"]["reason"], str(amx) if amx.deadly else "")
    with as_lines(not as_json):
        rows = time_layers(count, missing)
    missing |= {way: reason for row in rows for way, reason in row.failed.items()}
    if as_json:
        print_json(sections | {"times": as_values(rows, missing, count), "sentence": advice(rows, missing)})
        return
    out.print()
    show(speed_table(rows, missing, count))
    out.print(f"\n{advice(rows, missing)}", soft_wrap=True)


def missing_ways(no_kernels: str, no_bf16: str) -> dict[str, str]:
    """Return the ways that cannot be timed, with the reason.

    Args:
        no_kernels: the reason why the native module is not in use; empty if it is.
        no_bf16: the reason why 16-bit products would end the process; empty if they do not.
    """
    kernels = f"the native module is not in use: {no_kernels}"
    return {
        **({BF16: no_bf16} if no_bf16 else {}),
        **({way: kernels for way in HOW if way != BF16} if no_kernels else {}),
    }


def speedups(row: LayerTimes) -> dict[str, float]:
    """Return how many times faster than FP32 each way is, both in their better layout.

    FP32 channels-last is compared with contiguous FP32 instead, as it is one of the two layouts.
    """
    fp32 = row.milliseconds["FP32"]
    last = {CHANNELS_LAST: fp32["contiguous"] / fp32[CHANNELS_LAST]} if CHANNELS_LAST in fp32 else {}
    best = min(fp32.values())
    return last | {way: best / min(row.milliseconds[way].values()) for way in HOW if way in row.milliseconds}


def means(rows: Sequence[LayerTimes], missing: Mapping[str, str]) -> dict[str, float]:
    """Return the geometric mean of each way's speed-ups over all layers, or over those that have two layouts."""
    found = [speedups(row) for row in rows]
    ways = [way for way in (CHANNELS_LAST, *HOW) if way not in missing and any(way in one for one in found)]
    return {way: geometric_mean([one[way] for one in found if way in one]) for way in ways}


def advice(rows: Sequence[LayerTimes], missing: Mapping[str, str]) -> str:
    """Return one sentence: what is fastest here, how to switch it on, and what could not be timed."""
    gains = means(rows, missing)
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
    if best >= MARGIN and first == BF16:
        parts += _integers_beside_bf16(gains)
    for reason in dict.fromkeys(missing.values()):
        ways = [way for way in HOW if missing.get(way) == reason]
        parts += [f"{_joined(ways)} {'were' if len(ways) > 1 else 'was'} not timed, since {reason}"]
    if any(row.turns < LEAST_TURNS or row.spread > STEADY for row in rows):
        parts += ["these times are unsteady, as where other programs use the CPU, so run it again when it is idle"]
    return "; ".join(parts) + "."


def _integers_beside_bf16(gains: Mapping[str, float]) -> list[str]:
    """Return how the fastest integers compare with bf16 where bf16 is to be taken; nothing if none were timed."""
    integers = {way: gain for way, gain in gains.items() if way not in (BF16, SPARSE)}
    if not integers:
        return []
    way = max(integers, key=lambda name: integers[name])
    if gains[BF16] < MARGIN * integers[way]:
        return [f"lograd's integers are no faster here ({way}: {integers[way]:.2f} times)"]
    return [f"lograd's integers are slower here ({way}: {integers[way]:.2f} times)"]


def speed_table(rows: Sequence[LayerTimes], missing: Mapping[str, str], threads: int) -> TextTable:
    """Return the table of speed-ups, a row for each layer and one for the geometric means."""
    columns = (CHANNELS_LAST, *HOW)
    lines = [
        [row.layer, f"{min(row.milliseconds['FP32'].values()):.1f}", *_cells(speedups(row), columns, missing)]
        for row in rows
    ]
    lines.append(["geometric mean", "", *_cells(means(rows, missing), columns, missing)])
    turns = sorted({row.turns for row in rows})
    caption = (
        f"Forward and backward (dX, dW and the bias) on {plural(threads, 'thread')}, medians of "
        f"{' to '.join(map(str, [*turns[:1], *turns[1:][-1:]]))} turns. FP32 and every way count in the better layout "
        "of images; channels-last is FP32 against contiguous FP32."
    )
    return text_table("times faster than FP32", ["layer", "FP32, ms", *columns], lines, caption)


def _cells(found: Mapping[str, float], columns: Sequence[str], missing: Mapping[str, str]) -> list[str]:
    return [f"{found[way]:.2f}" if way in found and way not in missing else cell(None) for way in columns]


def as_values(rows: Sequence[LayerTimes], missing: Mapping[str, str], threads: int) -> dict[str, Any]:
    """Return the times as plain values for JSON."""
    return {
        "threads": threads,
        "layers": [
            {
                "layer": row.layer,
                "turns": row.turns,
                "milliseconds": {way: dict(taken) for way, taken in row.milliseconds.items()},
                "times faster than FP32": speedups(row),
            }
            for row in rows
        ],
        "geometric means": means(rows, missing),
        "not timed": dict(missing),
    }


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
