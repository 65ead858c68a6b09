"""lograd: backward passes with fewer bits and more zeros, chosen by theory, proven by measurement.

Formats say what a few bits can represent, laws what a gradient looks like, the theory what follows from the two, and
the operators do it to tensors.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import formats, laws, theory
from .errors import InvalidType, InvalidValue, LogradError, MomentDoesNotExist
from .formats import BlockFormat, FloatFormat, IdealFormat, IntFormat, parse_format

if TYPE_CHECKING:
    from . import ops

__version__ = "0.1.0"

__all__ = [
    "BlockFormat",
    "FloatFormat",
    "IdealFormat",
    "IntFormat",
    "InvalidType",
    "InvalidValue",
    "LogradError",
    "MomentDoesNotExist",
    "__version__",
    "formats",
    "laws",
    "ops",
    "parse_format",
    "theory",
]


def __getattr__(name: str) -> Any:
    """`lograd.ops` on first use: it needs torch, which takes a second to import; the theory does not."""
    if name == "ops":
        return importlib.import_module("lograd.ops")
    raise AttributeError(f"module 'lograd' has no attribute {name!r}")
