"""The door to the compiled kernels.

The extension is optional.  This module loads it if it can and otherwise knows why not; it never fails at import.
Kernels take addresses, and `address` is the only way to one: it knows what a kernel will read or write there, and
refuses a tensor that is something else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import InvalidValue, LogradWarning, sentence

BINS_PER_OCTAVE = 16
"""Bins of one octave of |x|, one for each value of the four leading mantissa bits."""

EXTRA_SLOTS = ("zeros", "nans", "infinities")
"""The names of the counts in the slots after the bins."""

INSTRUCTION_SETS = ("generic", "avx2", "avx2vnni", "avx512", "avx512vnni")
"""Those that kernels are compiled for, on x86; the first is that of any CPU.  "vnni" multiplies bytes in one step."""

TYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "float64": 3}
"""Element types that log_histogram counts, and the number by which the extension knows each."""


@dataclass(frozen=True)
class Status:
    """The state of the compiled kernels: in use, or why not."""

    available: bool
    reason: str
    """The reason why they are not in use; empty if they are."""
    compiler: str = ""
    isa: str = ""
    """The widest instruction set that a kernel may use on this CPU: one of `INSTRUCTION_SETS`."""
    features: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


def _note() -> str:
    """Return the note that the installation left behind if it could not build the extension."""
    try:
        return resources.files("lograd").joinpath("_native_note.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return "the extension lograd._native is not installed; `pip install .` in a checkout builds it"


def _load_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lograd._native", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interface_of(folder: Path) -> str:
    """Returns the hash of the binding sources in a folder; empty where there are none, as in an installed wheel.

    CMakeLists.txt puts the same hash into the extension.  So a checkout that was changed since the extension was built
    does not call functions that take something else by now; a wheel holds an extension of its own sources.
    """
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*"))]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16] if hashes else ""


def _load() -> tuple[ModuleType | None, str]:
    """The extension and nothing, or nothing and the reason."""
    wanted = os.environ.get("LOGRAD_NATIVE", "")
    if wanted == "0":
        return None, "turned off by LOGRAD_NATIVE=0"
    if wanted and not wanted.endswith(".so"):
        warnings.warn(
            sentence("LOGRAD_NATIVE", wanted, "0, the path of a .so file, or unset"), LogradWarning, stacklevel=2
        )
    try:
        if wanted.endswith(".so"):  # another build, as ./dev sanitize makes it
            extension = _load_file(wanted)
        else:
            import lograd._native as extension
    except ModuleNotFoundError:
        return None, _note()
    except Exception as error:  # a broken extension may raise anything, and a slower run is better than none
        return None, str(error)
    wanted_interface = interface_of(Path(__file__).parent / "csrc" / "bind")
    if wanted_interface and getattr(extension, "INTERFACE", "") != wanted_interface:
        return None, "the extension lograd._native belongs to another version of lograd; reinstall lograd"
    return extension, ""


_extension, _reason = _load()

if _extension is not None and not _extension.use_isa(os.environ.get("LOGRAD_ISA", "")):
    warnings.warn(
        sentence("LOGRAD_ISA", os.environ["LOGRAD_ISA"], f"{', '.join(INSTRUCTION_SETS)}, as far as this CPU has them")
        + f" {_extension.isa_level()} is used.",
        LogradWarning,
        stacklevel=2,
    )


def status() -> Status:
    """Return the state of the compiled kernels: in use, or why not.

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


def address(what: str, x: Any, dtype: object, count: int) -> int:
    """Where the elements of a CPU tensor begin, for a kernel that takes `count` of them, of this type, in memory order.

    The caller keeps the tensor until the kernel has returned.  Anything that would make the kernel leave its memory, or
    misread it, is refused: another type or size, gaps or overlaps, another device, a negated view, freed memory.
    """
    if x.dtype is dtype and x.numel() == count and x.is_cpu and (x.is_contiguous() or _is_dense(x)) and not x.is_neg():
        where: int = x.data_ptr()
        if where or not count:
            return where
    raise InvalidValue(_refusal(what, x, dtype, count))


def place(what: str, x: Any) -> int:
    """Where the elements of a CPU tensor begin whose type and size the contract of an operator has checked."""
    if x.is_cpu and x.is_contiguous() and not x.is_neg():
        where: int = x.data_ptr()
        if where:
            return where
    return address(what, x, x.dtype, x.numel())


