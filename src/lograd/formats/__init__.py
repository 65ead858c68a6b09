"""Number formats as frozen values: floats, integers and blocks of few bits, and how a number is rounded to them.

Everything here is scalar and slow.  It is the definition that the theory integrates over, and that the kernels equal
bit for bit.
"""

from .block import BlockFormat
from .catalogue import CATALOGUE, AnyFormat, parse_format
from .float import FloatFormat
from .ideal import IdealFormat
from .integer import IntFormat
from .values import ROUNDINGS, Cells, Format, Rounding

__all__ = [
    "CATALOGUE", "ROUNDINGS", "AnyFormat", "BlockFormat", "Cells", "FloatFormat", "Format", "IdealFormat", "IntFormat",
    "Rounding", "parse_format",
]  # fmt: skip
