"""Formats as levels: whole numbers, moved up by `zero` so that they are bytes, times one power of two.

Products of integers take levels.  Integers, powers of two such as 1-3-0, e2m1 and e2m3 have them; a table of 256 bytes
turns their codes into levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import InvalidValue
from ..formats import BlockFormat, FloatFormat, IntFormat, parse_format


@dataclass(frozen=True)
class Levels:
    """The levels of a format: a code stands for (table[code] - zero) factor."""

    table: bytes
    """256 bytes; a byte that is no code has the level of zero."""
    zero: int
    factor: float
    """A power of two."""

    @property
    def identity(self) -> bool:
        """True if codes are levels already."""
        return self.table == bytes(range(256))

    def tensor(self, device: torch.device) -> Tensor:
        """The table as a uint8 tensor."""
        return torch.tensor(list(self.table), dtype=torch.uint8, device=device)


@lru_cache(maxsize=256)
def levels_of(format: str) -> Levels:
    """The levels of an element format, or of the elements of a block format, that is given as text.

    Refused, with the reason, is a format with a NaN, without zero, or with more than 256 levels between its ends.

    >>> levels_of("1-3-0").zero, levels_of("1-3-0").factor
    (64, 0.25)
    """
    if reason := reason_without_levels(format):
        raise InvalidValue(reason)
    values = _values(format)
    factor = _unit(values)
    whole = [int(value / factor) for value in values]
    zero = -min(whole)
    if zero == 0 and whole == list(range(len(whole))):  # bytes beyond the codes pass through: nothing is looked up
        return Levels(bytes(range(256)), 0, factor)
    return Levels(bytes(each + zero for each in whole) + bytes([zero]) * (256 - len(whole)), zero, factor)


@lru_cache(maxsize=256)
def reason_without_levels(format: str) -> str | None:
    """The reason why the numbers of a format are no levels, as a sentence; None if they are.

    >>> reason_without_levels("1-4-3")
    'the numbers of 1-4-3 span 491520 of its smallest steps; integer products take formats of at most 255.'
    """
    element = _element(format)
    if not isinstance(element, FloatFormat | IntFormat) or element.bits > 8:
        return f"integer products take formats of at most 8 bits; got {format}."
    values = [value for value in _values(format) if not math.isnan(value)]
    if isinstance(element, FloatFormat) and (element.specials != "none" or not element.zero):
        missing = "has no zero" if not element.zero else "has codes for NaN or infinity"
        return f"{element} {missing}, so its codes are no whole numbers; integer products take formats of numbers only."
    span = (max(values) - min(values)) / _unit(values)
    if span > 255:
        return (
            f"the numbers of {element} span {span:.0f} of its smallest steps; integer products take formats of at most "
            "255."
        )
    return None


def _element(format: str) -> object:
    parsed = parse_format(format)
    return parsed.element if isinstance(parsed, BlockFormat) else parsed


def _values(format: str) -> list[float]:
    """The number of each code; 0 for the code that a symmetric integer leaves out."""
    element = _element(format)
    assert isinstance(element, FloatFormat | IntFormat)
    values = [element.decode(code) for code in range(2**element.bits)]
    return [0.0 if math.isnan(value) and isinstance(element, IntFormat) else value for value in values]


def _unit(values: list[float]) -> float:
    """The largest power of two of which all numbers are whole multiples."""
    units = [value.as_integer_ratio() for value in values if value and math.isfinite(value)]
    down = max(denominator for _, denominator in units)
    up = min(numerator & -numerator for numerator, denominator in units) if down == 1 else 1
    return up / down