def own_address(x: Any) -> int:
    """Where the elements of a tensor begin that the caller has just made for a kernel: it needs no check."""
    where: int = x.data_ptr()
    return where


def array_address(what: str, x: Any) -> int:
    """Where the bytes of a NumPy array begin; another type than uint8, or gaps, are refused.

    The caller keeps the array until the kernel has returned, and tells the kernel its size.
    """
    if x.dtype.name == "uint8" and x.flags.c_contiguous:
        where: int = x.ctypes.data
        return where
    raise InvalidValue(f"{what} must be an array of uint8 without gaps; got {x.dtype} with strides {x.strides}.")


def view_address(what: str, x: Any, dtype: object) -> int:
    """Where a view of a CPU tensor begins, for a kernel that takes its shape and its strides, gaps included."""
    if x.dtype is dtype and x.is_cpu and not x.is_neg():
        where: int = x.data_ptr()
        if where or not x.numel():
            return where
    raise InvalidValue(_refusal(what, x, dtype, x.numel()))


def storage(x: Any) -> int:
    """Return a number that tensors share if they are views of the same memory."""
    try:
        where: int = x.untyped_storage().data_ptr()
    except RuntimeError:  # a subclass that holds other tensors has no memory of its own
        return id(x)
    return where


def _is_dense(x: Any) -> bool:
    """Return True if the elements fill a block of memory, in whatever order of the dimensions."""
    expected = 1
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _refusal(what: str, x: Any, dtype: object, count: int) -> str:
    wanted = f"{count} elements of {str(dtype).removeprefix('torch.')}, without gaps, in the memory of the CPU"
    if not x.is_cpu:
        got = f"on {x.device}"
    elif x.is_neg():
        got = "a negated view, whose elements are not those in memory"
    elif x.dtype is not dtype or x.numel() != count:
        got = f"{x.numel()} of {element_type(x)}"
    elif not _is_dense(x):
        got = f"shape {tuple(x.shape)} with strides {tuple(x.stride())}"
    else:
        got = "memory that was freed"
    return f"a native kernel takes {wanted} as {what}; got {got}."


def use_isa(name: str = "") -> bool:
    """Use the kernels of an instruction set of `INSTRUCTION_SETS`; the widest one without a name.

    False, and no change, if this build or this CPU does not have it.  The environment variable LOGRAD_ISA does the same
    at import.
    """
    return _extension is not None and bool(_extension.use_isa(name))


def histogram_layout(dtype: DTypeLike) -> tuple[int, int]:
    """The exponent of the first bin and the number of bins of `log_histogram`; 16-bit types have those of float32.

    Bin `b` holds the |x| from 2**(lowest + b // 16) * (1 + b % 16 / 16) up to the next bin.

    >>> histogram_layout("float32")
    (-149, 4432)
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name  # NumPy alone does not know "bfloat16"
    # Exponents of the smallest subnormal and of the largest finite number.
    lowest, highest = (-1074, 1023) if name == "float64" else (-149, 127)
    return lowest, (highest - lowest + 1) * BINS_PER_OCTAVE


def count_magnitudes(x: Any) -> NDArray[np.int64] | None:
    """Counts of |x| in the bins of `histogram_layout`, followed by those of `EXTRA_SLOTS`, of an array or a CPU tensor.

    Exact for every finite number, subnormals included.  None if no kernel covers the type or the layout of `x`, or the
    extension is not in use: then the caller has a slower way.
    """
    name = element_type(x)
    if _extension is None or name not in TYPES:
        return None
    if isinstance(x, np.ndarray):
        if not (x.dtype.isnative and x.flags.c_contiguous and x.flags.aligned):
            return None
        where, count = x.ctypes.data, x.size
    else:  # a tensor; this layer needs no torch
        if not (x.is_cpu and x.is_contiguous()):
            return None
        where, count = address("x", x, x.dtype, x.numel()), x.numel()
    counts = np.zeros(histogram_layout(name)[1] + len(EXTRA_SLOTS), dtype=np.int64)
    _extension.log_histogram(TYPES[name], where, count, 1, counts.ctypes.data, 1)
    return counts


def element_type(x: Any) -> str:
    """The element type of an array or a tensor, as both NumPy and PyTorch name it."""
    return str(x.dtype.name if isinstance(x, np.ndarray) else x.dtype).removeprefix("torch.")
