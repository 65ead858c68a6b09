"""lograd: backward passes with fewer bits and more zeros, chosen by theory, proven by measurement.

Formats say what a few bits can represent, laws what a gradient looks like, and the theory what follows from the two.
"""

from . import formats, laws, theory
from .errors import InvalidType, InvalidValue, LogradError, MomentDoesNotExist
from .formats import BlockFormat, FloatFormat, IdealFormat, IntFormat, parse_format

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
    "parse_format",
    "theory",
]
