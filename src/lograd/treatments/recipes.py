"""Sentences of treatments by name, for every layer alike."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import InvalidValue, nearest_name
from ..formats import FloatFormat, IntFormat
from .prune import Prune
from .quantize import Quantize
from .sentence import Sentence

EXPONENTS = {4: 3, 5: 4, 6: 4, 7: 4, 8: 5}
"""Exponent bits of FP4 to FP8: the Cifar100 row of Table 2 of [chmiel2021]."""

RECIPES: dict[str, tuple[str, Callable[..., Sentence]]] = {
    "identity": ("identity", lambda: ()),
    "fpN": (
        r"fp([4-8])",
        lambda bits: (Quantize(FloatFormat(EXPONENTS[int(bits)], int(bits) - 1 - EXPONENTS[int(bits)])),),
    ),
    "intN": (r"int([2-8])", lambda bits: (Quantize(IntFormat(int(bits))),)),
    "pruneNN": (r"prune(\d\d)", lambda percent: (Prune(int(percent) / 100),)),
    "pruneNN-lognormal": (r"prune(\d\d)-lognormal", lambda percent: (Prune(int(percent) / 100, "lognormal"),)),
    "pruneNN-normal": (r"prune(\d\d)-normal", lambda percent: (Prune(int(percent) / 100, "normal"),)),
}
"""Pattern of the name, and the sentence that its digits give."""


def recipe(name: str) -> Sentence:
    """The treatments that a name stands for; parts joined by "+" follow each other.

    >>> [str(treatment) for treatment in recipe("prune85+fp6")]
    ['prune 0.85', '1-4-1 scale max']
    """
    return tuple(treatment for part in str(name).split("+") for treatment in _part(part.strip(), str(name)))


def _part(part: str, name: str) -> Sentence:
    for pattern, build in RECIPES.values():
        if match := re.fullmatch(pattern, part):
            return build(*match.groups())
    examples = ["identity", *(f"fp{bits}" for bits in EXPONENTS), "int4", "int8", "prune85", "prune85-lognormal"]
    raise InvalidValue(
        f"{name!r} is not a recipe; valid are {', '.join(RECIPES)} with digits for N, and several joined by '+'."
        f"{nearest_name(part, examples)}"
    )
