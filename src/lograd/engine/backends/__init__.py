"""How products are computed: dense, sparse, in integers, or by whichever of them is fastest."""

from .choice import LEAST_WORK

__all__ = ["LEAST_WORK"]
