"""What a bug report needs to know about this machine: the content of `lograd env`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from lograd import native

_PACKAGES = ("lograd", "torch", "numpy", "scipy", "rich", "typer")

# Those that kernels choose between, under the names that Linux gives them.
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _torch_threads() -> int | str:
    # Only the running torch knows.  A broken torch raises OSError or worse, and this report is what its owner needs.
    try:
        import torch

        return torch.get_num_threads()
    except Exception as error:
        return f"torch cannot be imported: {error}"


def _cpuinfo(field: str) -> str:
    """One field of Linux's description of the first CPU; empty elsewhere."""
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
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpu_features(kernels: native.Status) -> list[str]:
    if kernels.available:
        return list(kernels.features)
    flags = _cpuinfo("flags").split()
    return [name for name in _FEATURES if name in flags]


def _usable_cores() -> int:
    # A container often owns fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """Sections of plain values, in the order in which to print them; `json.dumps` takes it as it is."""
    kernels = native.status()
    return {
        "versions": {"python": platform.python_version()} | {package: _version(package) for package in _PACKAGES},
        "machine": {
            "platform": platform.platform(),
            "cpu": _cpu_model(),
            "cores": os.cpu_count() or 1,
            "usable cores": _usable_cores(),
            "torch threads": _torch_threads(),
            "cpu features": _cpu_features(kernels),
        },
        "native module": {
            "in use": kernels.available,
            "reason": kernels.reason,
            "kernels": list(kernels.kernels),
            "compiler": kernels.compiler,
            "instruction set": kernels.isa,
        },
    }
