"""How the products of a gradient are computed: dense, sparse, or whichever of them is faster.

`dense` and `sparse` compute dX, dW and dbias from the same arguments.  `multiply` is the operator that takes one of
them, and `choice` remembers which.
"""

from .multiply import LEAST_WORK

__all__ = ["LEAST_WORK"]
