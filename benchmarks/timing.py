"""What the benchmarks share: interleaved medians, and how results are described and written."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import typer
from rich.progress import track

import lograd
from lograd.environment import LIMIT, cpuinfo, from_torch, machine, version_of

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
TORCH = "PyTorch's instruction set"
"""The field of a result's machine in which it stands; results before 2026-11-18 have none."""
AVX2 = {
    "LOGRAD_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
}  # fmt: skip
"""Variables that keep lograd, PyTorch and its libraries from newer instructions; all of them read these when loaded."""
FEATURES = (
    "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_int8", "amx_bf16",
)  # fmt: skip
"""Flags of a CPU that decide how fast products are, as Linux spells them."""
LIMITS = (
    "LOGRAD_ISA", "ATEN_CPU_CAPABILITY", LIMIT, "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "FBGEMM_ENABLE_INSTRUCTIONS",
)  # fmt: skip
"""Variables that keep lograd, PyTorch and its libraries from newer instructions; all of them read these when loaded."""


def restart(isa: str, module: str) -> None:
    """Begin again in this process with what an instruction set allows; an empty one allows all that the CPU has."""
    if isa not in ("", "avx2"):
        raise typer.BadParameter(f"--isa is avx2; got {isa!r}")
    if isa and any(os.environ.get(name) != value for name, value in AVX2.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | AVX2)


def medians(cases: Mapping[str, Callable[[], object]], repeats: int, shortest: float = 0.0) -> dict[str, float]:
    """Milliseconds of a call of each case, the median of its `turns`."""
    return {name: median(values) for name, values in turns(cases, repeats, shortest).items()}


def turns(cases: Mapping[str, Callable[[], object]], repeats: int, shortest: float = 0.0) -> dict[str, list[float]]:
    """Milliseconds of a call of each case, taken in turns so that a disturbance hits all of them.

    A turn repeats its call until it has taken about `shortest` seconds, so that the clock's own cost does not show.
    """
    calls = {name: _calls(case, shortest) for name, case in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            times[name].append(1e3 * _seconds(case, calls[name]) / calls[name])
    return times


def _seconds(case: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        case()
    return time.perf_counter() - start


def _calls(case: Callable[[], object], shortest: float) -> int:
    if shortest <= 0:
        return 1
    case()  # the first call may compile something
    return max(1, round(shortest / max(_seconds(case, 1), 1e-7)))


def versions(*packages: str) -> dict[str, str]:
    """The versions of lograd, Python and other packages."""
    ours = {"lograd": lograd.__version__, "python": platform.python_version()}
    return ours | {package: version_of(package) for package in packages}


def conditions() -> dict[str, Any]:
    """Return what a measurement notes: machine and day, the flags of the CPU, and what lograd and PyTorch may use."""
    flags = cpuinfo("flags").split()
    return machine() | {
        "cpu flags": [name for name in FEATURES if name in flags],
        TORCH: from_torch(lambda torch: torch.backends.cpu.get_cpu_capability()),
        "environment": {name: os.environ[name] for name in LIMITS if name in os.environ},
    }


def progress(jobs: list[T]) -> Iterable[T]:
    """The jobs, with a bar on a terminal."""
    return track(jobs, "measuring") if sys.stdout.isatty() else jobs


def in_words(machine: Mapping[str, Any]) -> str:
    """Return the CPU of a result and the instruction sets that were on, lograd's and PyTorch's."""
    words = f"{machine['cpu']}, {machine['cores']} cores, lograd's kernels {machine['instruction set'].upper()}"
    if TORCH not in machine:
        return f"{words}, PyTorch's not noted"
    limits = ", ".join(f"{name}={value}" for name, value in machine["environment"].items())
    own = [flag for flag in machine["cpu flags"] if flag in ("avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16")]
    held = f" held by {limits}" if limits else ", nothing held back"
    return f"{words}, PyTorch's {machine[TORCH]}{held} (the CPU has {', '.join(own) or 'no VNNI'})"


def write(name: str, result: Mapping[str, Any], introduction: str, table: str) -> None:
    """Write results/NAME.json, and results/NAME.md with a paragraph and the machine before the table."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(f"{introduction}\n\n{in_words(result['machine'])}.\n\n{table}\n")
