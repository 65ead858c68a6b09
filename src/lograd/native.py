"""The door to the compiled kernels.

The extension is optional.  This module loads it if it can and otherwise knows why not; it never fails at import.
Kernels take addresses, so type and layout are checked here, in front of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BINS_PER_OCTAVE = 16
"""Bins of one octave of |x|, one for each value of the four leading mantissa bits."""

EXTRA_SLOTS = ("zeros", "nans", "infinities")
"""What the slots after the bins count."""

# Exponents of the smallest subnormal and of the largest finite number.
_EXPONENTS = {np.dtype(np.float32): (-149, 127), np.dtype(np.float64): (-1074, 1023)}


@dataclass(frozen=True)
class Status:
    """Whether the compiled kernels are in use, or why not."""

    available: bool
    reason: str
    """Why they are not in use; empty if they are."""
    compiler: str = ""
    isa: str = ""
    """The widest instruction set that a kernel may use on this CPU: avx512, avx2, neon or generic."""
    features: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


def _note() -> str:
    """What the installation left behind if it could not build the extension."""
    try:
        return resources.files("lograd").joinpath("_native_note.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return "the extension lograd._native is not installed; `pip install .` in a checkout builds it"


def _load() -> tuple[ModuleType | None, str]:
    """The extension and nothing, or nothing and the reason."""
    if os.environ.get("LOGRAD_NATIVE") == "0":
        return None, "turned off by LOGRAD_NATIVE=0"
    try:
        import lograd._native as extension
    except ModuleNotFoundError:
        return None, _note()
    except Exception as error:  # a broken extension may raise anything, and a slower run is better than none
        return None, str(error)
    if extension.BINS_PER_OCTAVE != BINS_PER_OCTAVE:
        return None, "the extension lograd._native belongs to another version of lograd; reinstall lograd"
    return extension, ""


_extension, _reason = _load()


def status() -> Status:
    """Whether the compiled kernels are in use, or why not.

    >>> status().available or status().reason != ""
    True
    """
    if _extension is None:
        return Status(available=False, reason=_reason)
    return Status(
        available=True,
        reason="",
        compiler=_extension.compiler(),
        isa=_extension.isa_level(),
        features=tuple(_extension.cpu_features()),
        kernels=tuple(_extension.KERNELS),
    )


def kernel(name: str) -> Any:
    """A compiled kernel, which takes addresses; None where the extension is not in use."""
    return getattr(_extension, name, None)


def use_isa(name: str = "") -> bool:
    """Use the kernels of an instruction set (generic, avx2, avx512); the widest one without a name.

    False, and no change, if this build or this CPU does not have it.  The environment variable LOGRAD_ISA does the same
    at import.
    """
    return _extension is not None and bool(_extension.use_isa(name))


def histogram_layout(dtype: DTypeLike) -> tuple[int, int]:
    """The exponent of the first bin and the number of bins of `log_histogram`, for float32 or float64.

    Bin `b` holds the |x| from 2**(lowest + b // 16) * (1 + b % 16 / 16) up to the next bin.

    >>> histogram_layout("float32")
    (-149, 4432)
    """
    lowest, highest = _EXPONENTS[np.dtype(dtype)]
    return lowest, (highest - lowest + 1) * BINS_PER_OCTAVE


def log_histogram(x: NDArray[Any]) -> NDArray[np.int64] | None:
    """Counts of |x| in the bins of `histogram_layout`, followed by those of `EXTRA_SLOTS`.

    Exact for every finite number, subnormals included.  None if no kernel covers the type or the layout of `x`, or the
    extension is not in use: then the caller has a slower way.
    """
    if _extension is None or x.dtype not in _EXPONENTS or not (x.flags.c_contiguous and x.flags.aligned):
        return None
    _, bins = histogram_layout(x.dtype)
    counts = np.zeros(bins + len(EXTRA_SLOTS), dtype=np.int64)
    kernel = _extension.log_histogram_float32 if x.dtype == np.float32 else _extension.log_histogram_float64
    kernel(x.ctypes.data, x.size, counts.ctypes.data)
    return counts
