"""A plan on a model: classes swapped in place, and the handle that counts, explains, saves and undoes it."""

from .handle import Handle, attach

__all__ = ["Handle", "attach"]
