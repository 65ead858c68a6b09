"""Layers whose backward prunes its gradient and skips the zeros on the CPU.

`functional` takes the threshold from you; `Linear`, `Conv1d` and `Conv2d` keep their own for a sparsity.
"""

from . import functional
from .modules import Conv1d, Conv2d, Linear

__all__ = ["Conv1d", "Conv2d", "Linear", "functional"]
