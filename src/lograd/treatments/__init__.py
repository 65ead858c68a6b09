"""Treatments of a tensor before it enters a product: small frozen values, which a sentence puts in order.

A treatment knows its JSON form, how its numbers follow from a layer's statistics or from the tensor itself, how it is
applied, and, where a magnitude alone decides, what becomes of it, from which its error is predicted.  A sentence is a
tuple, applied in order; the empty one is the identity.
"""

from .atp import Atp
from .blocks import Blocks
from .dithered import Dithered
from .hadamard import Hadamard
from .integers import Integers
from .interval import Interval
from .learned import Learned
from .luq import Luq
from .products import (
    AS_IS,
    BACKENDS,
    BACKWARD,
    OPERANDS,
    PRODUCTS,
    SYMBOLS,
    Backend,
    ProductPlan,
    Treated,
    both,
    can_take_rows,
    gradients,
    meet_as_levels,
    with_backends,
)
from .prune import Prune
from .quantize import Quantize
from .recipes import ALL_RECIPES, FULL_RECIPES, RECIPES, Recipe, recipe, register_recipe
from .rows import Rows
from .s2fp8 import S2fp8
from .sawb import Sawb
from .sentence import (
    Sentence,
    apply,
    checked_result,
    describe,
    from_json,
    memories,
    mixes,
    numbers_of,
    predict,
    settled,
    stages,
    to_json,
    total_counts,
)
from .statistics import Prediction, Statistics
from .statquant import StatQuant
from .topk import TopK, TopKStochastic
from .treatment import Coded, Numbers, Setting, Treatment, coder

__all__ = [
    "Coded", "Numbers", "Prediction", "Sentence", "Setting", "Statistics", "Treatment", "coder",
    "Atp", "Blocks", "Dithered", "Hadamard", "Integers", "Interval", "Learned", "Luq", "Prune", "Quantize",
    "Rows", "S2fp8", "Sawb", "StatQuant", "TopK", "TopKStochastic",
    "AS_IS", "BACKENDS", "BACKWARD", "OPERANDS", "PRODUCTS", "SYMBOLS", "Backend", "ProductPlan", "Treated", "both",
    "can_take_rows", "gradients", "meet_as_levels", "with_backends",
    "ALL_RECIPES", "FULL_RECIPES", "RECIPES", "Recipe", "recipe", "register_recipe",
    "apply", "checked_result", "describe", "from_json", "memories", "mixes", "numbers_of", "predict", "settled",
    "stages", "to_json", "total_counts",
]  # fmt: skip
