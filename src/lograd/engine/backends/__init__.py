"""How products are computed: dense, sparse, in integers, or by whichever of them is fastest.

`dense`, `sparse` and `integer` compute dX, dW and dbias, the last one Y as well.  `multiply` is the operator that takes
one of the first two for a gradient and tensors; `coded_output` and `coded_products` of `coded` take one of all three
for codes, and `block_product` of `blocks` dense or integer products of levels in blocks.  `choice` remembers which.
"""

from . import blocks, coded
from .multiply import LEAST_WORK

__all__ = ["LEAST_WORK", "blocks", "coded"]
