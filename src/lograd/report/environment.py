"""Facts about the machine: those of a bug report, by `lograd doctor`, and those that a file of results notes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import native

_PACKAGES = ("lograd", "torch", "numpy", "scipy", "rich", "typer")

# Those that kernels choose between, under the names that Linux gives them.
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")


def version_of(package: str) -> str:
    """The version of an installed package, or the words "not installed"."""
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


def _cpu_features(kernels: native.Status) -> list[str]:
    if kernels.available:
        return list(kernels.features)
    flags = cpuinfo("flags").split()
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
        "versions": {"python": platform.python_version()} | {package: version_of(package) for package in _PACKAGES},
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


def machine() -> dict[str, Any]:
    """The machine and the day, as a file of results notes them."""
    described = describe()
    return {
        "cpu": described["machine"]["cpu"],
        "cores": described["machine"]["usable cores"],
        "instruction set": described["native module"]["instruction set"],
        "date": date.today().isoformat(),
    }


def commit() -> str | None:
    """The commit of the checkout that lograd is imported from; None where it is installed without one."""
    here = Path(__file__).parent
    command = [
        "git",
        "-C",
        str(here),
        "ls-files",
        "--error-unmatch",
        Path(__file__).name,
    ]  # a checkout of lograd itself
    try:
        subprocess.run(command, capture_output=True, timeout=5, check=True)
        found = subprocess.run(
            [*command[:3], "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
