"""Facts about the machine: those of a bug report, by `lograd doctor`, and those that a file of results notes.

Some virtual machines announce AMX and end a process that uses it, as PyTorch does for 16-bit products.  Only a child
process can tell, so `probe_amx` starts one; `./dev` asks it, too.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any, final

from . import native

_PACKAGES = ("lograd", "torch", "numpy", "scipy", "rich", "typer")


def version_of(package: str) -> str:
    """The version of an installed package, or the words "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def from_torch(ask: Callable[[Any], Any]) -> Any:
    """Return what the running torch says; a broken one, which this report may be needed for, is said in words."""
    try:
        import torch

        return ask(torch)
    except Exception as error:
        return f"torch cannot be imported: {error}"


def cpuinfo(field: str) -> str:
    """Return one field of Linux's description of the first CPU; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field), "")


def _cpu_model() -> str:
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return cpuinfo("model name") or platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """Return sections of plain values, in the order in which to print them."""
    kernels, here = native.status(), machine()
    return {
        "versions": {"python": platform.python_version()} | {package: version_of(package) for package in _PACKAGES},
        "machine": {
            "platform": platform.platform(),
            "cpu": here["cpu"],
            "cores": os.cpu_count() or 1,
            "usable cores": here["cores"],
            "torch threads": from_torch(lambda torch: torch.get_num_threads()),
        },
        "native module": {
            "in use": kernels.available,
            "reason": kernels.reason,
            "kernels": list(kernels.kernels),
            "compiler": kernels.compiler,
            "instruction set": kernels.isa,
        },
    }


def machine() -> dict[str, Any]:
    """Return the machine and the day, as a file of results notes them."""
    # A container often owns fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "instruction set": native.status().isa,
        "date": date.today().isoformat(),
    }


# -- instruction sets --

LIMIT = "ONEDNN_MAX_CPU_ISA"
"""The variable that keeps oneDNN, and so PyTorch, from newer instructions."""
WITHOUT_AMX = "AVX512_CORE_FP16"
"""Its value for everything but AMX."""
PATIENCE = 60.0
"""Seconds after which a child process that tries AMX counts as dead."""

_PROBE = "import torch; x = torch.ones(64, 64).bfloat16(); torch.nn.functional.linear(x, x)"
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_VNNI = {"avx512_vnni", "avx_vnni", "avx512vnni", "avxvnni"}  # as Linux and as our kernels spell them


@final
@dataclass(frozen=True)
class Amx:
    """The state of AMX on this machine.

    Args:
        announced: True if the CPU says that it has AMX; None where the system does not tell.
        death: how a process ended that was free to use AMX, such as "SIGILL"; empty if it ended well.
        limit: the value of ONEDNN_MAX_CPU_ISA; empty where it is not set.
        deadly: True if 16-bit products would end this process, with its ONEDNN_MAX_CPU_ISA.
    """

    announced: bool | None = False
    death: str = ""
    limit: str = ""
    deadly: bool = False

    def __str__(self) -> str:
        if not self.announced:
            return "AMX is not announced" if self.announced is False else "AMX is unknown"
        if not self.death:
            return "AMX works" + (f"; {LIMIT}={self.limit} may keep PyTorch from it" if self.limit else "")
        broken = f"AMX is announced but kills the process ({self.death})"
        if self.deadly:
            return f"{broken}: set {LIMIT}={WITHOUT_AMX}"
        return f"{broken}; {LIMIT}={self.limit} keeps PyTorch from it"


def probe_amx() -> Amx:
    """Return the state of AMX; where the CPU announces it, a child process tries a product in bfloat16."""
    flags = cpuinfo("flags").split()
    if "amx_bf16" not in flags:
        return Amx(announced=False if flags else None)
    limit = os.environ.get(LIMIT, "")
    death = _death({name: value for name, value in os.environ.items() if name != LIMIT})
    # A limit that oneDNN does not know limits nothing, so that it is tried rather than read.
    deadly = bool(death and (not limit or _death(os.environ)))
    return Amx(True, death, limit, deadly)


def _death(environment: Mapping[str, str]) -> str:
    """Return how a child process ended that multiplies in bfloat16; empty if it ended well."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], env=environment, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PATIENCE:.0f} s"
    if done.returncode >= 0:
        return f"exit code {done.returncode}" if done.returncode else ""
    try:
        return signal.Signals(-done.returncode).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-done.returncode}"


def instruction_sets(amx: Amx) -> dict[str, Any]:
    """Return the section of a report: which instruction sets the CPU has, and which are used; plain values."""
    kernels, listed = native.status(), cpuinfo("flags").split()
    flags = {*listed, *kernels.features}
    return {
        "AVX2": "avx2" in flags,
        "AVX-512": flags >= _AVX512,
        "VNNI": bool(flags & _VNNI),
        "AVX512_BF16": "avx512_bf16" in flags if listed else None,  # our kernels do not ask for it
        "AMX": str(amx).removeprefix("AMX ").removeprefix("is "),
        "PyTorch uses": from_torch(lambda torch: torch.backends.cpu.get_cpu_capability()),
        **{name: os.environ[name] for name in (LIMIT, "ATEN_CPU_CAPABILITY") if name in os.environ},
        "lograd uses": kernels.isa if kernels.available else f"plain PyTorch: {kernels.reason}",
    }
