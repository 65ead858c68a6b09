"""A plan on a model: classes swapped in place, and the handle that counts, explains, saves and undoes it."""

from .guard import Guard
from .handle import Handle, attach

__all__ = ["Guard", "Handle", "attach"]
