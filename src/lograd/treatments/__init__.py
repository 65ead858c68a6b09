"""What is done to one gradient before its products: a sentence of treatments, each a small frozen value.

A treatment knows its JSON form, how its numbers follow from a layer's statistics, how it is applied to a tensor, and
what it does to a single magnitude, from which its error is predicted.  A sentence is a tuple, applied in order; the
empty one is the identity.
"""

from .prune import Prune
from .quantize import Quantize
from .recipes import recipe
from .sentence import Sentence, describe, from_json, numbers_of, predict, to_json
from .statistics import Prediction, Statistics
from .treatment import Numbers, Treatment

__all__ = [
    "Numbers",
    "Prediction",
    "Prune",
    "Quantize",
    "Sentence",
    "Statistics",
    "Treatment",
    "describe",
    "from_json",
    "numbers_of",
    "predict",
    "recipe",
    "to_json",
]
